// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
)

// silence suspends a process and then hangs its device.
func silence(t *testing.T, w *world, pid int) {
	t.Helper()
	if _, err := w.ctl.Suspend(ctx, pid); err != nil {
		t.Fatal(err)
	}
	await(t, "stopped", w.stopped(t, pid, 1))
	if err := w.device.SetFault(fmt.Sprintf("never-answer:%d", pid)); err != nil {
		t.Fatal(err)
	}
}

// awaitFree waits until the process runs: after the device responds, it is enabled twice, stopped
// and enabled.
func awaitFree(t *testing.T, w *world, pid int) {
	t.Helper()
	before := w.account(t, pid).Enables
	time.Sleep(300 * time.Millisecond)
	if err := w.device.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	took := await(t, "free", func() bool { a := w.account(t, pid); return a.Enables >= before+3 && a.Enables > a.Disables })
	t.Logf("free %v after the device answered again", took)
}

// A detach while the device hangs must not report success before the process runs.
func TestDetachWhileDeviceIsSilent(t *testing.T) {
	w := newWorld(t)
	w.serve(t, nil)
	app := startProgram(t, "app", w.vgpuPath())
	pid := app.Process.Pid
	silence(t, w, pid)
	_, err := w.ctl.Detach(ctx, pid)
	wantError(t, err, control.ErrUnavailable, "not free yet")
	awaitFree(t, w, pid)
	await(t, "the guardian lets go", func() bool {
		s, err := w.ctl.Stats(ctx)
		return err == nil && s.Guardian.Attached == 0
	})
	if l, err := w.ctl.List(ctx); err != nil || len(l.Processes) != 0 {
		t.Errorf("%+v %v", l, err)
	}
}

// On shutdown the guardian outlives the daemon until the process is restored.
func TestLongDaemonEndsWhileDeviceIsSilent(t *testing.T) {
	w := newWorld(t)
	d := startProgram(t, "daemon", w.dir)
	app := startProgram(t, "app", w.vgpuPath())
	pid := app.Process.Pid
	silence(t, w, pid)
	s, err := w.ctl.Stats(ctx)
	if err != nil || s.Guardian.PID == 0 {
		t.Fatalf("%+v %v", s.Guardian, err)
	}
	_ = d.Process.Signal(unix.SIGTERM)
	_, _ = d.Process.Wait()
	awaitFree(t, w, pid)
	await(t, "the guardian ends", func() bool { return unix.Kill(s.Guardian.PID, 0) != nil || zombie(s.Guardian.PID) })
}

// Detach reports what it verified, and a timeslice that the driver did not restore is an error.
func TestDetachReportsWhatItVerified(t *testing.T) {
	w := newWorld(t)
	w.serve(t, nil)
	app := startProgram(t, "app", w.vgpuPath())
	pid := app.Process.Pid
	if _, err := w.ctl.Suspend(ctx, pid); err != nil {
		t.Fatal(err)
	}
	await(t, "stopped", w.stopped(t, pid, 1))
	r, err := w.ctl.Detach(ctx, pid)
	if err != nil || !strings.Contains(r.Message, "is free: ") || !strings.Contains(r.Message, "1 timeslices restored") {
		t.Errorf("%+v %v", r, err)
	}
	if a := w.account(t, pid); a.Stopped != 0 {
		t.Errorf("%+v", a)
	}
	high := startProgram(t, "app", w.vgpuPath(), w.sockPath())
	await(t, "the high is known", func() bool { s, err := w.ctl.Stats(ctx); return err == nil && s.Queues == 1 })
	if _, err := w.ctl.Hint(ctx, control.HintRequest{PID: high.Process.Pid, Priority: new(int32(10))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.ctl.Attach(ctx, pid); err != nil {
		t.Fatal(err)
	}
	tiny := func() bool { return w.account(t, pid).SliceNS == 1000 }
	await(t, "a tiny slice that stays", func() bool { // the guardian restores it while the daemon stalls
		if w.device.ClearFaults() != nil || !tiny() {
			return false
		}
		return w.device.SetFault("timeslice-ignored") == nil && tiny()
	})
	_, err = w.ctl.Detach(ctx, pid)
	wantError(t, err, control.ErrUnavailable, "is 1 us after 2048 us were set")
}
