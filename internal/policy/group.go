// SPDX-License-Identifier: Apache-2.0

package policy

import "xsched/internal/model"

// Group is queues of one device that run and stop together: those of one process, or those of
// a gang, which has members on other devices too.
type Group struct {
	Name    string // of a gang
	Members []int
	// Led: the verdict is another device's, and Run is what it says. Otherwise Run is
	// what was decided here.
	Led, Run bool
}

// grouped puts the groups around a policy: all members of a group run, or none.
//
// On the device that leads, a group runs if the policy runs any of its members. On the
// others a group that does not run is not eligible, so that the policy gives its
// time away, and one that runs takes the turn of those that are not ranked above it. Who
// is starved and has a grant keeps it.
type grouped struct{ Policy }

var _ Policy = grouped{}

// Decide implements Policy.
func (g grouped) Decide(now model.Time, v *View) (model.Plan, model.Time) {
	plan, wake := g.Policy.Decide(now, v)
	if len(v.Groups) == 0 || !v.CanSuspend {
		return plan, wake
	}
	for k := range v.Groups {
		if group := &v.Groups[k]; !group.Led {
			group.Run = false
			for _, i := range group.Members {
				if plan[i].Run {
					group.Run = true
					v.join(plan, group, plan[i])
					break
				}
			}
		}
	}
	for k := range v.Groups {
		if group := &v.Groups[k]; group.Led && group.Run {
			v.pin(plan, group)
		}
	}
	v.useful(plan)
	return plan, wake
}

// join lets all members run as one of them does.
func (v *View) join(plan model.Plan, group *Group, verdict model.Verdict) {
	for _, i := range group.Members {
		if !plan[i].Run {
			v.Set(i, verdict)
		}
	}
}

// useful makes the tiny slices of groups longer where several of them have work: two
// queues with tiny slices only switch.
func (v *View) useful(plan model.Plan) {
	tiny := 0
	for k := range v.Groups {
		for _, i := range v.Groups[k].Members {
			tiny += b2i(isTiny(plan[i]) && v.Ready.Has(i))
		}
	}
	if tiny == 0 {
		return
	}
	if tiny == 1 {
		tiny = 0
		for i := v.Ready.Next(0); i >= 0; i = v.Ready.Next(i + 1) {
			tiny += b2i(isTiny(plan[i]))
		}
	}
	if tiny == 1 {
		return
	}
	for k := range v.Groups {
		for _, i := range v.Groups[k].Members {
			if verdict := plan[i]; isTiny(verdict) {
				verdict.Slice = UsefulSlice
				v.Set(i, verdict)
			}
		}
	}
}

func isTiny(p model.Verdict) bool { return p.Run && p.Slice != 0 && p.Slice < UsefulSlice }

// pin lets a group run that another device has decided to run.
func (v *View) pin(plan model.Plan, group *Group) {
	turn := model.Verdict{Run: true, Limit: true}
	for _, i := range group.Members {
		if plan[i].Run || !v.Ready.Has(i) {
			continue
		}
		rank := v.Queues[i].Rank
		for j := range plan {
			if !plan[j].Run || v.Queues[j].Rank > rank || v.inGang(j) || v.granted(j) {
				continue
			}
			turn.Slice = max(turn.Slice, plan[j].Slice)
			v.Set(j, model.Verdict{Limit: true, Slice: plan[j].Slice})
		}
	}
	for _, i := range group.Members {
		if !plan[i].Run && v.Eligible.Has(i) {
			v.Set(i, turn)
		}
	}
}

// inGang says whether a queue belongs to a gang that runs.
func (v *View) inGang(i int) bool {
	k := v.GroupOf[i]
	return k >= 0 && v.Groups[k].Run && v.Groups[k].Name != ""
}

// granted says whether a queue has a grant, or one that runs with it.
func (v *View) granted(i int) bool {
	if !v.Grant.Active {
		return false
	}
	j := v.find(v.Grant.Queue, v.Grant.index)
	return j >= 0 && (i == j || v.GroupOf[i] >= 0 && v.GroupOf[i] == v.GroupOf[j])
}

// SetGroups says which queues of the view run and stop together.
func (v *View) SetGroups(groups []Group) {
	v.Groups = groups
	for i := range v.GroupOf {
		v.GroupOf[i] = -1
	}
	for k := range groups {
		for _, i := range groups[k].Members {
			v.GroupOf[i] = int32(k)
		}
	}
}

// others is a set without queue i and those that run with it.
func (v *View) others(set Set, i int) Set {
	copy(v.rest, set)
	v.rest.Put(i, false)
	if k := v.GroupOf[i]; k >= 0 {
		for _, m := range v.Groups[k].Members {
			v.rest.Put(m, false)
		}
	}
	return v.rest
}
