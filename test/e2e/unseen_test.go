// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os/exec"
	"testing"
)

// TestUnseenWorkGoesOn: work that no hook sees, such as a module upload, is not starved. The daemon does not
// suspend a program that seems idle and leaves it a usable timeslice.
func TestUnseenWorkGoesOn(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3")
	}
	w := newWorld(t)
	high := w.tenant(options{priority: 10}, 90)
	first, second := w.tenant(options{}, 20000), w.tenant(options{}, 20000)
	late := []*program{
		w.run(options{}, "python3", "-B", "testdata/late_load.py"),
		w.run(options{}, "python3", "-B", "testdata/late_load.py"),
	}
	for _, p := range late {
		p.expect("R", soon)
		eventually(t, soon, "a queue", func() bool {
			at := w.process(p.pid())
			return at != nil && len(at.Queues) > 0
		})
	}
	for _, busy := range []bool{false, true} {
		if busy {
			first.send("loop")
			second.send("loop")
			high.send("rate 50")
			at := nowNS()
			eventually(t, soon, "the lows take turns", func() bool {
				return first.iterationsAfter(at) > 3 && second.iterationsAfter(at) > 3
			})
		}
		for _, p := range late {
			p.send("load")
		}
		for _, p := range late {
			t.Logf("lows busy %v: loaded after %s ms", busy, p.expect("L", soon)[2:])
		}
	}
	for _, p := range []*program{high, first, second} {
		p.finish()
	}
}
