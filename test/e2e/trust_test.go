// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// openTo lets other users connect to a world.
func openTo(t *testing.T, w *world) {
	t.Helper()
	if err := os.Chmod(w.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"vgpu.sock", "xsched.sock", "control.sock"} {
		if err := os.Chmod(w.path(name), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHintsOfAnotherUser: beside root's program at priority 10, no hint of another user makes the daemon act against
// it. By the device's record the program is not stopped, and its timeslice is not shortened.
func TestHintsOfAnotherUser(t *testing.T) {
	t.Parallel()
	cache := asNobody(t)
	bin, tenant := copyFor(t, cache, xschedPath(t)), copyFor(t, cache, product(t, "virtual/tenant"))
	for policy, hint := range map[string][]string{
		"SLO": {"--slo", "1us"},
		"AWF": {"--window-active"},
		"LAX": {"--laxity", "1us"},
		"EDF": {"--deadline", "1us"},
	} {
		t.Run(policy, func(t *testing.T) {
			w := newWorld(t, "--policy", policy)
			openTo(t, w)
			victim := w.tenant(options{priority: 10}, 500)
			w.waitLevel(victim.pid(), 3)
			if policy == "EDF" { // which ignores priorities
				w.must("hint", strconv.Itoa(victim.pid()), "--deadline", "20ms")
			}
			victim.send("rate 100")
			victim.iterates(20)
			cmd := execAs(bin, slices.Concat([]string{"run", "--virtual"}, hint, []string{"--", tenant, "--name", "a", "--kernel-us", "3000", "--depth", "8"})...)
			cmd.Env = w.env("XSCHED_CACHE="+filepath.Join(cache, "c"), "HOME="+cache)
			other := w.drive(cmd)
			other.expect("R", soon)
			w.waitLevel(other.pid(), 3)
			other.send("loop")
			other.iterates(20)
			before, from := w.account(victim.pid()), nowNS()
			least := before.SliceNS
			eventually(t, time.Minute, "40 requests of the victim", func() bool {
				least = min(least, w.account(victim.pid()).SliceNS)
				return victim.iterationsAfter(from) >= 40
			})
			stops := w.account(victim.pid()).Disables - before.Disables
			t.Logf("beside another user with %s: %d stops of the victim, its timeslice at least %v, the other one ran for %v of %v", strings.Join(hint, " "),
				stops, time.Duration(least), w.ranIn(other.pid(), from, nowNS()), time.Duration(nowNS()-from))
			if stops > 0 || least < nativeSliceNS {
				t.Errorf("with %v of another user the victim was stopped %d times and had a timeslice of %v; the journal:\n%s", hint, stops, time.Duration(least), w.must("logs"))
			}
		})
	}
}

// TestPhantomQueue: a process that never opened the GPU claims a busy queue there. It has no effect on
// others, and the list shows why.
func TestPhantomQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	low := w.saturating(options{priority: -10})
	// kept is the part of the device's time that the low has.
	kept := func() float64 {
		from := nowNS()
		low.iterates(50)
		to := nowNS()
		return w.ranIn(low.pid(), from, to).Seconds() / time.Duration(to-from).Seconds()
	}
	before := kept()
	c, err := sessiontest.Dial(w.path("xsched.sock"), wire.Hello{PID: uint32(os.Getpid())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.Queue(0)
	c.Busy(0, true)
	eventually(t, soon, "the queue is known", func() bool {
		p := w.process(os.Getpid())
		return p != nil && len(p.Queues) == 1
	})
	beside := kept()
	t.Logf("the low has %.1f %% of the device, %.1f %% beside a phantom queue", 100*before, 100*beside)
	if beside < 0.95 {
		t.Errorf("the low has %.1f %% of the device beside a phantom queue, %.1f %% before", 100*beside, 100*before)
	}
	q := w.process(os.Getpid()).Queues[0]
	if !strings.Contains(q.LevelReason, "not verified") || c.Held(0) {
		t.Errorf("gate closed: %v; %+v", c.Held(0), q)
	}
	low.finish()
}

// TestProofArrives: an honest program competes from its first busy period on.
func TestProofArrives(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	low := w.tenant(options{priority: -10}, 5000)
	low.send("loop")
	low.iterates(20)
	high := w.tenant(options{priority: 10}, 500)
	start := nowNS()
	high.send("rate 100")
	high.iterates(1)
	high.mu.Lock()
	first := elapsed(start, high.ends[0])
	high.mu.Unlock()
	t.Logf("the first request took %v", first)
	eventually(t, soon, "it competes at the best level", func() bool {
		p := w.process(high.pid())
		return p != nil && len(p.Queues) == 1 && p.Queues[0].Level == int(model.LevelInterrupt) && p.Queues[0].LevelReason == ""
	})
	if first > 200*time.Millisecond {
		t.Errorf("the first request took %v", first)
	}
	high.finish()
	low.finish()
}
