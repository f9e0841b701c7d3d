// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
	"xsched/internal/embedded"
	vamd "xsched/internal/virtual/amd"
	"xsched/internal/virtual/amd/kfdtest"
	vdevice "xsched/internal/virtual/device"
)

// owned starts the test program on the virtual device with the shim.
func owned(t *testing.T, w *world, d *kfdtest.Device, extra ...string) *kfdtest.Program {
	t.Helper()
	shim, err := embedded.Unpack(embedded.Shim)
	if errors.Is(err, embedded.ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := d.Command(t, kfdtest.Build(t, "kfdtarget", "", "shim/virtual/kfdtarget.c"))
	for _, kv := range d.Env {
		if library, ok := strings.CutPrefix(kv, "LD_PRELOAD="); ok {
			kv = "LD_PRELOAD=" + shim + ":" + library
		}
		extra = append(extra, kv)
	}
	cmd.Env = append(extra, "XSCHED_SOCKET="+filepath.Join(w.dir, "xsched.sock"))
	p := d.Run(t, cmd)
	if line := p.Line(); !strings.HasPrefix(line, "ready ") {
		t.Fatal(line)
	}
	return p
}

func processOf(t *testing.T, w *world, pid int) *control.Process {
	t.Helper()
	list, err := w.ctl.List(ctx)
	if err != nil {
		return nil
	}
	for i := range list.Processes {
		if list.Processes[i].PID == pid {
			return &list.Processes[i]
		}
	}
	return nil
}

func level2(t *testing.T, w *world, pid int) {
	t.Helper()
	await(t, "level 2 through its owner", func() bool {
		p := processOf(t, w, pid)
		return p != nil && len(p.Queues) == 1 && p.Queues[0].Level == 2 && p.Queues[0].Route == "owner"
	})
}

// An AMD program with the shim and an unhooked runtime: its queues alone bring it under control,
// and the shim pauses them.
func TestOwnerAMD(t *testing.T) {
	w := newWorld(t)
	w.serve(t, onAMD)
	d := kfdtest.ServeIn(t, vamd.DefaultConfig(), w.dir)
	p := owned(t, w, d)
	level2(t, w, p.PID)
	if q := processOf(t, w, p.PID).Queues[0]; q.Device != "0000:01:00.0" || q.LevelReason == "" {
		t.Errorf("%+v", q)
	}
	reply, err := w.ctl.Suspend(ctx, p.PID)
	if err != nil || reply.Attached || reply.Level != 2 {
		t.Fatalf("%+v %v", reply, err)
	}
	paused := func() bool {
		stats, err := w.ctl.Stats(ctx)
		return err == nil && stats.Suspends == stats.Resumes+1
	}
	await(t, "paused", paused)
	p.Ask("w")
	p.Ask("n") // a queue created meanwhile must not run either
	p.Ask("w")
	time.Sleep(30 * time.Millisecond)
	if got := p.Ask("r"); got != "R 0" {
		t.Errorf("a paused process has %s", got)
	}
	await(t, "the new queue is counted", func() bool { return processOf(t, w, p.PID).QueuesCaught == 1 })
	queues, err := w.ctl.Queues(ctx, p.PID)
	if err != nil || len(queues.Queues) != 3 || queues.Queues[2].Details["late"] != 1 || queues.Queues[0].Kind != "copy" || queues.Queues[1].Details["ring"] == 0 {
		t.Errorf("%+v %v", queues, err)
	}
	if _, err := w.ctl.Resume(ctx, p.PID); err != nil {
		t.Fatal(err)
	}
	p.Ask("f")
	if got := p.Ask("r"); got != "R 3" {
		t.Errorf("all work is done: %s", got)
	}
	stats, err := w.ctl.Stats(ctx)
	if err != nil || stats.SuspendTime.Count == 0 || stats.DriverSuspendTime.Count == 0 {
		t.Errorf("%+v %v", stats, err)
	}
	// Attach is refused, because the shim is connected.
	if _, err := w.ctl.Attach(ctx, p.PID); !errors.Is(err, control.ErrInvalid) {
		t.Errorf("attach: %v", err)
	}
	p.Send("q")
	await(t, "gone with its end", func() bool { return processOf(t, w, p.PID) == nil })
}

// A pause of ten queues takes one remap, and so does the resume, by the device's own count. A busy
// machine may end a pause early, which costs further ones, so the best of some rounds counts.
func TestOwnerAMDJoint(t *testing.T) {
	t.Setenv("XSCHED_AMD_SESSION", "1")
	const queues, rounds = 10, 20
	w := newWorld(t)
	w.serve(t, onAMD)
	d := kfdtest.ServeIn(t, vamd.DefaultConfig(), w.dir)
	p := owned(t, w, d)
	level2(t, w, p.PID)
	for range queues - 1 {
		p.Ask("n")
	}
	device, err := vdevice.Dial(d.Socket + vamd.WatchSuffix)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	remaps := func() uint64 {
		stats, err := device.Stats()
		if err != nil {
			t.Fatal(err)
		}
		return stats.Remaps
	}
	paused := func() bool {
		stats, err := w.ctl.Stats(ctx)
		return err == nil && stats.Suspends > stats.Resumes
	}
	done, best := 0, ^uint64(0)
	for i := 0; i < rounds && best > 2; i++ {
		before := remaps()
		if _, err := w.ctl.Suspend(ctx, p.PID); err != nil {
			t.Fatal(err)
		}
		await(t, "paused", paused)
		p.Ask("w") // a kernel on each queue
		if _, err := w.ctl.Resume(ctx, p.PID); err != nil {
			t.Fatal(err)
		}
		await(t, "resumed", func() bool { return !paused() })
		p.Ask("f")
		done += queues
		if got := p.Ask("r"); got != fmt.Sprintf("R %d", done) {
			t.Fatalf("all work is done: %s, want %d", got, done)
		}
		best = min(best, remaps()-before)
	}
	if best != 2 {
		t.Errorf("a pause and a resume of %d queues took at least %d remaps, want 2", queues, best)
	}
}

// The program keeps running when the daemon is killed or stopped, or its engine hangs.
func TestOwnerAMDFailsOpen(t *testing.T) {
	w := newWorld(t)
	d := kfdtest.ServeIn(t, vamd.DefaultConfig(), w.dir)
	server := startProgram(t, "daemon", w.dir, "amd")
	p := owned(t, w, d)
	hold := func() {
		t.Helper()
		level2(t, w, p.PID)
		if _, err := w.ctl.Suspend(ctx, p.PID); err != nil {
			t.Fatal(err)
		}
		before := p.Ask("r")
		await(t, "paused", func() bool {
			p.Ask("w")
			time.Sleep(10 * time.Millisecond)
			now := p.Ask("r")
			same := now == before
			before = now
			return same
		})
	}
	hold()
	if err := server.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	p.Ask("f") // heartbeat lost: the shim resumes
	if err := server.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := w.ctl.Resume(ctx, p.PID); err != nil {
		t.Fatal(err)
	}
	hold()
	_ = server.Process.Kill()
	p.Ask("f")
	_, _ = server.Process.Wait()
	_ = os.Remove(filepath.Join(w.dir, "control.sock"))
	server = startProgram(t, "daemon", w.dir, "amd")
	hold() // connected to the next daemon
	_ = server.Process.Signal(unix.SIGTERM)
	p.Ask("f") // an orderly shutdown resumes it too
}
