// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"time"

	"xsched/internal/model"
)

// fairState is the memory of a policy that divides the device by weight.
//
// The virtual time of a queue is the GPU time it had, divided by its weight.
// floor is the smallest virtual time of the queues that had work until now. No
// queue falls behind it, so none saves up time by being idle.
type fairState struct {
	turn   turn
	rota   rota
	floor  int64
	queues perQueue[fairQueue]
	pools  []*fairPool // in the order of the view
	known  map[string]*fairPool
}

type fairQueue struct {
	got     time.Duration // Queue.Got up to which the queue is charged
	virtual int64
	wanted  bool // had work at the last decision
}

// weight is the weight of a queue; a queue without hints has UtilizationMax.
type weight func(q *Queue) int

// update charges the queues for the GPU time they had, each on its own or with
// all queues of its process, and the pools. Call it once per decision, with
// those that had work until now still marked.
func (s *fairState) update(v *View, w weight, byProcess bool) {
	s.queues.align(v, func(q *Queue) fairQueue { return fairQueue{got: q.Got} })
	s.followPools(v)
	s.chargePools(v, w)
	var charges []int64
	together := byProcess && v.Processes < len(v.Queues)
	if together {
		charges = make([]int64, v.Processes)
	}
	for i := range v.Queues {
		q, m := &v.Queues[i], &s.queues.of[i]
		if q.Got == m.got {
			continue
		}
		charge := int64(q.Got-m.got) * model.UtilizationMax / int64(w(q))
		if charge <= 0 {
			continue // too little to count yet
		}
		m.got = q.Got
		if together {
			charges[q.Process] += charge
		} else {
			m.virtual = max(m.virtual, s.floor) + charge
		}
	}
	if !together {
		return
	}
	for i := range v.Queues {
		if q := &v.Queues[i]; q.Pool == 0 && charges[q.Process] > 0 {
			m := &s.queues.of[i]
			m.virtual = max(m.virtual, s.floor) + charges[q.Process]
		}
	}
}

// want marks the queues with work.
func (s *fairState) want(v *View) {
	for i := range v.Queues {
		s.queues.of[i].wanted = v.Queues[i].Ready
	}
}

// raiseFloor moves the floor up. A queue that begins to have work now does not
// count: it is behind by all that the others had meanwhile.
func (s *fairState) raiseFloor() {
	least, found := int64(0), false
	for i := range s.queues.of {
		if m := &s.queues.of[i]; m.wanted && (!found || m.virtual < least) {
			least, found = m.virtual, true
		}
	}
	if found {
		s.floor = max(s.floor, least)
	}
}

// takeTurns serves the queue with the least virtual time, in turns. Turns of
// lighter queues are shorter, down to a timeslice, so that a small share does
// not mean a long wait.
func (s *fairState) takeTurns(now model.Time, v *View, w weight) (model.Plan, model.Time) {
	s.raiseFloor()
	s.want(v)
	s.rota.align(v)
	heaviest := 1
	for i := range v.Queues {
		heaviest = max(heaviest, w(&v.Queues[i]))
	}
	plan, i, wake := (&turns{
		// The programs of a pool have had as much as each other: they take turns.
		key: func(i int, _ *Queue) key { return key{at: s.queues.of[i].virtual, then: s.rota.last(i)} },
		length: func(_ int, q *Queue) time.Duration {
			length := v.turnLength(q)
			if q.Hint.Timeslice == 0 {
				scaled := length * time.Duration(w(q)) / time.Duration(heaviest)
				length = min(length, max(scaled, v.Knobs.Timeslice))
			}
			return length
		},
		compete: true, hold: true,
	}).decide(now, v, &s.turn)
	if i >= 0 && v.Queues[i].Ready {
		m := &s.queues.of[i]
		m.virtual = max(m.virtual, s.floor)
		s.rota.begin(v, i)
	}
	return plan, wake
}

// shareOut compiles weights into slices: every queue runs, the hardware divides
// the device in proportion to the slices, and an idle queue gives its part away.
// The lightest gets least, the heaviest at most most. If both cannot hold, the
// lightest gives way, down to UsefulSlice: all others wait for a long slice.
// Every slice pays for one switch, so slices have the ratio of the shares.
func (v *View) shareOut(w weight, least, most time.Duration) model.Plan {
	low, high := v.lightest(w), 0
	for i := range v.Queues {
		if q := &v.Queues[i]; q.Eligible() { // a gang that waits elsewhere counts, to keep slices stable
			high = max(high, w(q))
		}
	}
	unit := float64(least) / model.UtilizationMax // slice of weight 1
	if low > 0 {
		unit = min(float64(least)/float64(low), float64(most)/float64(high))
	}
	plan := make(model.Plan, len(v.Queues))
	for i := range plan {
		slice := time.Duration(unit*float64(w(&v.Queues[i]))) / time.Microsecond * time.Microsecond
		plan[i] = model.Verdict{Run: true, Slice: max(slice, UsefulSlice)}
	}
	return plan
}

// lightest returns the smallest weight; 0: there is none. A queue beside a rival
// does not count if any other does: a small share must not stretch the slices of
// other users.
func (v *View) lightest(w weight) int {
	low, own := 0, 0
	for i := range v.Queues {
		q := &v.Queues[i]
		if !q.Eligible() {
			continue
		}
		least := &low
		if q.Rivalled {
			least = &own
		}
		if x := w(q); *least == 0 || x < *least {
			*least = x
		}
	}
	return cmp.Or(low, own)
}

// utilization is the share a queue asked for; the whole device by default. One of
// the best effort has at most what is spare.
func utilization(q *Queue) int {
	u := cmp.Or(q.Hint.Utilization, model.UtilizationMax)
	if q.Spare > 0 {
		return min(u, q.Spare)
	}
	return u
}
