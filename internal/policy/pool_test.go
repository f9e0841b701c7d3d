// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"
	"time"

	"xsched/internal/model"
)

// TestPoolTurns: where a pool has too many programs for its slice they take turns, the longest waiting
// first, and the queues of one program have them together.
func TestPoolTurns(t *testing.T) {
	for _, name := range []string{"UP", "PUP", "SPUP", "CFS"} {
		const programs = 8 // of two queues each
		queues := []model.Queue{with(queue(0, "br"), func(q *model.Queue) { q.Hint.Utilization = 60 })}
		for range 2 * programs {
			queues = append(queues, with(queue(0, "br"), func(q *model.Queue) { q.Hint.Utilization = 40 }))
		}
		v := viewOf(queues...)
		v.Pools, v.Processes = []Pool{{Name: "pod", Queues: 2 * programs}}, 1+programs
		for i := 1; i < len(v.Queues); i++ {
			q, k := &v.Queues[i], (i-1)/2
			q.PID, q.Process, q.Pool, q.Group = 2+k, 1+k, 1, k
			if len(v.Groups) == k {
				v.Groups = append(v.Groups, Group{})
			}
			v.Groups[k].Members = append(v.Groups[k].Members, i)
		}
		p, err := New(name)
		if err != nil {
			t.Fatal(err)
		}
		state, at := p.NewState(), now
		turns := [programs]int{}
		for range 4 * programs {
			plan, wake := p.Decide(at, v, state)
			at = max(min(wake, at.Add(60*ms)), at+1)
			if !plan[0].Run {
				t.Fatalf("%s: the other does not run", name)
			}
			running, sum := 0, time.Duration(0)
			for k := range programs {
				a, b := plan[1+2*k], plan[2+2*k]
				if a != b {
					t.Fatalf("%s: the queues of a program have %v and %v", name, a, b)
				}
				if a.Run {
					running++
					sum += a.Slice + b.Slice
					turns[k]++
				}
			}
			if running == 0 || running == programs || sum > plan[0].Slice*40/60 {
				t.Fatalf("%s: %d programs run: %s", name, running, planText(plan))
			}
			for i := range v.Queues {
				v.Queues[i].Running, v.Queues[i].Verdict = plan[i].Run, plan[i]
				if v.Queues[i].Progressing = plan[i].Run; plan[i].Run {
					v.Queues[i].Active += 60 * ms
				}
			}
		}
		for k, n := range turns {
			if n == 0 {
				t.Errorf("%s: program %d never ran: %v", name, k, turns)
			}
		}
	}
}
