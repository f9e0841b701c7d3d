// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strconv"
	"testing"
	"time"
)

// TestLongAttachedIdleTakesNoTurns: an idle attached program gets no timeslices beside a busy program of equal
// priority. It gets half of the GPU soon after it becomes busy.
func TestLongAttachedIdleTakesNoTurns(t *testing.T) {
	t.Run("nvidia", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		testAttachedIdle(t, w, w.tenant(options{plain: true}, 20000))
	})
	t.Run("amd", func(t *testing.T) {
		t.Parallel()
		w := amdWorld(t)
		testAttachedIdle(t, w, w.plainHIP(), "--api", "hip")
	})
}

func testAttachedIdle(t *testing.T, w *world, idle *program, api ...string) {
	t.Helper()
	high := w.tenant(options{priority: 10}, 2000, api...) // lows take turns only below a higher priority
	low := w.tenant(options{priority: -5}, 5000, api...)
	low.send("loop")
	w.waitLevel(low.pid(), 2)
	eventually(t, soon, "the low makes progress", func() bool { return low.iterationsAfter(0) > 1 })
	// percent is the share of a window in which a program held the GPU.
	percent := func(p *program, window time.Duration) int {
		from := nowNS()
		time.Sleep(window)
		return int(100 * w.ranIn(p.pid(), from, from+int64(window)) / window)
	}
	alone := percent(low, 2*time.Second)
	w.must("attach", strconv.Itoa(idle.pid()), "--priority", "-5")
	// The daemon needs some seconds to classify the program as idle.
	kept := 0
	eventually(t, soon, "the low keeps 90 %", func() bool {
		kept = percent(low, 3*time.Second)
		t.Logf("the low has %d %%, %d %% alone", kept, alone)
		return kept >= 90*alone/100
	})
	at := nowNS()
	idle.send("loop")
	t.Logf("a turn %v after it began to work", w.firstRun(idle.pid(), at, 2500*time.Millisecond))
	eventually(t, soon, "it has half of the time", func() bool {
		mine := percent(idle, 2*time.Second)
		t.Logf("it has %d %%", mine)
		return mine >= 35*alone/100 && mine <= 65*alone/100
	})
	w.must("detach", strconv.Itoa(idle.pid()))
	for _, p := range []*program{idle, low, high} {
		p.finish()
	}
}
