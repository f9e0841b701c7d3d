// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"

	"xsched/internal/model"
)

// TestOneCallForOneDecision checks that the ranks that one decision suspends share a call, and that a
// rank whose desired state changes, or that leaves, does not hold up the others.
func TestOneCallForOneDecision(t *testing.T) {
	for name, change := range map[string]func(*rank){
		"all":      nil,
		"replaced": func(r *rank) { r.desire(&model.Desired{Queue: r.id}, r.inst.cell.now) },
		"left":     func(r *rank) { r.inst.leave() },
	} {
		t.Run(name, func(t *testing.T) {
			s := parse(t, "mode: off\nhost: {dispatch: 0s}\ntenants: [{name: low, count: 3, arrivals: closed, kernel: 5ms}]\n")
			c, err := newCell(newPlan(s, s.Policy, s.Mode, 1), s.cells()[0])
			if err != nil {
				t.Fatal(err)
			}
			c.step(epoch)
			c.step(epoch.Add(10 * time.Millisecond))
			for _, r := range c.ranks {
				r.desire(&model.Desired{Queue: r.id, Suspend: model.LevelInterrupt}, c.now)
			}
			c.join()
			want := 3
			if change != nil {
				want = 2
				change(c.ranks[2]) // not the one with a running kernel
			}
			reply := 660*time.Microsecond + time.Duration(want-1)*80*time.Microsecond
			answered := func() (n int) {
				for _, r := range c.ranks {
					if r.joined && !r.doing && r.has.suspend != 0 {
						n++
					}
				}
				return n
			}
			begin := c.now
			for at := begin; at < begin.Add(reply); at = at.Add(10 * time.Microsecond) {
				if c.step(at); answered() > 0 {
					t.Fatalf("%d answers after %v", answered(), at.Sub(begin))
				}
			}
			if c.step(begin.Add(reply)); answered() != want {
				t.Errorf("%d answers after %v, want %d", answered(), reply, want)
			}
		})
	}
}
