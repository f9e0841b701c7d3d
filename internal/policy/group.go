// SPDX-License-Identifier: Apache-2.0

package policy

import "xsched/internal/model"

// Group is a set of queues of one device that run and stop together: those of
// one process, or those of a gang, which has members on other devices too.
type Group struct {
	Name    string // of a gang
	Members []int
	// Led: another device decides whether the group runs, and Run is its answer.
	Led, Run bool
	// Split: its members compete one by one, because a queue of another user does.
	Split bool
}

// applyGroups changes a plan so that all members of a group run, or none.
//
// On the device that leads, a group runs if the policy runs any of its members.
// On the others, a group that does not run is not admitted, so that the policy
// gives its time away. One that runs takes the turn of all queues that are not
// ranked above it. A starved queue keeps its grant.
func applyGroups(v *View, plan model.Plan, g *grant) {
	runs := make([]bool, len(v.Groups))
	for k := range v.Groups {
		group := &v.Groups[k]
		if group.Split {
			continue
		}
		if group.Led {
			runs[k] = group.Run
			continue
		}
		for _, i := range group.Members {
			if plan[i].Run {
				runs[k] = true
				v.join(plan, group, plan[i])
				break
			}
		}
	}
	// exempt queues keep running beside a gang that takes their turn.
	exempt := func(q *Queue) bool {
		return q.Group >= 0 && runs[q.Group] && v.Groups[q.Group].Name != ""
	}
	if j := v.find(g.id); g.active && j >= 0 {
		favoured, inGang := v.Queues[j].Group, exempt
		exempt = func(q *Queue) bool {
			return q.ID == g.id || favoured >= 0 && q.Group == favoured || inGang(q)
		}
	}
	for k := range v.Groups {
		if group := &v.Groups[k]; group.Led && group.Run && !group.Split {
			v.pin(plan, group, exempt)
		}
	}
	v.lengthen(plan)
}

// join runs the stopped members of a group as one of them runs.
func (v *View) join(plan model.Plan, group *Group, verdict model.Verdict) {
	for _, i := range group.Members {
		if !plan[i].Run {
			plan[i] = v.fit(i, verdict)
		}
	}
}

// pin runs a group that another device has decided to run.
func (v *View) pin(plan model.Plan, group *Group, exempt func(*Queue) bool) {
	turn := model.Verdict{Run: true, Limit: true}
	for _, i := range group.Members {
		if plan[i].Run || !v.Queues[i].Ready {
			continue
		}
		for j := range plan {
			if q := &v.Queues[j]; plan[j].Run && q.Rank <= v.Queues[i].Rank && !exempt(q) {
				turn.Slice = max(turn.Slice, plan[j].Slice)
				plan[j] = v.fit(j, model.Verdict{Limit: true, Slice: plan[j].Slice})
			}
		}
	}
	v.join(plan, group, turn)
}

// lengthen gives the members of groups useful slices where several ready queues
// have tiny ones: two queues with tiny slices only switch.
func (v *View) lengthen(plan model.Plan) {
	grouped, all := 0, 0
	for i := range v.Queues {
		if q := &v.Queues[i]; q.Ready && tiny(plan[i]) {
			all++
			if q.Group >= 0 {
				grouped++
			}
		}
	}
	if grouped == 0 || all == 1 {
		return
	}
	for i := range v.Queues {
		if v.Queues[i].Group >= 0 && tiny(plan[i]) {
			plan[i].Slice = UsefulSlice
		}
	}
}
