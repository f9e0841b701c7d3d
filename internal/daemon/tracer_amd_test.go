// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/driver/amd"
	"xsched/internal/guardian"
	vamd "xsched/internal/virtual/amd"
	"xsched/internal/virtual/amd/kfdtest"
	"xsched/internal/wire"
)

// statusOf reads a number of /proc/PID/status; -1: missing.
func statusOf(pid int, name string) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, ok := strings.Cut(string(b), name+":")
	f := strings.Fields(rest)
	if err != nil || !ok || len(f) == 0 {
		return -1
	}
	n, err := strconv.Atoi(f[0])
	if err != nil {
		return -1
	}
	return n
}

// tracerOf returns a process's tracer; 0: none.
func tracerOf(pid int) int {
	thread := statusOf(pid, "TracerPid")
	if thread <= 0 {
		return 0
	}
	return max(statusOf(thread, "Tgid"), 0)
}

// childrenOf returns a process's unreaped children.
func childrenOf(t *testing.T, pid int) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range all {
		if n, err := strconv.Atoi(filepath.Base(dir)); err == nil && statusOf(n, "PPid") == pid {
			pids = append(pids, n)
		}
	}
	return pids
}

func filesOf(t *testing.T, pid int) int {
	t.Helper()
	e, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

// isStopped reports that a process with work makes no progress.
func isStopped(p *kfdtest.Program) bool {
	before := p.Ask("r")
	p.Ask("w")
	time.Sleep(20 * time.Millisecond)
	return p.Ask("r") == before
}

// traceWorld is a daemon process on the virtual device with a suspended target.
func traceWorld(t *testing.T) (w *world, server *program, p *kfdtest.Program) {
	t.Helper()
	w = newWorld(t)
	d := kfdtest.ServeIn(t, vamd.DefaultConfig(), w.dir)
	p = d.Target(t)
	server = startProgram(t, "daemon", w.dir, "amd")
	// The first use opens files that stay open.
	if _, err := w.ctl.Suspend(ctx, p.PID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.ctl.Detach(ctx, p.PID); err != nil {
		t.Fatal(err)
	}
	if pid := tracerOf(p.PID); pid != 0 {
		t.Fatalf("traced by %d after detach", pid)
	}
	files, children := filesOf(t, server.Process.Pid), len(childrenOf(t, server.Process.Pid)) // the quarantine process stays
	if _, err := w.ctl.Suspend(ctx, p.PID); err != nil {
		t.Fatal(err)
	}
	await(t, "suspended", func() bool { return isStopped(p) })
	if pid := tracerOf(p.PID); pid == 0 || pid == server.Process.Pid {
		t.Fatalf("traced by %d, the daemon is %d", pid, server.Process.Pid)
	}
	t.Cleanup(func() {
		if t.Failed() || tracerOf(p.PID) != 0 || zombie(server.Process.Pid) {
			return
		}
		await(t, "no process is left", func() bool { return len(childrenOf(t, server.Process.Pid)) <= children })
		await(t, "no file is left", func() bool { return filesOf(t, server.Process.Pid) <= files })
	})
	return w, server, p
}

// endTrace releases the target; traceWorld then checks for leaks.
func endTrace(t *testing.T, w *world, p *kfdtest.Program) {
	t.Helper()
	if _, err := w.ctl.Detach(ctx, p.PID); err != nil {
		t.Fatal(err)
	}
	p.Ask("w")
	p.Ask("f")
	if pid := tracerOf(p.PID); pid != 0 {
		t.Errorf("traced by %d after detach", pid)
	}
}

// A stopped daemon leaves no process suspended and no signal pending. Once continued, it notices
// and starts over.
func TestAttachAMDDaemonStopped(t *testing.T) {
	w, server, p := traceWorld(t)
	best, numbers := time.Hour, 0
	for range 3 {
		p.Ask("w")
		start := time.Now()
		_ = server.Process.Signal(unix.SIGSTOP)
		p.Ask("f")
		best = min(best, time.Since(start))
		for range 150 { // queued signals, so that merging can't hide a loss
			if err := kfdtest.SendNumber(p.PID, numbers); err != nil {
				t.Fatal(err)
			}
			numbers++
			time.Sleep(time.Millisecond)
		}
		if isStopped(p) {
			t.Error("a stopped daemon suspended the process again")
		}
		_ = server.Process.Signal(unix.SIGCONT)
		await(t, "suspended again", func() bool { return isStopped(p) })
	}
	t.Logf("free %v after SIGSTOP", best)
	if best > 200*time.Millisecond {
		t.Errorf("free %v after SIGSTOP, want 200 ms at most", best)
	}
	l, err := w.ctl.List(ctx)
	if err != nil || len(l.Processes) != 1 || !l.Processes[0].Held {
		t.Errorf("%+v %v", l, err)
	}
	st, err := w.ctl.Stats(ctx)
	if err != nil || st.Undone == 0 || st.Guardian.Attached != 1 || st.Guardian.Restarts != 0 {
		t.Errorf("%d undone, %+v %v", st.Undone, st.Guardian, err)
	}
	var alarms, merged, expected, got, disordered int
	if _, err := fmt.Sscanf(p.Ask("s"), "S %d %d %d %d %d", &alarms, &merged, &expected, &got, &disordered); err != nil {
		t.Fatal(err)
	}
	if lost := expected - alarms - merged; lost < -1 || lost > 1 {
		t.Errorf("%d of %d alarms lost", lost, expected)
	}
	if got != numbers || disordered != 0 {
		t.Errorf("%d of %d numbered signals, %d out of order", got, numbers, disordered)
	}
	if _, err := w.ctl.Resume(ctx, p.PID); err != nil {
		t.Fatal(err)
	}
	p.Ask("f")
	endTrace(t, w, p)
}

// A killed or stopped supervisor frees its target and is replaced; the suspension is applied again.
func TestAttachAMDTracerReplaced(t *testing.T) {
	for name, sig := range map[string]unix.Signal{"killed": unix.SIGKILL, "stopped": unix.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			w, _, p := traceWorld(t)
			first := tracerOf(p.PID)
			p.Ask("w")
			before := p.Ask("r")
			_ = unix.Kill(first, sig)
			await(t, "another tracer", func() bool { n := tracerOf(p.PID); return n != 0 && n != first })
			if after := p.Ask("r"); after == before {
				t.Errorf("the process did not run in between: %s", after)
			}
			await(t, "suspended again", func() bool { return isStopped(p) })
			if st, err := w.ctl.Stats(ctx); err != nil || st.Guardian.Restarts != 1 || st.Guardian.Attached != 1 {
				t.Errorf("%+v %v", st.Guardian, err)
			}
			endTrace(t, w, p)
		})
	}
}

// Supervisors that keep dying are not replaced forever: the process runs and is released.
func TestAttachAMDTracerEndsTooOften(t *testing.T) {
	w, _, p := traceWorld(t)
	seen := map[int]bool{}
	await(t, "let go", func() bool {
		if n := tracerOf(p.PID); n != 0 {
			seen[n] = true
			_ = unix.Kill(n, unix.SIGKILL)
		}
		l, err := w.ctl.List(ctx)
		return err == nil && len(l.Processes) == 0
	})
	if len(seen) < 2 {
		t.Errorf("%d tracers", len(seen))
	}
	p.Ask("w")
	p.Ask("f")
}

// A killed daemon leaves no process suspended or traced, and no supervisor.
func TestAttachAMDDaemonKilled(t *testing.T) {
	_, server, p := traceWorld(t)
	tracer := tracerOf(p.PID)
	p.Ask("w")
	_ = server.Process.Kill()
	p.Ask("f")
	await(t, "the tracer ends", func() bool { return unix.Kill(tracer, 0) != nil || zombie(tracer) })
	if pid := tracerOf(p.PID); pid != 0 {
		t.Errorf("traced by %d", pid)
	}
}

// A supervisor suspends and resumes under a lease from another process, and errors keep their
// class. Durations are only logged; benchmarks judge them.
func TestTracerSuspendsAndResumes(t *testing.T) {
	d := kfdtest.Serve(t, vamd.DefaultConfig())
	p := d.Target(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := guardian.NewClient(guardian.Options{Command: []string{self, "guardian"}, Log: slog.New(slog.DiscardHandler)})
	defer c.Close()
	tracer, err := amd.StartTracer(c, slog.New(slog.DiscardHandler), p.PID, d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tracer.Close() }()
	if _, err := tracer.Suspend(amd.AllGPUs, amd.AllQueues, amd.GraceDefault); err == nil {
		t.Error("suspended without a lease")
	}
	page, memfd, err := wire.NewPage(1)
	if err != nil {
		t.Fatal(err)
	}
	defer page.Release()
	err = tracer.Guard(memfd)
	_ = unix.Close(memfd)
	if err != nil {
		t.Fatal(err)
	}
	var suspend, resume []time.Duration
	for range 20 {
		page.WriteLease(uint64(len(suspend)+1), clock.Now().Add(10*time.Second))
		start, end := time.Now(), time.Now().Add(10*time.Second)
		page.Heartbeat(clock.Now())
		results, err := tracer.Suspend(amd.AllGPUs, amd.ComputeQueues, amd.GraceDefault)
		for errors.Is(err, amd.ErrStale) && time.Now().Before(end) { // the machine stalled between both
			start = time.Now()
			page.Heartbeat(clock.Now())
			results, err = tracer.Suspend(amd.AllGPUs, amd.ComputeQueues, amd.GraceDefault)
		}
		if err != nil || len(results) != 1 || !results[0].Done() {
			t.Fatalf("%+v %v", results, err)
		}
		suspend = append(suspend, time.Since(start))
		page.Heartbeat(clock.Now())
		start = time.Now()
		if _, err := tracer.Resume(amd.AllGPUs); err != nil {
			t.Fatal(err)
		}
		resume = append(resume, time.Since(start))
		page.WriteLeaseDeadline(0)
	}
	slices.Sort(suspend)
	slices.Sort(resume)
	t.Logf("on the virtual GPU: suspend median %v, resume %v", suspend[10], resume[10])
	queues, err := tracer.Queues()
	if err != nil || len(queues) != 2 || queues[0].SDMA() || queues[0].Ring == 0 || !queues[1].SDMA() {
		t.Errorf("%+v %v", queues, err)
	}
	// Errors keep their class across the socket.
	if _, err := amd.StartTracer(c, slog.New(slog.DiscardHandler), p.PID, d.Socket); !errors.Is(err, amd.ErrTraced) {
		t.Errorf("a second tracer: %v", err)
	}
	_ = unix.Kill(p.PID, unix.SIGKILL)
	select {
	case <-tracer.Ended():
	case <-time.After(10 * time.Second):
		t.Fatal("the end of the process was not detected")
	}
	if _, err := tracer.Resume(amd.AllGPUs); !errors.Is(err, amd.ErrGone) {
		t.Errorf("after its end: %v", err)
	}
}

// Daemon and supervisor killed together: the driver resumes the process without either.
func TestAttachAMDBothKilled(t *testing.T) {
	_, server, p := traceWorld(t)
	tracer := tracerOf(p.PID)
	p.Ask("w")
	_ = unix.Kill(tracer, unix.SIGKILL)
	_ = server.Process.Kill()
	start := time.Now()
	p.Ask("f")
	t.Logf("free %v after the kill", time.Since(start))
	if pid := tracerOf(p.PID); pid != 0 {
		t.Errorf("traced by %d", pid)
	}
}
