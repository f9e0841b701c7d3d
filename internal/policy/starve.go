// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"xsched/internal/model"
)

// grant enforces the starvation bound. A queue that was ready for
// StarvationBound without progress gets a grant: one quantum in which it
// progresses whatever the policy says. A grant preempts only queues with a tiny
// slice. Where the device has slices, the starved queue gets a useful one and
// long ones shrink to the driver's own; without slices it is allowed to run and
// the driver shares the device.
//
// With n queues waiting, each progresses within B + 2*n*Quantum, where
// B = max(StarvationBound, 2*n*Quantum). The second term keeps a bound that n
// queues cannot share from taking the device away from the high class: between
// two grants passes at least one quantum, so grants take at most half.
type grant struct {
	active bool
	id     model.QueueID
	until  model.Time // end of the active grant
	rest   model.Time // no new grant before this
	count  uint64
}

// apply changes a plan so that a starved queue progresses, and returns when to
// ask again because of it. Queues that keep waiting are not considered: the
// engine asks StarvesAt once the plan is in force, as it may end their wait.
func (g *grant) apply(now model.Time, v *View, plan model.Plan) model.Time {
	if v.Knobs.StarvationBound <= 0 {
		g.active = false
		return model.Never
	}
	if g.active {
		if i := v.find(g.id); i >= 0 && v.Queues[i].Ready && now < g.until {
			v.favour(plan, i)
			return g.until
		}
		g.active = false
		g.rest = now.Add(v.Knobs.Quantum)
	}
	oldest, bound := v.starvation()
	if now < g.rest || now < oldest.Add(bound) {
		return model.Never
	}
	i := v.starved(plan)
	if i < 0 || now < v.Queues[i].WaitSince.Add(bound) {
		return model.Never
	}
	*g = grant{active: true, id: v.Queues[i].ID, until: now.Add(v.Knobs.Quantum), count: g.count + 1}
	v.favour(plan, i)
	return g.until
}

// starvesAt returns when the first waiting queue starves.
func (g *grant) starvesAt(v *View) model.Time {
	if v.Knobs.StarvationBound <= 0 || g.active {
		return model.Never
	}
	oldest, bound := v.starvation()
	if oldest == model.Never {
		return model.Never
	}
	return max(oldest.Add(bound), g.rest)
}

// StarvesAt returns when the starvation bound needs the next decision. The
// engine asks after a plan is in force, for the queues that wait because of it.
func (st *State) StarvesAt(v *View) model.Time { return st.grant.starvesAt(v) }

// Granted reports whether a starvation grant is active.
func (st *State) Granted() bool { return st.grant.active }

// Grants returns the number of grants so far.
func (st *State) Grants() uint64 { return st.grant.count }

// starvation returns since when the longest waiting queue waits (model.Never:
// none does), and how long a queue may wait, given how many do.
func (v *View) starvation() (oldest model.Time, bound time.Duration) {
	n := 0
	oldest = model.Never
	for i := range v.Queues {
		if q := &v.Queues[i]; q.Waiting() {
			n++
			oldest = min(oldest, q.WaitSince)
		}
	}
	return oldest, max(v.Knobs.StarvationBound, 2*v.Knobs.Quantum*time.Duration(n))
}

// starved returns the longest waiting queue of those that would keep waiting
// under the plan, or -1.
func (v *View) starved(plan model.Plan) int {
	var c Contention
	for i := range v.Queues {
		c.Add(&v.Queues[i], plan[i])
	}
	best := -1
	for i := range v.Queues {
		q := &v.Queues[i]
		if q.Waiting() && !c.Progresses(q, plan[i]) && (best < 0 || q.WaitSince < v.Queues[best].WaitSince) {
			best = i
		}
	}
	return best
}

// favour changes a plan so that queue i progresses.
func (v *View) favour(plan model.Plan, i int) {
	for j, verdict := range plan {
		switch {
		case j == i:
			continue
		case verdict.Run && verdict.Slice > v.Knobs.NativeSlice:
			verdict.Slice = 0
		case tiny(verdict):
			verdict.Run = false
		}
		plan[j] = v.fit(j, verdict)
	}
	plan[i] = v.fit(i, model.Verdict{Run: true, Limit: plan[i].Limit, Slice: v.Knobs.GrantSlice})
}
