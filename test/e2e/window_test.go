// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"xsched/internal/window/windowtest"
)

// windowed is a GPU program with a window.
type windowed struct {
	*program
	id  uint32 // of its window
	gpu int    // PID of the process that uses the GPU
}

// windowed starts a busy tenant in a window of a display: its own, or that of a terminal around it.
func (w *world) windowed(display, kind string) *windowed {
	w.t.Helper()
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	return w.shown(w.run(options{env: []string{"DISPLAY=" + display, kind}}, append([]string{self}, load(product(w.t, "virtual/tenant"))...)...))
}

func load(tenant string) []string {
	return []string{tenant, "--name", "t", "--kernel-us", "2000", "--depth", "2"}
}

// shown waits until a program has its window and is busy.
func (w *world) shown(p *program) *windowed {
	w.t.Helper()
	shown := &windowed{program: p}
	for ready := false; !ready || shown.id == 0; { // the terminal and its job write in any order
		line := p.expect("", 30*time.Second)
		ready = ready || line == "R"
		_, _ = fmt.Sscanf(line, "W %d %d", &shown.id, &shown.gpu)
	}
	w.waitLevel(shown.gpu, 3)
	p.send("loop")
	return shown
}

// follow starts the follower of the active window, until the test ends.
func (w *world) follow(args ...string) *exec.Cmd {
	w.t.Helper()
	cmd := exec.Command(xschedPath(w.t), append([]string{"window", "follow"}, args...)...)
	cmd.Env = w.env()
	cmd.Stderr = w.log
	startOwn(w.t, cmd)
	return cmd
}

// marked reports whether exactly these programs have the hint.
func (w *world) marked(want ...*windowed) bool {
	list, err := w.client.List(w.t.Context())
	if err != nil {
		return false
	}
	n := 0
	for _, p := range list.Processes {
		if !p.Hints.WindowActive {
			continue
		}
		n++
		found := false
		for _, other := range want {
			found = found || other.gpu == p.PID
		}
		if !found {
			return false
		}
	}
	return n == len(want)
}

// preferred waits until the device's record shows that one program runs before the other.
func (w *world) preferred(what string, runs, waits *windowed) {
	w.t.Helper()
	eventually(w.t, time.Minute, what, func() bool {
		from := nowNS()
		time.Sleep(200 * time.Millisecond)
		to := nowNS()
		first, second := w.ranIn(runs.gpu, from, to), w.ranIn(waits.gpu, from, to)
		return first > 4*second && first > time.Duration(to-from)/4
	})
}

// TestFollowedWindow runs two GPU programs in windows under AWF. A real window manager switches between
// them. Then the daemon, the X server and the programs end, one after the other.
func TestFollowedWindow(t *testing.T) {
	t.Parallel()
	x := windowtest.Start(t)
	x.Manage()
	c := windowtest.Connect(t, x.Name)
	w := newWorldOf(t, 1, "--policy", "AWF", "--mode", "suspend")
	follower := w.follow("--display", x.Name)
	own := w.windowed(x.Name, windowtest.Own())
	job := w.windowed(x.Name, windowtest.Terminal(1))
	if own.gpu != own.pid() || job.gpu == job.pid() {
		t.Fatalf("the programs run as %d of %d and %d of %d", own.gpu, own.pid(), job.gpu, job.pid())
	}
	activate := func(p *windowed, marked ...*windowed) {
		t.Helper()
		c.Activate(p.id, "the daemon knows the active window", func() bool { return w.marked(marked...) })
	}
	activate(own, own)
	w.preferred("the program with the window runs first", own, job)
	activate(job, job)
	w.preferred("the job in the active terminal runs first", job, own)

	if out, err := w.xsched("window", "follow", "--display", x.Name); err == nil || !strings.Contains(out, "another follower") {
		t.Errorf("a second follower: %v, %s", err, out)
	}
	if out := w.must("window", "list", "--display", x.Name); !strings.Contains(out, "*") || !strings.Contains(out, strconv.Itoa(job.gpu)) {
		t.Errorf("window list:\n%s", out)
	}

	// A new daemon learns the active window, though it did not change.
	w.killDaemon()
	w.startDaemon("--policy", "AWF", "--mode", "suspend")
	eventually(t, 30*time.Second, "the new daemon knows the active window", func() bool { return w.marked(job) })
	activate(own, own)

	// A program on a second display, which has no window manager, is active beside it.
	second := windowtest.Start(t)
	_ = follower.Process.Signal(syscall.SIGTERM)
	_ = follower.Wait()
	eventually(t, 30*time.Second, "without a follower no program is marked", func() bool { return w.marked() })
	follower = w.follow("--display", x.Name, "--display", second.Name)
	other := w.windowed(second.Name, windowtest.Own())
	windowtest.Connect(t, second.Name).Focus(other.id)
	eventually(t, 30*time.Second, "both displays have an active program", func() bool { return w.marked(own, other) })
	_ = other.cmd.Process.Kill()
	eventually(t, 30*time.Second, "the program that ended is gone", func() bool { return w.process(other.gpu) == nil && w.marked(own) })

	// Without the X server no program is active. The next server on that display is followed again.
	x.Kill()
	eventually(t, 30*time.Second, "without an X server no program is marked", func() bool { return w.marked() })
	x.Restart()
	late := w.windowed(x.Name, windowtest.Own())
	windowtest.Connect(t, x.Name).Focus(late.id)
	eventually(t, 30*time.Second, "the program on the new X server is active", func() bool { return w.marked(late) })
	w.preferred("and runs first", late, job)
	_ = follower.Process.Signal(syscall.SIGTERM)
	if err := follower.Wait(); err != nil {
		t.Errorf("the follower ends with %v", err)
	}
	eventually(t, 30*time.Second, "the follower leaves no hint", func() bool { return w.marked() })
	own.finish()
	late.finish()
	job.finish()
}

// TestWindowOfAnotherUser checks that a user's follower marks that user's programs only.
func TestWindowOfAnotherUser(t *testing.T) {
	t.Parallel()
	cache := asNobody(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin, tenant, self := copyFor(t, cache, xschedPath(t)), copyFor(t, cache, product(t, "virtual/tenant")), copyFor(t, cache, self)
	x := windowtest.Start(t, "-ac") // lets all local users in
	w := newWorldOf(t, 1, "--policy", "AWF", "--mode", "suspend")
	openTo(t, w)
	env := w.env("XSCHED_CACHE="+filepath.Join(cache, "c"), "HOME="+cache, "DISPLAY="+x.Name)
	cmd := execAs(bin, append([]string{"run", "--virtual", "--", self}, load(tenant)...)...)
	cmd.Env = append(env, windowtest.Own())
	users := w.shown(w.drive(cmd))
	roots := w.windowed(x.Name, windowtest.Own())
	follower := execAs(bin, "window", "follow")
	follower.Env, follower.Stderr = env, w.log
	startOwn(t, follower)
	c := windowtest.Connect(t, x.Name)
	c.Focus(users.id)
	eventually(t, 30*time.Second, "the user's program is active", func() bool { return w.marked(users) })
	w.must("hint", strconv.Itoa(roots.gpu), "--window-active=true")
	c.Focus(roots.id)
	eventually(t, 30*time.Second, "root's hint stays, that of the user goes", func() bool { return w.marked(roots) })
	w.must("hint", strconv.Itoa(roots.gpu), "--window-active=false")
	c.Focus(users.id)
	eventually(t, 30*time.Second, "the user's program is active again", func() bool { return w.marked(users) })
	users.finish()
	roots.finish()
}

// TestWindowPIDs checks the follower of a desktop without X: it reads the PID of the active window.
func TestWindowPIDs(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, 1, "--policy", "AWF", "--mode", "suspend")
	a, b := w.tenant(options{}, 2000, "--depth", "2"), w.tenant(options{}, 2000, "--depth", "2")
	first, second := &windowed{program: a, gpu: a.pid()}, &windowed{program: b, gpu: b.pid()}
	cmd := exec.Command(xschedPath(t), "window", "follow", "--pids")
	cmd.Env = w.env()
	follower := w.drive(cmd)
	for line, want := range map[string][]*windowed{strconv.Itoa(a.pid()): {first}, strconv.Itoa(b.pid()): {second}, strconv.Itoa(os.Getpid()): {first, second}} {
		for _, none := range []string{"0", "", "nothing", "-5"} {
			follower.send(line)
			eventually(t, 30*time.Second, "the program of the window is active", func() bool { return w.marked(want...) })
			follower.send(none)
			eventually(t, 30*time.Second, "no program is active", func() bool { return w.marked() })
		}
		follower.send(line)
	}
	if err := follower.wait(10 * time.Second); err != nil {
		t.Errorf("the follower ends with its input: %v", err)
	}
	eventually(t, 30*time.Second, "no hint remains", func() bool { return w.marked() })
	a.finish()
	b.finish()
}

// TestWindowLaunch checks the launcher: listed programs run with their priority, and a command belongs
// to the window that was active when it started.
func TestWindowLaunch(t *testing.T) {
	t.Parallel()
	x := windowtest.Start(t)
	x.Manage()
	c := windowtest.Connect(t, x.Name)
	w := newWorldOf(t, 1, "--policy", "AWF", "--mode", "suspend")
	state := t.TempDir()
	tenant := product(t, "virtual/tenant")
	list := filepath.Join(state, "programs.yaml")
	text := fmt.Sprintf("programs:\n  - {name: high, command: [%q, --name, t], priority: 7, hints: {share: 50}}\n  - {name: low, command: [%q, --name, t], priority: -7}\n  - {name: none, command: [no-such-program]}\n", tenant, tenant)
	if err := os.WriteFile(list, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	launch := func(stdin string, args ...string) string {
		t.Helper()
		cmd := exec.Command(xschedPath(t), append([]string{"window", "launch", "--file", list}, args...)...)
		cmd.Env, cmd.Stdin = w.env("XSCHED_STATE="+state, "DISPLAY="+x.Name), strings.NewReader(stdin)
		out, _ := cmd.CombinedOutput()
		for line := range strings.Lines(string(out)) {
			var name string
			var pid int
			if _, err := fmt.Sscanf(line, "%s runs as process %d", &name, &pid); err == nil {
				t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
			}
		}
		return string(out)
	}
	if out := launch("", "--list"); !strings.Contains(out, "high") || !strings.Contains(out, "-7") {
		t.Errorf("list:\n%s", out)
	}
	// The tenant ends with its standard input, so only its exit and its log prove that it ran.
	out := launch("2\nhigh\n9\nnone\nq\n", "--virtual")
	for _, want := range []string{"low runs as process", "with priority -7", "high runs as process", `no program "9"`, "no-such-program: command not found"} {
		if !strings.Contains(out, want) {
			t.Errorf("menu lacks %q:\n%s", want, out)
		}
	}
	for _, name := range []string{"high", "low"} {
		eventually(t, 30*time.Second, name+" has run", func() bool {
			log, _ := os.ReadFile(filepath.Join(state, "launch", name+".log"))
			return strings.Contains(string(log), "R")
		})
	}

	// CMD belongs to the window that was active, though no parent of it owns the window.
	tabs := w.windowed(x.Name, windowtest.Terminal(1))
	own := w.windowed(x.Name, windowtest.Own())
	w.follow("--display", x.Name)
	c.Activate(own.id, "the window is active", func() bool { return w.marked(own) })
	link := filepath.Join(state, "x11_launcher")
	if err := os.Symlink(xschedPath(t), link); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(link, "--virtual", "-a", "127.0.0.1", "-p", "50001", "--", tenant, "--name", "t", "--kernel-us", "2000")
	cmd.Env = w.env("DISPLAY=" + x.Name)
	bound := &windowed{program: w.drive(cmd)}
	bound.gpu = bound.pid()
	bound.expect("R", 20*time.Second)
	eventually(t, 30*time.Second, "the command belongs to the active window", func() bool { return w.marked(own, bound) })
	c.Activate(tabs.id, "the terminal is active", func() bool { return w.marked(tabs) })
	bound.finish()
	tabs.finish()
	own.finish()
}
