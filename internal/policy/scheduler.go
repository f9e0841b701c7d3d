// SPDX-License-Identifier: Apache-2.0

package policy

import "xsched/internal/model"

// Scheduler is a policy of the registry with the starvation bound and group
// scheduling applied to it.
type Scheduler struct {
	name     string
	policy   erased
	ranker   Ranker    // nil: rank is priority
	strategy *Strategy // nil: the default
}

// State is a scheduler's state of one device. The engine keeps it between
// decisions; its content is opaque to the engine.
type State struct {
	policy any // *S of the policy
	grant  grant
}

// Ungranted returns the state without starvation grants.
func (st *State) Ungranted() *State { return &State{policy: st.policy} }

// erased is a Policy[S] whose state type is hidden, so that one registry can
// hold policies with different states.
type erased struct {
	impl     any
	newState func() any
	decide   func(now model.Time, v *View, state any) (model.Plan, model.Time)
}

// erase hides the state type of a policy.
func erase[S any](p Policy[S]) erased {
	return erased{
		impl:     p,
		newState: func() any { return new(S) },
		decide: func(now model.Time, v *View, state any) (model.Plan, model.Time) {
			return p.Decide(now, v, state.(*S)) //nolint:forcetypeassert // newState made it
		},
	}
}

// Name is the name of the policy in the registry.
func (s *Scheduler) Name() string { return s.name }

// Strategy is what the policy does beside launch-bound requests; nil: the default.
func (s *Scheduler) Strategy() *Strategy { return s.strategy }

// NewState returns the state of a new device.
func (s *Scheduler) NewState() *State { return &State{policy: s.policy.newState()} }

// Protects reports that the policy runs higher queues before all lower ones.
func (s *Scheduler) Protects() bool {
	_, ok := s.policy.impl.(protector)
	return ok
}

// protector is a policy that runs higher queues before all lower ones.
type protector interface{ protects() }

func (HPF) protects() {}
func (SLO) protects() {}

// Rank is the rank of a queue under this policy.
func (s *Scheduler) Rank(q *model.Queue, process model.Priority) model.Priority {
	if s.ranker == nil {
		return q.Hint.Priority
	}
	return s.ranker.Rank(q, process)
}

// Decide returns the plan for a device and the latest time at which to ask
// again. It writes to the state only.
func (s *Scheduler) Decide(now model.Time, v *View, st *State) (model.Plan, model.Time) {
	plan, wake := s.policy.decide(now, v, st.policy)
	for i := range plan {
		plan[i] = v.fit(i, plan[i])
	}
	wake = min(wake, st.grant.apply(now, v, plan))
	if len(v.Groups) > 0 && v.CanSuspend {
		applyGroups(v, plan, &st.grant)
	}
	for i := 0; v.AnyCopying && i < len(plan); i++ {
		if v.Queues[i].Copying {
			plan[i] = model.Verdict{Run: true}
		}
	}
	for i := 0; s.strategy != nil && s.strategy.GatherAll && i < len(plan); i++ {
		plan[i].Gather = model.WholeRequest
	}
	return plan, wake
}
