// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
	"xsched/internal/daemon"
	"xsched/internal/identity"
	"xsched/internal/model"
	"xsched/internal/session"
)

var ctx = context.Background()

//go:fix inline
func TestSuspendResumeAndHints(t *testing.T) {
	w := newWorld(t)
	stop := w.serve(t, nil)
	d, err := w.ctl.Devices(ctx)
	if err != nil || len(d.Devices) != 2 || d.Devices[1].ID != "0000:02:00.0" || d.Devices[1].Probed || !d.Devices[1].Virtual {
		t.Errorf("devices before their first use: %+v %v", d, err)
	}
	app := startProgram(t, "app", w.vgpuPath(), w.sockPath())
	pid := app.Process.Pid
	await(t, "level 3", func() bool {
		l, err := w.ctl.List(ctx)
		return err == nil && len(l.Processes) == 1 && len(l.Processes[0].Queues) == 1 && l.Processes[0].Queues[0].Level == 3
	})
	d, err = w.ctl.Devices(ctx)
	if err != nil || len(d.Devices) != 2 || d.Devices[0].ID != "0000:01:00.0" || d.Devices[0].MaxLevel != 3 || !d.Devices[0].Virtual {
		t.Errorf("devices %+v %v", d, err)
	}
	probes := w.account(t, pid).Enables // probing enables running channels
	r, err := w.ctl.Suspend(ctx, pid)
	if err != nil || !r.Held || r.Attached || r.Level != 3 {
		t.Fatalf("%+v %v", r, err)
	}
	await(t, "channels stopped", w.stopped(t, pid, 1))
	l, _ := w.ctl.List(ctx)
	if q := l.Processes[0].Queues[0]; q.State != "held" || q.Preemptions != 1 {
		t.Errorf("%+v", q)
	}
	time.Sleep(250 * time.Millisecond) // longer than the lease, which the daemon must extend
	a := w.account(t, pid)
	s, err := w.ctl.Stats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// Unless the engine was late.
	if late := s.HeartbeatLate.MaxUS / 1000; (a.Disables != 1 || a.Enables != probes) && late < 50 {
		t.Errorf("disables %d enables %d while held, heartbeats at most %.0f ms late", a.Disables, a.Enables, late)
	}
	if _, err := w.ctl.Resume(ctx, pid); err != nil {
		t.Fatal(err)
	}
	await(t, "channels run", w.free(t, pid))

	h, err := w.ctl.Hint(ctx, control.HintRequest{PID: pid, Priority: new(int32(7)), Level: new(2)})
	if err != nil || h.Priority != 7 || h.Level != 2 {
		t.Errorf("%+v %v", h, err)
	}
	_, err = w.ctl.Hint(ctx, control.HintRequest{PID: pid, Priority: new(int32(256))})
	wantError(t, err, control.ErrInvalid, "256", "255")
	_, err = w.ctl.Hint(ctx, control.HintRequest{PID: pid, Level: new(4)})
	wantError(t, err, control.ErrInvalid)
	_, err = w.ctl.Hint(ctx, control.HintRequest{PID: 1 << 22, Priority: new(int32(1))})
	wantError(t, err, control.ErrNotFound)
	_, err = w.ctl.SetPolicy(ctx, control.PolicyRequest{Name: "nope"})
	wantError(t, err, control.ErrInvalid, "nope", "HPF")
	_, err = w.ctl.SetPolicy(ctx, control.PolicyRequest{Name: "hpf/nope"})
	wantError(t, err, control.ErrInvalid, "hpf/nope", "HPF/in-time")
	_, err = w.ctl.SetMode(ctx, control.ModeRequest{Mode: "nope"})
	wantError(t, err, control.ErrInvalid, "live")
	if m, err := w.ctl.SetMode(ctx, control.ModeRequest{Mode: "level", Level: 2}); err != nil || m.Level != 2 {
		t.Errorf("%+v %v", m, err)
	}
	if _, err := w.ctl.Suspend(ctx, pid); err != nil {
		t.Fatal(err)
	}
	await(t, "stopped again", w.stopped(t, pid, 1))
	// After SIGTERM every process runs and the sockets are gone.
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if a := w.account(t, pid); a.Enables < probes+2 { // more than one for level 2: see docs/platforms/nvidia.md
		t.Errorf("%d enables after the daemon's end", a.Enables)
	}
	for _, name := range []string{"xsched.sock", "control.sock"} {
		if _, err := os.Lstat(filepath.Join(w.dir, name)); err == nil {
			t.Errorf("%s left behind", name)
		}
	}
}

func TestSlicesAreSetAndRestored(t *testing.T) {
	w := newWorld(t)
	stop := w.serve(t, nil)
	low := startProgram(t, "app", w.vgpuPath(), w.sockPath())
	high := startProgram(t, "app", w.vgpuPath(), w.sockPath())
	await(t, "both known", func() bool { s, err := w.ctl.Stats(ctx); return err == nil && s.Queues == 2 })
	native := w.account(t, low.Process.Pid).SliceNS
	if _, err := w.ctl.Hint(ctx, control.HintRequest{PID: high.Process.Pid, Priority: new(int32(10))}); err != nil {
		t.Fatal(err)
	}
	await(t, "low's slice is short", func() bool { return w.account(t, low.Process.Pid).SliceNS == 1000 })
	await(t, "high's slice is long", func() bool { return w.account(t, high.Process.Pid).SliceNS > native })
	if err := stop(); err != nil {
		t.Error(err)
	}
	for _, p := range []int{low.Process.Pid, high.Process.Pid} {
		if got := w.account(t, p).SliceNS; got != native {
			t.Errorf("slice %d ns left, was %d", got, native)
		}
	}
}

func TestAttach(t *testing.T) {
	w := newWorld(t)
	w.serve(t, nil)
	app := startProgram(t, "app", w.vgpuPath())
	pid := app.Process.Pid
	r, err := w.ctl.Suspend(ctx, pid)
	if err != nil || !r.Attached || !r.Held || r.Level != 3 {
		t.Fatalf("%+v %v", r, err)
	}
	t.Log(r.Message)
	await(t, "channels stopped", w.stopped(t, pid, 1))
	st, err := w.ctl.Stats(ctx)
	if err != nil || st.Guardian.PID == 0 || st.Guardian.Attached != 1 {
		t.Fatalf("%+v %v", st.Guardian, err)
	}
	// While the engine is blocked the guardian restores the process; afterwards the daemon suspends
	// it again.
	probes := w.account(t, pid).Enables
	if _, err := w.ctl.Wedge(ctx, 400*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	took := await(t, "guardian sets it free", func() bool { return w.account(t, pid).Enables > probes })
	t.Logf("free %v after the engine was blocked", took)
	await(t, "suspended again", w.stopped(t, pid, 1))
	// After SIGKILL of the guardian another one takes over.
	_ = unix.Kill(st.Guardian.PID, unix.SIGKILL)
	await(t, "another guardian", func() bool {
		s, err := w.ctl.Stats(ctx)
		return err == nil && s.Guardian.Restarts == 1 && s.Guardian.PID != 0 && s.Guardian.PID != st.Guardian.PID
	})
	if _, err := w.ctl.Detach(ctx, pid); err != nil {
		t.Fatal(err)
	}
	await(t, "free after detach", func() bool { return w.account(t, pid).Stopped == 0 })
	await(t, "forgotten", func() bool { l, err := w.ctl.List(ctx); return err == nil && len(l.Processes) == 0 })
	_, err = w.ctl.Attach(ctx, os.Getppid())
	wantError(t, err, control.ErrNotFound, "can't be attached to: the process has no CUDA context: ")
	_, err = w.ctl.Attach(ctx, 1<<22+1)
	wantError(t, err, control.ErrNotFound)
}

// The daemon closes its duplicates when the process dies or calls exec.
func TestAttachedFilesAreLetGo(t *testing.T) {
	w := newWorld(t)
	w.serve(t, nil)
	for name, end := range map[string]func(p *program){
		"kill": func(p *program) { _ = p.Process.Kill() },
		"exec": func(p *program) { _, _ = p.in.WriteString("exec\n") },
	} {
		for _, how := range [][]string{{"app", w.vgpuPath()}, {"app", w.vgpuPath(), w.sockPath()}} {
			app := startProgram(t, how...)
			pid := app.Process.Pid
			await(t, "suspended", func() bool { _, err := w.ctl.Suspend(ctx, pid); return err == nil })
			await(t, "stopped", func() bool { return w.account(t, pid).Disables > 0 })
			end(app)
			took := await(t, "its memory is freed", func() bool { return !w.account(t, pid).Alive })
			t.Logf("%s, attached %v: freed after %v", name, len(how) == 2, took)
			await(t, "forgotten", func() bool { l, err := w.ctl.List(ctx); return err == nil && len(l.Processes) == 0 })
		}
	}
}

// After SIGKILL of the daemon an attached process runs with its own timeslice.
func TestKilledDaemonWithAttachedProcess(t *testing.T) {
	w := newWorld(t)
	d := startProgram(t, "daemon", w.dir)
	app := startProgram(t, "app", w.vgpuPath())
	pid := app.Process.Pid
	native := w.account(t, pid).SliceNS
	if _, err := w.ctl.Suspend(ctx, pid); err != nil {
		t.Fatal(err)
	}
	await(t, "stopped", w.stopped(t, pid, 1))
	st, err := w.ctl.Stats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	probes := w.account(t, pid).Enables
	_ = d.Process.Kill()
	took := await(t, "runs again", func() bool { return w.account(t, pid).Enables > probes })
	t.Logf("free %v after kill -9 of the daemon", took)
	await(t, "own slice", func() bool { return w.account(t, pid).SliceNS == native })
	await(t, "the guardian ends", func() bool { return errors.Is(unix.Kill(st.Guardian.PID, 0), unix.ESRCH) || zombie(st.Guardian.PID) })
	// A new daemon replaces the dead one.
	startProgram(t, "daemon", w.dir)
	if v, err := w.ctl.Version(ctx); err != nil || v.PID == d.Process.Pid {
		t.Errorf("%+v %v", v, err)
	}
}

// zombie accounts for test containers without an init that reaps orphans.
func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && strings.Contains(string(b), "State:\tZ")
}

// While the daemon is stopped the guardian acts; once continued, the daemon starts over.
func TestStoppedDaemonWithAttachedProcess(t *testing.T) {
	w := newWorld(t)
	d := startProgram(t, "daemon", w.dir)
	app := startProgram(t, "app", w.vgpuPath())
	pid := app.Process.Pid
	if _, err := w.ctl.Suspend(ctx, pid); err != nil {
		t.Fatal(err)
	}
	await(t, "stopped", w.stopped(t, pid, 1))
	probes := w.account(t, pid).Enables
	_ = d.Process.Signal(unix.SIGSTOP)
	took := await(t, "runs again", func() bool { return w.account(t, pid).Enables > probes })
	t.Logf("free %v after SIGSTOP", took)
	time.Sleep(100 * time.Millisecond)
	_ = d.Process.Signal(unix.SIGCONT)
	await(t, "suspended again", w.stopped(t, pid, 1))
	l, err := w.ctl.List(ctx)
	if err != nil || len(l.Processes) != 1 || !l.Processes[0].Held {
		t.Errorf("%+v %v", l, err)
	}
}

// A device that hangs for one process is reported and delays no other process.
func TestNeverAnsweringDevice(t *testing.T) {
	w := newWorld(t)
	w.serve(t, nil)
	bad := startProgram(t, "app", w.vgpuPath(), w.sockPath())
	good := startProgram(t, "app", w.vgpuPath(), w.sockPath())
	level3 := func() bool {
		l, err := w.ctl.List(ctx)
		n := 0
		for _, p := range l.Processes {
			if len(p.Queues) == 1 && p.Queues[0].Level == 3 {
				n++
			}
		}
		return err == nil && n == 2
	}
	await(t, "level 3", level3)
	if err := w.device.SetFault(fmt.Sprintf("never-answer:%d", bad.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*program{bad, good} {
		if _, err := w.ctl.Suspend(ctx, p.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "the good one is stopped", w.stopped(t, good.Process.Pid, 1))
	await(t, "the bad one shows", func() bool {
		s, err := w.ctl.Stats(ctx)
		for _, x := range s.Targets {
			if x.PID == bad.Process.Pid && x.StuckSinceNS != 0 && x.StuckForMS > 0 {
				return true
			}
		}
		return err != nil
	})
	_ = bad.Process.Kill()
	await(t, "the bad one is let go", func() bool { return !w.account(t, bad.Process.Pid).Alive })
}

func TestStartErrors(t *testing.T) {
	w := newWorld(t)
	w.serve(t, nil)
	_, err := daemon.Start(options(w.dir))
	if !errors.Is(err, session.ErrRunning) {
		t.Errorf("second daemon: %v", err)
	}
	if _, err := w.ctl.Version(ctx); err != nil {
		t.Errorf("the first daemon does not respond: %v", err)
	}
	o := options(t.TempDir())
	o.Policy = "nope"
	_, err = daemon.Start(o)
	wantError(t, err, control.ErrInvalid, "nope")
}

// A daemon whose engine loop has ended schedules nothing, and must not stay.
func TestEndOfTheLoopEndsTheDaemon(t *testing.T) {
	w := newWorld(t)
	w.serve(t, nil)
	select {
	case <-w.daemon.Failed():
		t.Fatal("the daemon failed before")
	default:
	}
	w.daemon.StopLoop()
	select {
	case <-w.daemon.Failed():
	case <-time.After(10 * time.Second):
		t.Fatal("the daemon goes on without its engine loop")
	}
	if err := w.daemon.Failure(); err == nil || !strings.Contains(err.Error(), "engine loop") {
		t.Errorf("%v", err)
	}
}

// Without a driver every level above 1 is refused with the reason.
func TestNoDriver(t *testing.T) {
	if _, err := os.Stat("/dev/nvidiactl"); err == nil {
		t.Skip("this machine has a driver")
	}
	w := newWorld(t)
	w.serve(t, func(o *daemon.Options) { o.Virtual = false })
	app := startProgram(t, "app", w.vgpuPath(), w.sockPath())
	pid := app.Process.Pid
	await(t, "known", func() bool {
		l, err := w.ctl.List(ctx)
		return err == nil && len(l.Processes) == 1 && len(l.Processes[0].Queues) == 1
	})
	l, _ := w.ctl.List(ctx)
	if q := l.Processes[0].Queues[0]; q.Level != 1 || q.LevelReason == "" {
		t.Errorf("%+v", q)
	}
	_, err := w.ctl.Hint(ctx, control.HintRequest{PID: pid, Level: new(3)})
	wantError(t, err, control.ErrNotSupported, "no NVIDIA kernel module")
	_, err = w.ctl.SetMode(ctx, control.ModeRequest{Mode: "level", Level: 3})
	wantError(t, err, control.ErrNotSupported)
	_, err = w.ctl.Wedge(ctx, time.Second)
	wantError(t, err, control.ErrNotSupported, "--virtual")
	if r, err := w.ctl.Suspend(ctx, pid); err != nil || r.Level != 1 {
		t.Errorf("%+v %v", r, err)
	}
}

// Permissions are checked on the daemon directly, because the socket's peer is always this user.
func TestPermissions(t *testing.T) {
	w := newWorld(t)
	w.serve(t, nil)
	c := w.daemon
	app := startProgram(t, "app", w.vgpuPath(), w.sockPath())
	pid := app.Process.Pid
	await(t, "known", func() bool {
		l, err := c.List(ctx, control.Caller{User: identity.OnHost(12345)})
		return err == nil && len(l.Processes) == 1
	})
	stranger := control.Caller{User: identity.OnHost(12345), PID: 1}
	_, err := c.Suspend(ctx, stranger, control.ProcessRequest{PID: pid})
	wantError(t, err, control.ErrNotAllowed, "uid")
	for _, f := range model.HintFields() {
		for _, queue := range []*uint32{nil, new(uint32(0))} {
			r := control.HintRequest{PID: pid, Queue: queue}
			r.Set(&f, model.HintValue{Number: f.Max, Text: "x"})
			_, err = c.Hint(ctx, stranger, r)
			wantError(t, err, control.ErrNotAllowed)
		}
	}
	_, err = c.Policy(ctx, stranger, control.PolicyRequest{Name: "FIFO"})
	wantError(t, err, control.ErrNotAllowed)
	_, err = c.Mode(ctx, stranger, control.ModeRequest{Mode: "off"})
	wantError(t, err, control.ErrNotAllowed)
	_, err = c.Wedge(ctx, stranger, control.WedgeRequest{DurationMS: 1})
	wantError(t, err, control.ErrNotAllowed)
	if p, err := c.Policy(ctx, stranger, control.PolicyRequest{}); err != nil || p.Name == "" {
		t.Errorf("reading: %+v %v", p, err)
	}
}
