// SPDX-License-Identifier: Apache-2.0

package amd_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/driver/amd"
	"xsched/internal/model"
	vamd "xsched/internal/virtual/amd"
	"xsched/internal/virtual/amd/kfdtest"
)

func attach(t *testing.T, d *kfdtest.Device, pid int) *amd.Debugger {
	t.Helper()
	debugger, err := amd.AttachDebugger(pid, func() (amd.Transport, error) { return amd.DialVirtual(d.Socket) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = debugger.Close() })
	return debugger
}

// awaitCaught waits until new queues are suspended too.
func awaitCaught(t *testing.T, d *amd.Debugger, want int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		n, err := d.Caught()
		if err != nil {
			t.Fatal(err)
		}
		if n >= want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d new queues were caught", n, want)
		}
	}
}

func TestDebuggerStopsAndResumes(t *testing.T) {
	for _, variant := range []vamd.Variant{vamd.Upstream, vamd.DKMS} {
		t.Run(string(variant), func(t *testing.T) {
			config := vamd.DefaultConfig()
			config.Variant = variant
			d := kfdtest.Serve(t, config)
			p := d.Target(t)
			debugger := attach(t, d, p.PID)
			p.Ask("w")
			done := p.Ask("f")
			queues, err := debugger.Queues()
			if err != nil || len(queues) != 2 || queues[0].SDMA() || !queues[1].SDMA() {
				t.Fatalf("%+v %v", queues, err)
			}
			results, err := debugger.Suspend(amd.AllGPUs, amd.ComputeQueues, amd.GraceDefault)
			if err != nil || len(results) != 1 || !results[0].Done() {
				t.Fatalf("%+v %v", results, err)
			}
			p.Ask("w")
			time.Sleep(30 * time.Millisecond)
			if got := p.Ask("r"); got != "R 1" {
				t.Errorf("a suspended queue has %s", got)
			}
			// A queue created during a suspension is suspended without a request.
			p.Ask("n")
			awaitCaught(t, debugger, 1)
			p.Ask("w")
			time.Sleep(30 * time.Millisecond)
			if got := p.Ask("r"); got != "R 1" {
				t.Errorf("suspended queues have %s", got)
			}
			if results, err := debugger.Resume(amd.AllGPUs); err != nil || len(results) != 3 {
				t.Fatalf("%+v %v", results, err)
			}
			if got := p.Ask("f"); got == done {
				t.Errorf("nothing was executed: %s", got)
			}
			if got := p.Ask("r"); got != "R 4" {
				t.Errorf("after the resume: %s", got)
			}
		})
	}
}

// A target under a 1 kHz SIGALRM and numbered signals loses none.
func TestSignalsFlow(t *testing.T) {
	d := kfdtest.Serve(t, vamd.DefaultConfig())
	p := d.Target(t)
	debugger := attach(t, d, p.PID)
	const numbers = 500
	for i := range numbers {
		// These signals queue, so merging can't hide a loss.
		if err := kfdtest.SendNumber(p.PID, i); err != nil {
			t.Fatal(err)
		}
		if i%50 == 0 {
			if _, err := debugger.Suspend(amd.AllGPUs, amd.AllQueues, amd.GraceDefault); err != nil {
				t.Fatal(err)
			}
			if _, err := debugger.Resume(amd.AllGPUs); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond)
	var alarms, merged, expected, got, disordered int
	if _, err := fmt.Sscanf(p.Ask("s"), "S %d %d %d %d %d", &alarms, &merged, &expected, &got, &disordered); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d alarms, %d of them merged by the kernel, %d expected; %d numbered", alarms+merged, merged, expected, got)
	if got != numbers || disordered != 0 {
		t.Errorf("%d of %d numbered signals, %d out of order", got, numbers, disordered)
	}
	if lost := expected - alarms - merged; lost < -1 || lost > 1 {
		t.Errorf("%d alarms lost", lost)
	}
}

// The runtime's start waits for the debugger's answer.
func TestRuntimeStartsUnderDebugger(t *testing.T) {
	d := kfdtest.Serve(t, vamd.DefaultConfig())
	p := d.Start(t, "late")
	if !strings.HasPrefix(p.Line(), "before ") {
		t.Fatal("the program did not start")
	}
	debugger := attach(t, d, p.PID)
	if _, err := debugger.Suspend(amd.AllGPUs, amd.AllQueues, amd.GraceDefault); err != nil {
		t.Fatal(err) // no queue yet; later ones are caught
	}
	if got := p.Ask("x"); !strings.HasPrefix(got, "ready ") {
		t.Fatal(got)
	}
	awaitCaught(t, debugger, 2) // asynchronous when seen from outside
	p.Ask("w")
	time.Sleep(20 * time.Millisecond)
	if got := p.Ask("r"); got != "R 0" {
		t.Error(got)
	}
	if err := debugger.Close(); err != nil {
		t.Fatal(err)
	}
	p.Ask("f")
}

func TestCloseResumesAndLetsGo(t *testing.T) {
	d := kfdtest.Serve(t, vamd.DefaultConfig())
	p := d.Target(t)
	debugger := attach(t, d, p.PID)
	if _, err := debugger.Suspend(amd.AllGPUs, amd.AllQueues, amd.GraceDefault); err != nil {
		t.Fatal(err)
	}
	p.Ask("w")
	_ = debugger.Close()
	p.Ask("f")
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
	if err != nil || !strings.Contains(string(status), "TracerPid:\t0\n") {
		t.Error("still traced")
	}
	// A second debugger can follow.
	again := attach(t, d, p.PID)
	if _, err := again.Suspend(amd.AllGPUs, amd.AllQueues, amd.GraceDefault); err != nil {
		t.Error(err)
	}
}

func TestOneDebugger(t *testing.T) {
	d := kfdtest.Serve(t, vamd.DefaultConfig())
	p := d.Target(t)
	attach(t, d, p.PID)
	_, err := amd.AttachDebugger(p.PID, func() (amd.Transport, error) { return amd.DialVirtual(d.Socket) })
	if !errors.Is(err, amd.ErrTraced) {
		t.Errorf("a second debugger: %v", err)
	}
	old := vamd.DefaultConfig()
	old.Minor = 11
	older := kfdtest.Serve(t, old)
	_, err = amd.AttachDebugger(p.PID, func() (amd.Transport, error) { return amd.DialVirtual(older.Socket) })
	if !errors.Is(err, amd.ErrOldDriver) {
		t.Errorf("an old driver: %v", err)
	}
}

func TestTargetEnds(t *testing.T) {
	d := kfdtest.Serve(t, vamd.DefaultConfig())
	p := d.Target(t)
	debugger := attach(t, d, p.PID)
	_ = unix.Kill(p.PID, unix.SIGKILL)
	select {
	case <-debugger.Ended():
	case <-time.After(10 * time.Second):
		t.Fatal("the end of the process was not detected")
	}
	if _, err := debugger.Suspend(amd.AllGPUs, amd.AllQueues, amd.GraceDefault); !errors.Is(err, amd.ErrGone) {
		t.Error(err)
	}
}

func TestDebugTarget(t *testing.T) {
	d := kfdtest.Serve(t, vamd.DefaultConfig())
	p := d.Target(t)
	var m driver.Metrics
	target := amd.NewDebugTarget(attach(t, d, p.PID), amd.AllGPUs, &m)
	for range 2 { // the second changes nothing
		if err := target.Apply(t.Context(), model.Desired{Suspend: model.LevelInterrupt}); err != nil {
			t.Fatal(err)
		}
	}
	p.Ask("w")
	if err := target.Apply(t.Context(), model.Desired{}); err != nil {
		t.Fatal(err)
	}
	p.Ask("f")
	if m.Suspends.Load() != 1 || m.Resumes.Load() != 1 {
		t.Errorf("%d suspends, %d resumes", m.Suspends.Load(), m.Resumes.Load())
	}
}

func FuzzSnapshot(f *testing.F) {
	f.Add(make([]byte, 128), 64)
	f.Fuzz(func(t *testing.T, b []byte, stride int) {
		if q, err := amd.ParseSnapshot(b, stride); err == nil && len(q)*stride != len(b) {
			t.Error("entries appeared")
		}
	})
}
