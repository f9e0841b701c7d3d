// SPDX-License-Identifier: Apache-2.0

package internal

import (
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"
)

// These tests find waits without a limit, and waits under a lock. Whoever waits for another process, a
// device or a stranger states for how long, or the reviewed list in waits_list_test.go says why not.

// wait is a finding: the place without its line, which changes too often, and what is wrong there.
type wait struct {
	place string // "path function"
	rule  string
	at    token.Pos // in a file set of one file
}

func (w wait) key() string { return w.place + ": " + w.rule }

// Rules.
const (
	ruleDial   = "connects without a limit; use net.Dialer with Timeout"
	ruleTimes  = "talks to a peer and sets no deadline; use SetDeadline or SO_RCVTIMEO"
	ruleExec   = "starts a process without a limit; use exec.CommandContext"
	ruleHTTP   = "HTTP without time limits; set Timeout or ReadHeaderTimeout"
	rulePoll   = "waits in the kernel for ever; give a timeout"
	ruleFlock  = "waits for a file lock for ever; use LOCK_NB"
	ruleDevice = "asks a driver directly; use the driver's own transport, which a worker bounds"
	ruleLocked = "waits while it holds a mutex"
)

// TestWaitsHaveLimits checks everything that runs in production.
func TestWaitsHaveLimits(t *testing.T) {
	listed := maps.Clone(reviewedWaits)
	for _, f := range sources(t) {
		if f.isTest() || f.isGenerated() || !strings.HasPrefix(f.path, "cmd/") && !strings.HasPrefix(f.path, "internal/") {
			continue
		}
		if strings.HasPrefix(f.path, "internal/virtual/") || strings.HasPrefix(f.path, "internal/bench/") || strings.HasSuffix(strings.TrimSuffix(f.path[:strings.LastIndexByte(f.path, '/')], "/"), "test") {
			continue // doubles and fixtures; measurements that run under the eyes of their user
		}
		for _, w := range waits(f.path, f.ast) {
			if _, ok := reviewedWaits[w.key()]; !ok {
				t.Errorf("%s:%d: %s\n\tmend it, or add to reviewedWaits with a reason: %q", f.path, 1+strings.Count(f.text[:w.at-1], "\n"), w.rule, w.key())
			}
			delete(listed, w.key())
		}
	}
	for key := range listed {
		t.Errorf("reviewedWaits has %q, which no longer exists; remove it", key)
	}
}

// waits returns the findings of a file.
func waits(path string, file *ast.File) (out []wait) {
	for _, d := range file.Decls {
		name := "-"
		if fn, ok := d.(*ast.FuncDecl); ok {
			name = fn.Name.Name
		}
		finder := &finder{place: path + " " + name}
		ast.Inspect(d, finder.visit)
		if finder.talks != 0 && !finder.limits {
			finder.add(finder.talks, ruleTimes)
		}
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
			finder.locked(fn.Body)
		}
		out = append(out, finder.found...)
	}
	return out
}

type finder struct {
	place  string
	found  []wait
	talks  token.Pos // where it gets a connection and uses it
	limits bool      // it sets deadlines, or hands the connection on
}

func (f *finder) add(at token.Pos, rule string) {
	w := wait{place: f.place, rule: rule, at: at}
	if !slices.ContainsFunc(f.found, func(o wait) bool { return o.key() == w.key() }) {
		f.found = append(f.found, w)
	}
}

// called returns "package.Name" or ".Method" of a call.
func called(c *ast.CallExpr) string {
	s, ok := c.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if x, ok := s.X.(*ast.Ident); ok && x.Obj == nil {
		return x.Name + "." + s.Sel.Name
	}
	return "." + s.Sel.Name
}

func text(e ast.Expr) string {
	var b strings.Builder
	_ = printer.Fprint(&b, token.NewFileSet(), e)
	return b.String()
}

func (f *finder) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.CompositeLit:
		f.literal(n)
	case *ast.CallExpr:
		f.call(n)
	}
	return true
}

// literal checks values that are limits of later calls.
func (f *finder) literal(n *ast.CompositeLit) {
	has := func(names ...string) bool {
		return slices.ContainsFunc(n.Elts, func(e ast.Expr) bool {
			pair, ok := e.(*ast.KeyValueExpr)
			return ok && slices.Contains(names, text(pair.Key))
		})
	}
	switch text(n.Type) {
	case "net.Dialer":
		if !has("Timeout", "Deadline") {
			f.add(n.Pos(), ruleDial)
		}
	case "http.Client":
		if !has("Timeout") {
			f.add(n.Pos(), ruleHTTP)
		}
	case "http.Server":
		if !has("ReadHeaderTimeout", "ReadTimeout") {
			f.add(n.Pos(), ruleHTTP)
		}
	case "exec.Cmd":
		f.add(n.Pos(), ruleExec)
	}
}

func (f *finder) call(n *ast.CallExpr) {
	last := ""
	if len(n.Args) > 0 {
		last = text(n.Args[len(n.Args)-1])
	}
	switch name := called(n); name {
	case "net.Dial", "net.DialUnix", "net.DialTCP", "tls.Dial":
		f.add(n.Pos(), ruleDial)
	case "exec.Command":
		f.add(n.Pos(), ruleExec)
	case "http.Get", "http.Post", "http.Head", "http.ListenAndServe":
		f.add(n.Pos(), ruleHTTP)
	case "unix.Connect":
		f.talks = n.Pos()
	case "unix.Poll", "unix.EpollWait":
		if last == "-1" || last == "timeout" {
			f.add(n.Pos(), rulePoll)
		}
	case "unix.Ppoll":
		if last == "nil" {
			f.add(n.Pos(), rulePoll)
		}
	case "unix.Flock":
		if !strings.Contains(last, "LOCK_NB") && !strings.Contains(last, "LOCK_UN") {
			f.add(n.Pos(), ruleFlock)
		}
	case "unix.Syscall", "unix.Syscall6", "unix.RawSyscall", "unix.IoctlGetInt", "unix.IoctlSetInt":
		if strings.Contains(text(n), "IOCTL") || strings.HasPrefix(name, "unix.Ioctl") {
			f.add(n.Pos(), ruleDevice)
		}
	default:
		switch {
		case strings.HasSuffix(name, ".Dial") || strings.HasSuffix(name, ".DialContext"), strings.HasSuffix(name, ".Accept") && len(n.Args) == 0:
			f.talks = n.Pos()
		case strings.HasPrefix(name[strings.LastIndexByte("."+name, '.'):], "Set") && strings.HasSuffix(name, "Deadline"), name == "unix.SetsockoptTimeval", name == ".limit":
			f.limits = true
		}
		if id, ok := n.Fun.(*ast.Ident); ok && id.Name == "limit" {
			f.limits = true
		}
	}
}

// locked finds waits between Lock and Unlock of one block. Code of other functions is not followed.
func (f *finder) locked(block *ast.BlockStmt) {
	held := map[string]bool{}
	f.block(block.List, held)
}

func (f *finder) block(list []ast.Stmt, held map[string]bool) {
	for _, s := range list {
		f.statement(s, held)
	}
}

// lockCall returns the mutex and the method of a statement such as x.mu.Lock().
func lockCall(e ast.Expr) (mutex, method string) {
	c, ok := e.(*ast.CallExpr)
	if !ok || len(c.Args) > 0 {
		return "", ""
	}
	s, ok := c.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains([]string{"Lock", "RLock", "Unlock", "RUnlock", "lock", "unlock"}, s.Sel.Name) {
		return "", ""
	}
	return text(s.X), strings.ToLower(s.Sel.Name)
}

func (f *finder) statement(s ast.Stmt, held map[string]bool) {
	branch := func(list ...ast.Stmt) { f.block(list, maps.Clone(held)) }
	switch s := s.(type) {
	case *ast.ExprStmt:
		if mutex, method := lockCall(s.X); mutex != "" {
			if strings.HasSuffix(method, "unlock") {
				delete(held, mutex)
			} else {
				held[mutex] = true
			}
			return
		}
		f.wait(s.X, held)
	case *ast.SendStmt:
		if len(held) > 0 {
			f.add(s.Pos(), ruleLocked)
		}
	case *ast.AssignStmt:
		for _, e := range s.Rhs {
			f.wait(e, held)
		}
	case *ast.ReturnStmt:
		for _, e := range s.Results {
			f.wait(e, held)
		}
	case *ast.BlockStmt:
		f.block(s.List, held)
	case *ast.LabeledStmt:
		f.statement(s.Stmt, held)
	case *ast.IfStmt:
		if s.Init != nil {
			f.statement(s.Init, held)
		}
		f.wait(s.Cond, held)
		branch(s.Body)
		if s.Else != nil {
			branch(s.Else)
		}
	case *ast.ForStmt:
		branch(s.Body)
	case *ast.RangeStmt:
		branch(s.Body)
	case *ast.SwitchStmt:
		branch(s.Body.List...)
	case *ast.TypeSwitchStmt:
		branch(s.Body.List...)
	case *ast.CaseClause:
		branch(s.Body...)
	case *ast.SelectStmt:
		f.choice(s, held)
	}
}

// choice checks a select: one with a default or a time limit does not wait for ever.
func (f *finder) choice(s *ast.SelectStmt, held map[string]bool) {
	bounded := false
	for _, c := range s.Body.List {
		clause, ok := c.(*ast.CommClause)
		if !ok {
			continue
		}
		f.block(clause.Body, maps.Clone(held))
		if clause.Comm == nil {
			bounded = true // default
			continue
		}
		var b strings.Builder
		_ = printer.Fprint(&b, token.NewFileSet(), clause.Comm)
		bounded = bounded || strings.Contains(b.String(), "time.After") || strings.Contains(b.String(), ".C")
	}
	if !bounded && len(held) > 0 {
		f.add(s.Pos(), ruleLocked)
	}
}

// wait checks an expression that is evaluated while mutexes are held.
func (f *finder) wait(e ast.Expr, held map[string]bool) {
	if len(held) == 0 || e == nil {
		return
	}
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false // runs elsewhere, or later
		case *ast.UnaryExpr:
			if n.Op == token.ARROW {
				f.add(n.Pos(), ruleLocked)
			}
		case *ast.CallExpr:
			if name := called(n); name == "time.Sleep" || strings.HasSuffix(name, "Group.Wait") || strings.HasSuffix(text(n.Fun), "wg.Wait") || name == "net.Dial" || name == "unix.Connect" {
				f.add(n.Pos(), ruleLocked)
			}
		}
		return true
	})
}

// TestWaitsAreFound checks the rules on examples: each bad one is found, each good one is not.
func TestWaitsAreFound(t *testing.T) {
	for code, want := range map[string]string{
		`c, _ := net.Dial("unix", p); _ = c`:                                                     ruleDial,
		`c, _ := net.DialUnix("unix", nil, a); _ = c`:                                            ruleDial,
		`d := net.Dialer{}; _ = d`:                                                               ruleDial,
		`d := net.Dialer{Timeout: x}; _ = d`:                                                     "",
		`d := net.Dialer{Timeout: x}; c, _ := d.DialContext(ctx, "", ""); c.Read(b)`:             ruleTimes,
		`c, _ := d.DialContext(ctx, "", ""); c.SetDeadline(end); c.Read(b)`:                      "",
		`c, _ := l.Accept(); c.Read(b)`:                                                          ruleTimes,
		`unix.Connect(s, a)`:                                                                     ruleTimes,
		`limit(s); unix.Connect(s, a)`:                                                           "",
		`exec.Command("true").Run()`:                                                             ruleExec,
		`c := &exec.Cmd{Path: "/bin/true"}; c.Run()`:                                             ruleExec,
		`exec.CommandContext(ctx, "true").Run()`:                                                 "",
		`http.Get("x")`:                                                                          ruleHTTP,
		`c := &http.Client{}; _ = c`:                                                             ruleHTTP,
		`s := http.Server{Handler: h}; _ = s`:                                                    ruleHTTP,
		`s := http.Server{ReadHeaderTimeout: x}; _ = s`:                                          "",
		`unix.Poll(p, -1)`:                                                                       rulePoll,
		`unix.Poll(p, 0)`:                                                                        "",
		`unix.EpollWait(e, events, -1)`:                                                          rulePoll,
		`unix.Flock(fd, unix.LOCK_EX)`:                                                           ruleFlock,
		`unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)`:                                              "",
		`unix.Syscall(unix.SYS_IOCTL, a, b, c)`:                                                  ruleDevice,
		`s.mu.Lock(); ch <- 1; s.mu.Unlock()`:                                                    ruleLocked,
		`s.mu.Lock(); defer s.mu.Unlock(); if x { ch <- 1 }`:                                     ruleLocked,
		`s.mu.Lock(); s.mu.Unlock(); ch <- 1`:                                                    "",
		`s.mu.Lock(); defer s.mu.Unlock(); select { case ch <- 1: default: }`:                    "",
		`s.mu.Lock(); defer s.mu.Unlock(); select { case ch <- 1: case <-ctx.Done(): }`:          ruleLocked,
		`s.mu.Lock(); defer s.mu.Unlock(); select { case <-ch: case <-time.After(x): }`:          "",
		`s.mu.Lock(); defer s.mu.Unlock(); <-ch`:                                                 ruleLocked,
		`s.mu.Lock(); defer s.mu.Unlock(); v := <-ch; _ = v`:                                     ruleLocked,
		`s.mu.Lock(); defer s.mu.Unlock(); go func() { ch <- 1 }()`:                              "",
		`s.mu.RLock(); defer s.mu.RUnlock(); time.Sleep(x)`:                                      ruleLocked,
		`s.mu.Lock(); if x { s.mu.Unlock(); ch <- 1; return }; s.mu.Unlock()`:                    "",
		`s.mu.Lock(); defer s.mu.Unlock(); s.wg.Wait()`:                                          ruleLocked,
		`c.lock(); defer c.unlock(); for range 3 { switch { case x: ch <- 1 } }; _ = struct{}{}`: ruleLocked,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\nfunc f() {"+strings.ReplaceAll(code, "; ", "\n")+"\n}", 0)
		if err != nil {
			file, err = parser.ParseFile(token.NewFileSet(), "x.go", "package x\nfunc f() {"+code+"\n}", 0)
		}
		if err != nil {
			t.Fatalf("%s: %v", code, err)
		}
		var got []string
		for _, w := range waits("x.go", file) {
			got = append(got, w.rule)
		}
		if want == "" && len(got) > 0 || want != "" && !slices.Contains(got, want) {
			t.Errorf("%s\n\tfound %q, want %q", code, got, want)
		}
	}
}
