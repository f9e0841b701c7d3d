// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	"xsched/internal/model"
)

// TestGather: the protected queues gather if all of them should, and lower queues
// keep their tiny slice instead of being suspended.
func TestGather(t *testing.T) {
	p, err := New("HPF")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		first, second uint32 // bursts of two protected queues; 0: none is worthwhile
		gather        uint32
	}{{54, 60, 1}, {54, 0, 0}, {0, 0, 0}} {
		feeding := func(burst uint32) func(*model.Queue) {
			return func(q *model.Queue) {
				// Chained requests and a stop that is due change nothing.
				q.Feeding = model.Feeding{Class: model.ClassLaunchBound, Burst: burst, StopAt: ago(ms), StopUntil: now.Add(ms), Hold: ms}
			}
		}
		v := viewOf(with(queue(9, "br"), feeding(c.first)), with(queue(9, "br"), feeding(c.second)), queue(0, "br"))
		v.LaunchBound = p.Strategy()
		plan, _ := p.Decide(now, v, p.NewState())
		if plan[0].Gather != c.first*c.gather || plan[1].Gather != c.second*c.gather || plan[2].Gather != 0 {
			t.Errorf("%+v: plan %+v", c, plan)
		}
		if low := plan[2]; c.gather > 0 && (!low.Run || low.Slice != v.Knobs.LowSlice) {
			t.Errorf("%+v: the lower queue has %+v", c, low)
		}
	}
}
