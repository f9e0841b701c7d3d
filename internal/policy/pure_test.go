// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"xsched/internal/model"
)

// device generates the views of one device over time. Two with the same seed
// generate the same views and share no memory.
type device struct {
	*rand.Rand
	now    model.Time
	view   *View
	serial model.SessionID
	epoch  uint64
}

func newDevice(seed uint64) *device {
	return &device{Rand: rand.New(rand.NewPCG(seed, 1)), now: now, view: &View{}}
}

func one[T any](d *device, of ...T) T { return of[d.IntN(len(of))] }

func (d *device) hint() model.Hint {
	return model.Hint{
		Priority: model.Priority(d.IntN(5) - 2), Utilization: one(d, 0, 0, 1, 40, 100), Timeslice: one(d, 0, 0, 20*ms),
		Deadline: one(d, 0, ms, 50*ms), K: d.IntN(4), Laxity: one(d, 0, 0, 30*ms), LaxPriority: model.Priority(d.IntN(2)),
		CriticalPriority: model.Priority(d.IntN(9)), WindowActive: d.IntN(4) == 0, Nice: d.IntN(40) - 20,
		Pool: one(d, "", "a", "a", "b", "c"),
	}
}

// step moves time on and changes a part of the view, also in ways in which an
// engine never would.
func (d *device) step(rank func(*model.Queue) model.Priority) {
	v := d.view
	d.now = d.now.Add(one(d, 0, 20*us, 3*ms, 60*ms, 700*ms, 3*time.Second))
	v.CanSuspend, v.Unmanaged, v.Knobs = d.IntN(5) > 0, d.IntN(8) == 0, DefaultKnobs()
	v.Knobs.StarvationBound = one(d, 0, 100*ms, 2*time.Second)
	v.LaunchBound = one(d, nil, strategies["in-time"], &Strategy{Tiny: true}, &Strategy{TinyStop: true}, &Strategy{Slice: UsefulSlice})
	for d.IntN(2) == 0 && len(v.Queues) < 20 {
		d.serial++
		q := Queue{Queue: model.Queue{
			ID: model.QueueID{Session: d.serial}, PID: 1 + d.IntN(12), Hint: d.hint(), Slices: d.IntN(4) > 0,
			Level: model.LevelInterrupt, ChangedAt: d.now, WaitSince: d.now, Running: true,
		}, Verdict: model.Verdict{Run: true}}
		q.Rank = rank(&q.Queue)
		v.Queues = append(v.Queues, q)
	}
	if d.IntN(4) == 0 && len(v.Queues) > 0 {
		at := d.IntN(len(v.Queues))
		v.Queues = slices.Delete(v.Queues, at, at+1)
	}
	slices.SortFunc(v.Queues, func(a, b Queue) int { return Before(&a.Queue, &b.Queue) })
	pids := map[int]int{}
	for i := range v.Queues {
		q := &v.Queues[i]
		if d.IntN(3) == 0 {
			q.Busy, q.ChangedAt = !q.Busy, d.now.Add(-time.Duration(d.Int64N(int64(ms))))
		}
		if d.IntN(3) == 0 {
			q.WaitSince = d.now.Add(-time.Duration(d.Int64N(int64(3 * time.Second))))
		}
		if d.IntN(3) > 0 {
			gain := time.Duration(d.Int64N(int64(20 * ms)))
			q.Got, q.Active = q.Got+gain/2, q.Active+gain
			if q.Pool > 0 {
				v.Pools[q.Pool-1].Got += gain / 2
			}
		}
		q.Held = d.IntN(20) == 0
		q.Admitted, q.Ready = q.Eligible(), q.Queue.Ready()
		q.Progressing = q.Ready && q.Running && d.IntN(4) > 0
		q.Slice = max(q.Verdict.Slice, v.Knobs.NativeSlice)
		if _, known := pids[q.PID]; !known {
			pids[q.PID] = len(pids)
		}
		q.Process, q.Group = pids[q.PID], -1
	}
	v.Processes = len(pids)
	d.pools()
	d.groups()
	d.services()
}

// pools keeps some pools that have no queues any more.
func (d *device) pools() {
	v := d.view
	old := v.Pools
	v.Pools = nil
	for k := range old {
		if p := old[k]; d.IntN(4) > 0 {
			p.Queues = 0
			v.Pools = append(v.Pools, p)
		}
	}
	for i := range v.Queues {
		q := &v.Queues[i]
		if q.Pool, q.Spare = 0, 0; q.Hint.Pool == "" {
			continue
		}
		if q.Hint.Pool == "c" {
			q.Spare = 60
		}
		k := slices.IndexFunc(v.Pools, func(p Pool) bool { return p.Name == q.Hint.Pool })
		if k < 0 {
			k = len(v.Pools)
			v.Pools = append(v.Pools, Pool{Name: q.Hint.Pool})
		}
		v.Pools[k].Queues++
		q.Pool = k + 1
	}
}

// groups ties the queues of some processes together, of which some are led.
func (d *device) groups() {
	v := d.view
	v.Groups = nil
	for p := range v.Processes {
		if d.IntN(3) > 0 {
			continue
		}
		group := Group{Led: d.IntN(3) == 0, Run: d.IntN(2) == 0}
		if group.Led {
			group.Name = "gang"
		}
		for i := range v.Queues {
			if v.Queues[i].Process == p {
				v.Queues[i].Group = len(v.Groups)
				group.Members = append(group.Members, i)
			}
		}
		v.Groups = append(v.Groups, group)
	}
}

// services finishes requests of a process with a target, which may change.
func (d *device) services() {
	v := d.view
	if d.IntN(6) == 0 {
		d.epoch++
		v.Services = []*Service{NewService(1+d.IntN(12), model.SLO{Latency: one(d, ms, 20*ms)}, d.epoch)}
	}
	for _, s := range v.Services {
		s.Finished = nil
		for range d.IntN(40) {
			s.begin(d.now.Add(-time.Duration(d.Int64N(int64(30 * ms)))))
			s.end(d.now)
		}
	}
}

// TestDecideIsPure: no policy writes to the view, and the same view and state
// give the same plan. Two equal devices live side by side: the second one is the
// copy of view and state to which the first is compared.
func TestDecideIsPure(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(25) {
				p, err := New(name)
				if err != nil {
					t.Fatal(err)
				}
				rank := func(q *model.Queue) model.Priority { return p.Rank(q, q.Hint.Priority) }
				a, b := newDevice(seed), newDevice(seed)
				stateA, stateB := p.NewState(), p.NewState()
				for step := range 40 {
					a.step(rank)
					b.step(rank)
					if !reflect.DeepEqual(a.view, b.view) || !reflect.DeepEqual(stateA, stateB) {
						t.Fatalf("seed %d, step %d: the devices differ before the decision", seed, step)
					}
					planA, wakeA := p.Decide(a.now, a.view, stateA)
					if !reflect.DeepEqual(a.view, b.view) {
						t.Fatalf("seed %d, step %d: Decide wrote to the view:\n%+v\n%+v", seed, step, a.view, b.view)
					}
					planB, wakeB := p.Decide(b.now, b.view, stateB)
					if !slices.Equal(planA, planB) || wakeA != wakeB {
						t.Fatalf("seed %d, step %d: the same view and state give %v, %v and %v, %v", seed, step, planA, wakeA, planB, wakeB)
					}
					if len(planA) != len(a.view.Queues) || wakeA <= a.now {
						t.Fatalf("seed %d, step %d: %d verdicts for %d queues, wake %v after now", seed, step, len(planA), len(a.view.Queues), wakeA.Sub(a.now))
					}
					for i, verdict := range planB {
						a.view.Queues[i].Verdict, b.view.Queues[i].Verdict = verdict, verdict
						a.view.Queues[i].Running, b.view.Queues[i].Running = verdict.Run, verdict.Run
					}
					// A plan must not share memory with the view or the state: the next
					// comparison fails if it does.
					clear(planA)
				}
			}
		})
	}
}
