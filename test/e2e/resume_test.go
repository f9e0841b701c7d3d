// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// resumeLimit is how long a program may be without progress when its resume fails.
const resumeLimit = 200 * time.Millisecond

// starveDescriptors lowers the daemon's descriptor limit below its use, so that it can open nothing.
func (w *world) starveDescriptors() {
	w.t.Helper()
	var lim unix.Rlimit
	err := unix.Prlimit(w.serve.Process.Pid, unix.RLIMIT_NOFILE, nil, &lim)
	if err == nil {
		lim.Cur = 3
		err = unix.Prlimit(w.serve.Process.Pid, unix.RLIMIT_NOFILE, &lim, nil)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestResumeWithoutDescriptors: a daemon without free descriptors can still resume programs and set
// timeslices, because it reserves what that needs. The lows take turns as before.
func TestResumeWithoutDescriptors(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--mode", "suspend")
	high := w.tenant(options{priority: 10}, 2000)
	lows := []*program{w.low(options{priority: -10}), w.low(options{priority: -10})}
	attached := w.low(options{plain: true})
	w.must("attach", strconv.Itoa(attached.pid()), "--priority", "-10")
	high.send("rate 20")
	time.Sleep(300 * time.Millisecond)
	w.starveDescriptors()
	from := nowNS()
	time.Sleep(3 * time.Second)
	to := nowNS()
	high.send("pause")
	for i, p := range append(lows, attached) {
		n, gap := p.iterationsAfter(from), p.longestGap(from, to)
		t.Logf("low %d: %d iterations in 3 s, longest gap %v", i, n, gap)
		if n == 0 {
			t.Errorf("low %d made no progress in 3 s", i)
		}
	}
}

// TestResumeRefused: the driver rejects everything that the daemon asks for, while its heartbeat is
// healthy. The shim and the guardian resume their programs instead, and the daemon suspends neither
// of them until the driver obeys again.
func TestResumeRefused(t *testing.T) {
	t.Parallel()
	for name, plain := range map[string]bool{"shim": false, "attached": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			low := w.low(options{plain: plain})
			best := time.Hour
			for range 3 { // a loaded machine may need another try
				w.suspendByHand(low)
				if err := w.gpu.SetFault("refuse:" + strconv.Itoa(w.serve.Process.Pid)); err != nil {
					t.Fatal(err)
				}
				at := nowNS()
				_, _ = w.xsched("resume", strconv.Itoa(low.pid()))
				best = min(best, w.firstRun(low.pid(), at, 2*time.Second))
				eventually(t, soon, "scheduling is off for it", func() bool {
					p := w.process(low.pid())
					return p != nil && strings.Contains(p.Queues[0].LevelReason, "off, because a resume failed")
				})
				_, _ = w.xsched("suspend", strconv.Itoa(low.pid()))
				time.Sleep(300 * time.Millisecond)
				from := nowNS()
				time.Sleep(300 * time.Millisecond)
				if n := low.iterationsAfter(from); n == 0 {
					t.Error("the low was suspended again, although its resume failed")
				}
				_, _ = w.xsched("resume", strconv.Itoa(low.pid()))
				if err := w.gpu.ClearFaults(); err != nil {
					t.Fatal(err)
				}
				eventually(t, soon, "scheduling is on again", func() bool {
					p := w.process(low.pid())
					return p != nil && p.Queues[0].LevelReason == "" && p.Queues[0].Level == 3
				})
				if best <= resumeLimit {
					break
				}
			}
			t.Logf("ran again after %v", best)
			if best > resumeLimit {
				t.Errorf("ran again after %v, want %v at most", best, resumeLimit)
			}
			if s, err := w.client.Stats(context.Background()); err != nil || s.TurnedOff == 0 {
				t.Errorf("turned off %d times: %v", s.TurnedOff, err)
			}
			w.suspendByHand(low)
			w.must("resume", strconv.Itoa(low.pid()))
			w.firstRun(low.pid(), nowNS(), resumeLimit)
			low.finish()
		})
	}
}
