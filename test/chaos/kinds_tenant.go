// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"syscall"
	"time"

	"xsched/internal/control"
	"xsched/test/proc"
)

func tenantKill(w *world, f Fault) error {
	t := w.tenant(f.Role)
	end := t.excuse("killed")
	defer end()
	t.life.Lock()
	defer t.life.Unlock()
	t.kill()
	time.Sleep(f.duration())
	return w.revive(t)
}

// needsDaemon is how `xsched run --virtual` ends if it can't ask the daemon for the kind of GPU.
const needsDaemon = "no virtual GPU is running"

// revive starts a program again; a failure is a violation, because programs must always start.
func (w *world) revive(t *tenant) error {
	if w.closing.Load() {
		return nil
	}
	err := t.restart()
	for end := time.Now().Add(20 * time.Second); err != nil && strings.Contains(t.stderr.Last(), needsDaemon) && time.Now().Before(end); {
		time.Sleep(200 * time.Millisecond)
		err = t.restart()
	}
	if err != nil && !w.closing.Load() {
		w.ledger.violate(now()-1e9, "start", t.role, "a program can't start: %v", err)
	}
	return err
}

func tenantStop(w *world, f Fault) error {
	t := w.tenant(f.Role)
	end := t.excuse("stopped")
	defer end()
	t.signal(syscall.SIGSTOP)
	time.Sleep(f.duration())
	t.signal(syscall.SIGCONT)
	return nil
}

// shortClients starts programs that end at once.
func shortClients(w *world, f Fault) error {
	var errs error
	for i := range 1 + f.Number%3 {
		s := spec{role: "short" + strconv.Itoa(i), kernelUS: 200}
		cmd := w.command(s)
		var out, text proc.Tail
		cmd.Stdout, cmd.Stderr = &out, &text
		if err := proc.Start(cmd); err != nil {
			return err
		}
		if err := waitFor(w, cmd.Wait, 20*time.Second, cmd.Process.Kill); err != nil && !w.closing.Load() && !strings.Contains(text.Last(), needsDaemon) {
			w.ledger.violate(now()-1e9, "short", s.role, "a short program failed: %v %s", err, text.Last())
			errs = errors.Join(errs, err)
		}
	}
	return errs
}

// waitFor bounds a wait, without stalls.
func waitFor(w *world, wait func() error, limit time.Duration, kill func() error) error {
	done := make(chan error, 1)
	go func() { done <- wait() }()
	begin := now()
	for {
		select {
		case err := <-done:
			return err
		case <-time.After(20 * time.Millisecond):
			if w.stalls.elapsed(begin, now()) > limit {
				_ = kill()
				return errors.Join(errors.New("did not end within "+limit.String()), <-done)
			}
		}
	}
}

// namespace runs a program in namespaces of its own and checks its progress and checksum.
func namespace(w *world, f Fault) error {
	t := &tenant{w: w, excuses: map[string]int{}, spec: spec{
		role: "guest", kernelUS: 3000, load: "loop", spaces: strings.Split(f.Text, ","),
	}}
	if strings.Contains(f.Text, "time") {
		t.offset = time.Duration(f.Number%2000-1000) * time.Second
		if t.offset < 0 { // the clock of a namespace can't be negative
			t.offset = max(t.offset, -time.Duration(now()/2).Truncate(time.Second))
		}
	}
	if err := t.start(); err != nil {
		if !w.closing.Load() && !strings.Contains(t.stderr.Last(), needsDaemon) {
			w.ledger.violate(now()-1e9, "start", t.role, "a program in namespaces %s can't start: %v", f.Text, err)
		}
		t.kill()
		return err
	}
	begin := now()
	time.Sleep(max(f.duration(), policyBound+grace))
	limit := policyBound + grace + nativeBound
	if !w.eventually(limit, func() bool { n, p := t.iterations(); return n > 0 && w.stalls.elapsed(p, now()) < limit }) {
		w.ledger.violate(begin, "late", t.role, "no progress in namespaces %s; %s", f.Text, w.describe(t))
	}
	if err := t.finish(); err != nil && !w.closing.Load() {
		w.ledger.violate(begin, "checksum", t.role, "in namespaces %s: %v", f.Text, err)
	}
	return nil
}

// suspend holds a program by hand for a while.
func suspend(w *world, f Fault) error {
	t := w.tenant(f.Role)
	if !t.hand.TryLock() {
		return errors.New("held already")
	}
	defer t.hand.Unlock()
	end := t.excuse("suspended by hand")
	defer end()
	pid := t.pid()
	_, err := call(2*time.Second, func(ctx context.Context) (control.ProcessReply, error) { return w.daemon.client.Suspend(ctx, pid) })
	if err == nil {
		t.hold(pid)
	}
	time.Sleep(f.duration())
	t.hold(0)
	// The daemon may be down at this moment. A new one has forgotten the suspension, unless it keeps its
	// state: then the program must have joined before the resume counts. One without the shim does not join,
	// and the world attaches none that is excused.
	if !w.eventually(10*time.Second, func() bool {
		w.daemon.forgetState()
		_, _ = call(time.Second, func(ctx context.Context) (control.ProcessReply, error) { return w.daemon.client.Resume(ctx, t.pid()) })
		list, err := call(time.Second, w.daemon.client.List)
		if err != nil {
			return w.closing.Load()
		}
		p := find(list, t.pid())
		return p == nil && (!w.setup.State || t.bare) || p != nil && !p.Held
	}) {
		w.ledger.violate(now(), "held", t.role, "can't be resumed by hand within 10 s; %s", w.describe(t))
	}
	return err
}

// hold notes that a process is suspended by hand, unless it was replaced meanwhile; 0: none is.
func (t *tenant) hold(pid int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held, t.heldAt = pid != 0 && pid == t.id, now()
}

// detach leaves a program unmanaged for a while.
func detach(w *world, f Fault) error {
	t := w.tenant(f.Role)
	if !t.hand.TryLock() {
		return errors.New("held by hand")
	}
	defer t.hand.Unlock()
	t.setAway(true)
	defer t.setAway(false)
	_, err := call(3*time.Second, func(ctx context.Context) (control.ProcessReply, error) { return w.daemon.client.Detach(ctx, t.pid()) })
	time.Sleep(f.duration())
	return err
}

func (t *tenant) setAway(yes bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.away = yes
}

func policy(w *world, f Fault) error {
	set := func(name string) error {
		_, err := call(time.Second, func(ctx context.Context) (control.PolicyReply, error) {
			return w.daemon.client.SetPolicy(ctx, control.PolicyRequest{Name: name})
		})
		if err == nil {
			w.daemon.set(name, "")
		}
		return err
	}
	w.daemon.set(f.Text, "") // before: the stricter bound of HPF ends first
	err := set(f.Text)
	time.Sleep(f.duration())
	return errors.Join(err, set(w.setup.policy()))
}

func mode(w *world, f Fault) error {
	set := func(text string) error {
		name, level, _ := strings.Cut(text, " ")
		n, _ := strconv.Atoi(level)
		_, err := call(time.Second, func(ctx context.Context) (control.ModeReply, error) {
			return w.daemon.client.SetMode(ctx, control.ModeRequest{Mode: name, Level: n})
		})
		if err == nil {
			w.daemon.set("", name)
		}
		return err
	}
	w.daemon.set("", f.Text)
	err := set(f.Text)
	time.Sleep(f.duration())
	return errors.Join(err, set("live"))
}

func priority(w *world, f Fault) error {
	t := w.tenant(f.Role)
	set := func(value int32) error {
		_, err := call(time.Second, func(ctx context.Context) (control.HintReply, error) {
			return w.daemon.client.Hint(ctx, control.HintRequest{PID: t.pid(), Priority: &value})
		})
		return err
	}
	w.daemon.set("priorities", "") // nobody is known to be the highest
	err := set(int32(f.Number%41 - 20))
	time.Sleep(f.duration())
	// A daemon that keeps its state keeps this, too.
	if !w.eventually(10*time.Second, func() bool { return set(int32(t.priority)) == nil || w.closing.Load() || t.isGone() }) {
		err = errors.Join(err, errors.New("the priority can't be set back"))
	}
	w.daemon.set(w.setup.policy(), "")
	return err
}

// deviceHang leaves a program's controls unanswered. Nothing can help that program, so it is
// replaced; all others must go on.
func deviceHang(w *world, f Fault) error {
	t := w.tenant(f.Role)
	end := t.excuse("hung device")
	defer end()
	t.life.Lock()
	defer t.life.Unlock()
	done, err := w.deviceFault("never-answer:" + strconv.Itoa(t.pid()))
	if err != nil {
		return err
	}
	time.Sleep(f.duration())
	t.kill()
	done()
	return w.revive(t)
}

// deviceRefuses makes the device reject what the daemon asks, while programs can still help
// themselves.
func deviceRefuses(w *world, f Fault) error {
	cmd := w.daemon.process()
	if cmd == nil {
		return errDown
	}
	done, err := w.deviceFault("refuse:" + strconv.Itoa(cmd.Process.Pid))
	if err != nil {
		return err
	}
	time.Sleep(f.duration())
	done()
	return nil
}

// deviceFault sets a fault of the device. The device ends all at once, so the last one ends them.
func (w *world) deviceFault(name string) (end func(), err error) {
	w.guardMu.Lock()
	defer w.guardMu.Unlock()
	if err := w.gpu.SetFault(name); err != nil {
		return nil, err
	}
	w.deviceFaults++
	return func() {
		w.guardMu.Lock()
		defer w.guardMu.Unlock()
		if w.deviceFaults--; w.deviceFaults == 0 {
			_ = w.gpu.ClearFaults()
		}
	}, nil
}

// actor runs `chaos act NAME` as the other user for the fault's duration.
func actor(name string) func(*world, Fault) error {
	return func(w *world, f Fault) error {
		_, err := w.act(name, f)
		return err
	}
}

// forbidden lets the other user try what only root or the owner may do.
func forbidden(w *world, f Fault) error {
	out, err := w.act("forbidden", f)
	if strings.Contains(out, "ALLOWED") {
		w.ledger.violate(now()-1e9, "allowed", f.Role, "another user was allowed: %s", strings.TrimSpace(out))
	}
	return err
}

func (w *world) act(name string, f Fault) (string, error) {
	cmd := w.actCommand(name, f)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := proc.Start(cmd); err != nil {
		return "", err
	}
	text, _ := io.ReadAll(out)
	return string(text), waitFor(w, cmd.Wait, f.duration()+20*time.Second, cmd.Process.Kill)
}
