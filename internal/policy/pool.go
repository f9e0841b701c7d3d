// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"xsched/internal/model"
)

// This file has what policies know about pools: programs that have one share
// together, however many they are and however often they are replaced.

// poolGot is Pool.Got at some time, by name.
type poolGot map[string]time.Duration

// follow adds pools that are new.
func (m *poolGot) follow(v *View) {
	if *m == nil && len(v.Pools) > 0 {
		*m = poolGot{}
	}
	for k := range v.Pools {
		p := &v.Pools[k]
		if _, known := (*m)[p.Name]; !known {
			(*m)[p.Name] = p.Got
		}
	}
}

// fairPool is what a policy that divides the device by weight knows about a pool.
type fairPool struct {
	got     time.Duration // Pool.Got up to which the pool is charged
	virtual int64
	weight  int // of its heaviest queue
}

// followPools finds the pools of a view, and forgets others.
func (s *fairState) followPools(v *View) {
	if len(v.Pools) == 0 && len(s.known) == 0 {
		return
	}
	if s.known == nil {
		s.known = map[string]*fairPool{}
	}
	s.pools = s.pools[:0]
	for k := range v.Pools {
		p := &v.Pools[k]
		m := s.known[p.Name]
		if m == nil {
			m = &fairPool{got: p.Got}
			s.known[p.Name] = m
		}
		m.weight = 0
		s.pools = append(s.pools, m)
	}
	if len(s.known) > len(v.Pools) {
		clear(s.known)
		for k := range v.Pools {
			s.known[v.Pools[k].Name] = s.pools[k]
		}
	}
}

// chargePools charges the pools for the GPU time they had. The programs of a pool
// have had as much as each other: one that joins pays for what the pool had before.
func (s *fairState) chargePools(v *View, w weight) {
	if len(v.Pools) == 0 {
		return
	}
	for i := range v.Queues {
		if q := &v.Queues[i]; q.Pool > 0 {
			p, m := s.pools[q.Pool-1], &s.queues.of[i]
			p.weight, p.virtual = max(p.weight, w(q)), max(p.virtual, m.virtual)
			m.got = q.Got
		}
	}
	for k, p := range s.pools {
		if p.weight == 0 {
			continue // its next program pays
		}
		if charge := int64(v.Pools[k].Got-p.got) * model.UtilizationMax / int64(p.weight); charge > 0 {
			p.got, p.virtual = v.Pools[k].Got, max(p.virtual, s.floor)+charge
		}
	}
	for i := range v.Queues {
		if pool := v.Queues[i].Pool; pool > 0 {
			s.queues.of[i].virtual = s.pools[pool-1].virtual
		}
	}
}

// rota is the turns of the programs of pools.
type rota struct {
	number int64 // of the last turn
	queues perQueue[rotaQueue]
	slices []time.Duration // of the pools that take turns, 0: of the others; scratch
	firsts []int           // by group; scratch
}

type rotaQueue struct {
	number int64         // of its last turn; 0: none
	start  time.Duration // Queue.Active when that began
	on     bool          // has a turn beside others of its pool
	excess float64       // see excess
	rest   model.Time    // no turn in its pool begins before
	// first has the turn of all queues that run together, and size is how many
	// of these have work.
	first, size int
}

// running returns how many queues run in the turn.
func (m *rotaQueue) running() int {
	if m.on {
		return m.size
	}
	return 0
}

// rotaSlice is the least slice of programs that take turns: with UsefulSlice
// switching takes a third of the device.
const rotaSlice = 2 * UsefulSlice

func (r *rota) align(v *View) {
	if len(v.Pools) == 0 {
		r.queues = perQueue[rotaQueue]{}
		return
	}
	r.queues.align(v, func(*Queue) rotaQueue { return rotaQueue{} })
}

// last returns the number of the last turn of queue i.
func (r *rota) last(i int) int64 {
	if len(r.queues.of) == 0 {
		return 0
	}
	return r.queues.of[i].number
}

// begin starts a turn of queue i, if it has a pool.
func (r *rota) begin(v *View, i int) {
	if v.Queues[i].Pool > 0 {
		r.number++
		r.queues.of[i].number, r.queues.of[i].start = r.number, v.Queues[i].Active
	}
}

// divide makes the queues of one process, or of one pool, that have work divide
// the slice that each of them has in a plan. Where that leaves too little, the
// programs of a pool take turns: otherwise a pool would gain by more programs.
func (v *View) divide(now model.Time, plan model.Plan, byProcess bool, r *rota) (model.Plan, model.Time) {
	r.align(v)
	if v.each(byProcess) {
		return plan, model.Never
	}
	ready := v.readyByPayer(byProcess)
	turns := r.crowded(v, plan, ready)
	var round time.Duration
	for i := range plan {
		q := &v.Queues[i]
		n := time.Duration(ready[v.payer(i, byProcess)])
		if !q.Ready || q.Pool > 0 && r.slices[q.Pool-1] > 0 {
			continue
		}
		if n > 1 {
			plan[i].Slice = max(UsefulSlice, plan[i].Slice/n)
		}
		round += plan[i].Slice
	}
	wake := model.Never
	if !turns {
		return plan, wake
	}
	for _, slice := range r.slices {
		round += slice
	}
	// Long enough for real progress in each turn, even after all others.
	length := max(v.Knobs.Quantum, round+4*UsefulSlice)
	for k, slice := range r.slices {
		if slice > 0 {
			wake = min(wake, r.serve(now, v, plan, k+1, length, round-slice))
		}
	}
	return plan, wake
}

// crowded finds the pools with too many programs for their slices beside others.
func (r *rota) crowded(v *View, plan model.Plan, ready []int) (any bool) {
	r.slices = append(r.slices[:0], make([]time.Duration, len(v.Pools))...)
	if len(v.Pools) == 0 {
		return false
	}
	eligible := 0
	for i := range v.Queues {
		q := &v.Queues[i]
		if q.Eligible() {
			eligible++
		}
		if q.Ready && q.Pool > 0 {
			r.slices[q.Pool-1] = max(r.slices[q.Pool-1], plan[i].Slice)
		}
	}
	for k := range r.slices {
		n := ready[len(v.Queues)+k]
		if n*int(UsefulSlice) <= int(r.slices[k]) || eligible == v.Pools[k].Queues {
			r.slices[k] = 0
		}
		any = any || r.slices[k] > 0
	}
	return any
}

// serve lets the programs of a pool take turns, as many at a time as its slice is
// long enough for, and returns when to ask again. others is the slices of those
// outside the pool.
func (r *rota) serve(now model.Time, v *View, plan model.Plan, pool int, length, others time.Duration) model.Time {
	r.findUnits(v, pool)
	slice, used, rest := r.slices[pool-1], 0, model.Time(0)
	for i := range v.Queues {
		m := &r.queues.of[i]
		if v.Queues[i].Pool != pool {
			continue
		}
		if had := v.Queues[i].Active - m.start; m.on && (m.size == 0 || had >= length) {
			m.on, m.rest = false, now.Add(time.Duration(float64(had)*m.excess))
		}
		used += m.running()
		rest = max(rest, m.rest)
	}
	for most := max(1, int(slice/rotaSlice)); used < most && now >= rest; {
		next := r.longestWaiting(v, pool)
		if next < 0 || used > 0 && used+r.queues.of[next].size > most {
			break
		}
		r.begin(v, next)
		r.queues.of[next].on = true
		used += r.queues.of[next].size
	}
	wake := model.Never
	if now < rest {
		wake = rest
	}
	for i := range v.Queues {
		q := &v.Queues[i]
		if q.Pool != pool || !q.Ready {
			continue
		}
		first := r.queues.of[i].first
		m := &r.queues.of[first]
		switch {
		case m.on:
			plan[i] = model.Verdict{Run: true, Limit: true, Slice: max(UsefulSlice, plan[i].Slice/time.Duration(used))}
			wake = min(wake, now.Add(max(length-(v.Queues[first].Active-m.start), v.Knobs.Timeslice)))
			m.excess = excess(slice, time.Duration(used)*UsefulSlice, others)
		case v.CanSuspend:
			plan[i] = model.Verdict{Limit: true, Slice: plan[i].Slice}
		default:
			plan[i] = model.Verdict{Run: true, Slice: v.Knobs.LowSlice}
		}
	}
	return wake
}

// excess returns how long a pool rests, in turns, after one in which it could not
// have less than a larger slice than its own beside others: a gang has its turn
// together, however many programs it has. On average it then has its share.
func excess(slice, larger, others time.Duration) float64 {
	if larger <= slice {
		return 0
	}
	return float64(others) / float64(slice) * float64(larger-slice) / float64(larger+others)
}

// findUnits finds which queues of a pool with work have a turn together: those of
// one group, which run and stop together.
func (r *rota) findUnits(v *View, pool int) {
	r.firsts = append(r.firsts[:0], make([]int, len(v.Groups))...)
	for i := range v.Queues {
		q, m := &v.Queues[i], &r.queues.of[i]
		if q.Pool != pool {
			continue
		}
		if m.first, m.size = i, 0; !q.Ready {
			continue
		}
		if q.Group >= 0 && v.CanSuspend {
			if r.firsts[q.Group] == 0 {
				r.firsts[q.Group] = i + 1
			}
			m.first = r.firsts[q.Group] - 1
		}
		r.queues.of[m.first].size++
	}
}

// longestWaiting returns the first queue of those whose last turn is longest ago;
// -1: none waits.
func (r *rota) longestWaiting(v *View, pool int) int {
	next := -1
	for i := range v.Queues {
		if m := &r.queues.of[i]; v.Queues[i].Pool == pool && m.size > 0 && !m.on && (next < 0 || m.number < r.queues.of[next].number) {
			next = i
		}
	}
	return next
}
