// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/daemon"
)

// Client numbers grow as long as the device lives. Those of short-lived processes lie between the
// newest and the wanted one.
func TestAttachAfterManyClients(t *testing.T) {
	w := newWorld(t)
	w.serve(t, nil)
	app := startProgram(t, "app", w.vgpuPath())
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: w.vgpuPath()}); err != nil {
		t.Fatal(err)
	}
	r := rm{fd}
	for range 500 { // few enough for the walk's time limit on a slow machine
		client, err := r.alloc(0, 0, 0x41, nil)
		if err != nil {
			t.Fatal(err)
		}
		arg := make([]byte, 16)
		binary.NativeEndian.PutUint32(arg, client)
		binary.NativeEndian.PutUint32(arg[8:], client)
		if err := r.ioctl(0x29, 16, arg, nil); err != nil {
			t.Fatal(err)
		}
	}
	reply, err := w.ctl.Suspend(ctx, app.Process.Pid)
	if err != nil || !reply.Attached {
		t.Fatalf("%+v %v", reply, err)
	}
	await(t, "stopped", w.stopped(t, app.Process.Pid, 1))
}

// One RM client with channels on two GPUs: each channel is stopped on its own GPU.
func TestAttachTwoGPUs(t *testing.T) {
	w := newWorld(t)
	w.serve(t, nil)
	app := startProgram(t, "app", w.vgpuPath(), "both")
	pid := app.Process.Pid
	if _, err := w.ctl.Suspend(ctx, pid); err != nil {
		t.Fatal(err)
	}
	await(t, "stopped on both", w.stopped(t, pid, 2))
	l, err := w.ctl.List(ctx)
	if err != nil || len(l.Processes) != 1 || len(l.Processes[0].Queues) != 2 {
		t.Fatalf("%+v %v", l, err)
	}
	if q := l.Processes[0].Queues; q[0].Device == q[1].Device || q[0].Level != 3 || q[1].Level != 3 {
		t.Errorf("%+v", q)
	}
	if _, err := w.ctl.Detach(ctx, pid); err != nil {
		t.Fatal(err)
	}
	await(t, "forgotten", func() bool { l, err := w.ctl.List(ctx); return err == nil && len(l.Processes) == 0 })
}

// The common case: an attached batch job below a latency-critical program with the shim. The batch
// job gets a short timeslice, is suspended in mode level, and still gets starvation grants.
func TestAttachedLowBesideShimmedHigh(t *testing.T) {
	w := newWorld(t)
	w.serve(t, func(o *daemon.Options) { o.StarvationBound = 300 * time.Millisecond; o.Quantum = 20 * time.Millisecond })
	low := startProgram(t, "app", w.vgpuPath())
	high := startProgram(t, "app", w.vgpuPath(), w.sockPath())
	await(t, "the high is known", func() bool { s, err := w.ctl.Stats(ctx); return err == nil && s.Queues == 1 })
	if _, err := w.ctl.Hint(ctx, control.HintRequest{PID: high.Process.Pid, Priority: new(int32(10))}); err != nil {
		t.Fatal(err)
	}
	native := w.account(t, low.Process.Pid).SliceNS
	r, err := w.ctl.AttachWith(ctx, control.ProcessRequest{PID: low.Process.Pid, Priority: new(int32(-10))})
	if err != nil || !r.Attached || r.Level != 3 || !strings.Contains(r.Message, " in ") || !strings.HasSuffix(r.Message, "; attach it again after a restart of the daemon") {
		t.Fatalf("%+v %v", r, err)
	}
	await(t, "the hardware prefers the high", func() bool {
		return w.account(t, low.Process.Pid).SliceNS < native && w.account(t, high.Process.Pid).SliceNS > native
	})
	// Without timeslices it is suspended for the busy high, and the starvation bound grants turns.
	if _, err := w.ctl.SetMode(ctx, control.ModeRequest{Mode: "level", Level: 3}); err != nil {
		t.Fatal(err)
	}
	await(t, "own slices again", func() bool { return w.account(t, low.Process.Pid).SliceNS == native })
	await(t, "stopped", func() bool { return w.account(t, low.Process.Pid).Disables >= 1 })
	turns := w.account(t, low.Process.Pid).Enables
	await(t, "turns", func() bool { return w.account(t, low.Process.Pid).Enables >= turns+2 })
	if w.account(t, high.Process.Pid).Disables > w.account(t, low.Process.Pid).Disables {
		t.Error("the high was stopped more often than the low")
	}
	if _, err := w.ctl.Detach(ctx, low.Process.Pid); err != nil {
		t.Fatal(err)
	}
	await(t, "the low is free", func() bool {
		a := w.account(t, low.Process.Pid)
		return a.Enables >= a.Disables && a.SliceNS == native
	})
	_, err = w.ctl.AttachWith(ctx, control.ProcessRequest{PID: low.Process.Pid, Priority: new(int32(999))})
	wantError(t, err, control.ErrInvalid, "999")
	_, err = w.ctl.AttachWith(ctx, control.ProcessRequest{PID: low.Process.Pid, Utilization: new(101)})
	wantError(t, err, control.ErrInvalid, "101")
}

// An attached program without CPU use counts as idle, so that lower ones run. Once suspended, it
// counts as waiting again.
func TestAttachedIdleIsInferred(t *testing.T) {
	w := newWorld(t)
	w.serve(t, nil)
	app := startProgram(t, "app", w.vgpuPath())
	pid := app.Process.Pid
	if _, err := w.ctl.Attach(ctx, pid); err != nil {
		t.Fatal(err)
	}
	state := func() string {
		l, err := w.ctl.List(ctx)
		if err != nil || len(l.Processes) != 1 || len(l.Processes[0].Queues) != 1 {
			return ""
		}
		return l.Processes[0].Queues[0].State
	}
	await(t, "busy at first", func() bool { return state() == "running" })
	await(t, "idle", func() bool { return state() == "idle" })
	if _, err := w.ctl.Suspend(ctx, pid); err != nil {
		t.Fatal(err)
	}
	await(t, "busy while it is stopped", func() bool {
		l, err := w.ctl.List(ctx)
		return err == nil && l.Processes[0].Queues[0].Busy
	})
}

// A GPU's levels are probed once per driver, and the next daemon reuses the result.
func TestLevelsAreProbedOnce(t *testing.T) {
	w := newWorld(t)
	stop := w.serve(t, nil)
	level3 := func(n int) func() bool {
		return func() bool {
			l, err := w.ctl.List(ctx)
			k := 0
			for _, p := range l.Processes {
				if len(p.Queues) == 1 && p.Queues[0].Level == 3 && p.Queues[0].LevelReason == "" {
					k++
				}
			}
			return err == nil && k == n
		}
	}
	first := startProgram(t, "app", w.vgpuPath(), w.sockPath())
	await(t, "first at level 3", level3(1))
	second := startProgram(t, "app", w.vgpuPath(), w.sockPath())
	await(t, "second at level 3", level3(2))
	if a, b := w.account(t, first.Process.Pid).Enables, w.account(t, second.Process.Pid).Enables; a != 1 || b != 0 {
		t.Errorf("%d and %d probes, want 1 and 0", a, b)
	}
	d, err := w.ctl.Devices(ctx)
	if err != nil || len(d.Devices) != 2 || !d.Devices[0].Probed || d.Devices[0].MaxLevel != 3 || d.Devices[1].Probed {
		t.Errorf("%+v %v", d, err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(w.dir, "levels-virtual.json")); err != nil || !strings.Contains(string(b), `"0000:01:00.0"`) {
		t.Errorf("%s %v", b, err)
	}
	w.ctl = client.New(filepath.Join(w.dir, "control.sock"))
	defer w.ctl.Close()
	w.serve(t, nil)
	third := startProgram(t, "app", w.vgpuPath(), w.sockPath())
	await(t, "third at level 3", level3(1))
	if n := w.account(t, third.Process.Pid).Enables; n != 0 {
		t.Errorf("%d probes despite a cached result", n)
	}
}

// List shows why a program can't have the forced level.
func TestForcedLevelIsShown(t *testing.T) {
	w := newWorld(t)
	w.serve(t, nil)
	app := startProgram(t, "app", w.vgpuPath())
	if _, err := w.ctl.Attach(ctx, app.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if _, err := w.ctl.SetMode(ctx, control.ModeRequest{Mode: "level", Level: 1}); err != nil {
		t.Fatal(err)
	}
	l, err := w.ctl.List(ctx)
	if err != nil || len(l.Processes) != 1 {
		t.Fatal(l, err)
	}
	if q := l.Processes[0].Queues[0]; q.Level != 1 || !strings.Contains(q.LevelReason, "no shim") {
		t.Errorf("%+v", q)
	}
}

// A later context of an attached program on another GPU is found, controlled and guarded.
func TestAttachedCreatesContext(t *testing.T) {
	w := newWorld(t)
	d := startProgram(t, "daemon", w.dir)
	app := startProgram(t, "app", w.vgpuPath())
	pid := app.Process.Pid
	if _, err := w.ctl.Suspend(ctx, pid); err != nil {
		t.Fatal(err)
	}
	await(t, "stopped", w.stopped(t, pid, 1))
	if _, err := app.in.WriteString("more\n"); err != nil {
		t.Fatal(err)
	}
	await(t, "stopped on the other GPU too", w.stopped(t, pid, 2))
	_ = d.Process.Kill()
	await(t, "free on both", w.free(t, pid))
}
