// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"xsched/internal/model"
)

// guarded puts the starvation bound around a policy: a queue that was ready
// for StarvationBound without a chance to progress gets a grant, one quantum in which it
// progresses whatever the policy says. Nobody is stopped for it who would run otherwise,
// except a low with a tiny slice: where the device has slices the starved queue
// gets a useful one and the long ones shrink to the driver's own; without
// slices it is enabled, and the driver shares the device.
//
// What it promises: with n queues waiting on a device each of them progresses
// within B + 2*n*Quantum, where B = max(StarvationBound, 2*n*Quantum). The second term
// of B is there because a bound that so many queues can't share must not
// take the device away from the high; between two grants there is at least one
// quantum without, so grants never take more than half.
type guarded struct{ Policy }

var _ Policy = guarded{}

// guardScratch is room to work out who progresses under a plan.
type guardScratch struct{ running, long, tiny, chances Set }

func (g *guardScratch) reset(n int) {
	g.running, g.long = g.running.Reset(n), g.long.Reset(n)
	g.tiny, g.chances = g.tiny.Reset(n), g.chances.Reset(n)
}

// Decide implements Policy.
func (g guarded) Decide(now model.Time, v *View) (model.Plan, model.Time) {
	plan, wake := g.Policy.Decide(now, v)
	if v.Knobs.StarvationBound <= 0 {
		v.Grant.Active = false
		return plan, wake
	}
	grant := &v.Grant
	if grant.Active {
		if i := v.find(grant.Queue, grant.index); i >= 0 && v.Ready.Has(i) && now < grant.Until {
			v.grant(plan, i)
			return plan, min(wake, grant.Until)
		}
		grant.Active = false
		grant.Rest = now.Add(v.Knobs.Quantum)
	}

	// When to look again at those that still wait the engine asks when the plan is in force: most of
	// those that wait now may run by it.
	if now < v.StarvesAt() {
		return plan, wake
	}
	i := v.starved(plan)
	if i < 0 || now < v.Clocks[i].Wait.Add(v.bound()) {
		return plan, wake
	}
	until := now.Add(v.Knobs.Quantum)
	*grant = Grant{Active: true, Queue: v.Queues[i].ID, index: i, Until: until, Count: grant.Count + 1}
	v.grant(plan, i)
	return plan, min(wake, until)
}

// bound is how long a queue may wait, given how many do.
func (v *View) bound() time.Duration {
	return max(v.Knobs.StarvationBound, 2*v.Knobs.Quantum*time.Duration(v.Waiting.Count()))
}

// StarvesAt returns when the guard must look at the waiting queues at the latest. The
// engine asks after a plan is in force, for those that wait because of it.
func (v *View) StarvesAt() model.Time {
	if v.Knobs.StarvationBound <= 0 || v.Grant.Active || v.Waiting.Next(0) < 0 {
		return model.Never
	}
	return max(v.OldestWait.Add(v.bound()), v.Grant.Rest)
}

// starved returns the queue that has waited longest of those that would go on
// waiting under the plan, or -1, and makes OldestWait exact.
func (v *View) starved(plan model.Plan) int {
	g := &v.guard
	for i, verdict := range plan {
		g.running.Put(i, verdict.Run)
		g.long.Put(i, verdict.Slice >= LongSlice)
		g.tiny.Put(i, verdict.Slice != 0 && verdict.Slice < UsefulSlice)
	}
	Chances(v.Ready, g.running, g.long, g.tiny, g.chances)
	best := -1
	v.OldestWait = model.Never
	for i := v.Waiting.Next(0); i >= 0; i = v.Waiting.Next(i + 1) {
		since := v.Clocks[i].Wait
		v.OldestWait = min(v.OldestWait, since)
		if !g.chances.Has(i) && (best < 0 || since < v.Clocks[best].Wait) {
			best = i
		}
	}
	return best
}

// grant changes a plan so that queue i progresses.
func (v *View) grant(plan model.Plan, i int) {
	for j, verdict := range plan {
		switch {
		case j == i || !verdict.Run:
		case verdict.Slice > v.Knobs.NativeSlice:
			verdict.Slice = 0
			v.Set(j, verdict)
		case verdict.Slice != 0 && verdict.Slice < UsefulSlice:
			verdict.Run = false
			v.Set(j, verdict)
		}
	}
	v.Set(i, model.Verdict{Run: true, Limit: plan[i].Limit, Slice: v.Knobs.GrantSlice})
}

// find returns the index of a queue that was at a place before, or -1.
func (v *View) find(id model.QueueID, was int) int {
	if was < len(v.Queues) && v.Queues[was].ID == id {
		return was
	}
	for i := range v.Queues {
		if v.Queues[i].ID == id {
			return i
		}
	}
	return -1
}
