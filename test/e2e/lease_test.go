// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strconv"
	"testing"
	"time"

	"xsched/internal/model"
	gpumodel "xsched/internal/virtual/model"
)

// ranOn returns how long a process held one GPU in [from, to).
func (w *world) ranOn(pid, gpu int, from, to int64) time.Duration {
	w.t.Helper()
	spans, err := w.gpu.Timeline(model.Time(from), model.Time(to))
	if err != nil {
		w.t.Fatal(err)
	}
	var sum int64
	for _, s := range spans {
		if s.PID == pid && s.Device == gpu && s.Kind == gpumodel.KindRun {
			sum += max(0, min(s.T1, to)-max(s.T0, from))
		}
	}
	return time.Duration(sum)
}

// A process on two GPUs, one of which hangs while the process is resumed there: suspensions on the
// other GPU stay valid, for several times the length of a lease.
func TestHungGPUEndsOnlyItsLease(t *testing.T) {
	t.Parallel()
	const alive, hung = 0, 1
	w := newWorld(t)
	low := w.onGPUs(options{}, 5*time.Millisecond, 0, alive, hung)
	w.ready(low)
	pid := strconv.Itoa(low.pid())
	w.suspendByHand(low.program)
	if err := w.gpu.SetFault("hang-gpu:" + strconv.Itoa(hung)); err != nil {
		t.Fatal(err)
	}
	at := nowNS()
	if out, err := w.xsched("resume", pid); err != nil {
		t.Logf("resume: %v %s", err, out) // it may wait for the hung GPU, but not for ever
	}
	eventually(t, soon, "the process runs on the other GPU", func() bool {
		return w.ranOn(low.pid(), alive, at, nowNS()) > 0
	})
	for range 2 {
		time.Sleep(300 * time.Millisecond) // the lease of the hung GPU has ended
		if out, err := w.xsched("suspend", pid); err != nil {
			t.Logf("suspend: %v %s", err, out)
		}
		w.assertStopped(low.pid(), "with a GPU that hangs")
		from := nowNS()
		time.Sleep(500 * time.Millisecond)
		if ran := w.ranOn(low.pid(), alive, from, nowNS()); ran > 0 {
			t.Errorf("it ran for %v: the lease of the hung GPU ended this one", ran)
		}
		at = nowNS()
		if out, err := w.xsched("resume", pid); err != nil {
			t.Logf("resume: %v %s", err, out)
		}
		eventually(t, soon, "it runs again", func() bool { return w.ranOn(low.pid(), alive, at, nowNS()) > 0 })
	}
	if err := w.gpu.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	at = nowNS()
	eventually(t, soon, "it runs on both", func() bool {
		return w.ranOn(low.pid(), alive, at, nowNS()) > 0 && w.ranOn(low.pid(), hung, at, nowNS()) > 0
	})
}
