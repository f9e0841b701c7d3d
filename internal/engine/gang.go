// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"slices"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// gang is the queues with one gang name. One of its devices leads: the policy in
// force there decides whether the gang runs, and the other devices follow. On a
// device in mode off a queue belongs to no gang. A device in mode timeslice never
// leads one that suspends, and does not follow.
type gang struct {
	name    string
	members []*record // those on the leading device first
	lead    *device
	run     bool // as decided there
	held    bool // a member may not run, so none does
}

// regroup finds the gangs after queues, policies or modes changed. The most crowded
// device of a gang leads, because the gang waits longest there. Devices that do not
// suspend come last, because their decision would bind nobody.
func (e *Engine) regroup() {
	if !e.regrouping {
		return
	}
	e.regrouping = false
	old := e.gangs
	e.gangs = nil
	if !e.anyGang && len(old) == 0 {
		return
	}
	order := slices.Clone(e.devices)
	slices.SortStableFunc(order, func(a, b *device) int {
		return cmp.Or(boolOrder(b.cfg.suspends(), a.cfg.suspends()), cmp.Compare(len(b.records), len(a.records)), cmp.Compare(a.id, b.id))
	})
	e.anyGang = false
	for k, d := range order {
		d.place = k
		if !d.ganged() {
			continue
		}
		d.restructure()
		d.sort() // so that a gang always has the same first member
		for i, r := range d.records {
			q := &d.view.Queues[i].Queue
			if r.gang = nil; q.Hint.Gang == "" {
				continue
			}
			e.anyGang = true
			if d.cfg.Mode == model.ModeOff {
				continue
			}
			g := e.gangs[q.Hint.Gang]
			if g == nil {
				g = &gang{name: q.Hint.Gang, lead: d}
				if was := old[g.name]; was != nil && was.lead == d {
					g.run = was.run
				}
				if e.gangs == nil {
					e.gangs = make(map[string]*gang)
				}
				e.gangs[g.name] = g
			}
			g.members, r.gang = append(g.members, r), g
			g.held = g.held || !q.Eligible()
		}
	}
	if !e.anyGang {
		for _, d := range e.devices {
			d.place = 0
		}
	}
}

// ganged reports that a queue of the device belongs to a gang, or did.
func (d *device) ganged() bool {
	for i, r := range d.records {
		if r.gang != nil || d.view.Queues[i].Hint.Gang != "" {
			return true
		}
	}
	return false
}

// follows reports that another device decides about the gang, and that it matters.
func (g *gang) follows(d *device) bool { return g.lead != d && d.cfg.suspends() }

// boolOrder orders false before true.
func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// ready reports that any member has work.
func (g *gang) ready() bool {
	return slices.ContainsFunc(g.members, func(r *record) bool { return hasWork(r.dev.queue(r)) })
}

// findGroups finds the queues of a device that run and stop together: the members
// of a gang, and the queues of a process that are not scheduled on their own.
func (d *device) findGroups() {
	v, cfg := &d.view, &d.cfg
	v.Groups = nil
	gangs, processes := map[*gang]int{}, make([][]int, v.Processes)
	for i, r := range d.records {
		q := &v.Queues[i]
		q.Group = -1
		if g := r.gang; g != nil && cfg.Mode != model.ModeOff {
			k, known := gangs[g]
			if !known {
				k = len(v.Groups)
				gangs[g] = k
				v.Groups = append(v.Groups, policy.Group{Led: g.follows(d), Name: g.name})
			}
			v.Groups[k].Members, q.Group = append(v.Groups[k].Members, i), k
		} else if g == nil && !q.Hint.PerQueue {
			processes[q.Process] = append(processes[q.Process], i)
		}
	}
	for _, members := range processes {
		if len(members) > 1 && cfg.Mode != model.ModeOff {
			for _, i := range members {
				v.Queues[i].Group = len(v.Groups)
			}
			v.Groups = append(v.Groups, policy.Group{Members: members})
		}
	}
}

// admit decides which members of a gang compete on a device. Work of a member
// elsewhere counts as work of the first member, unless the gang is split here.
func (d *device) admit(now model.Time, g *gang, split bool) {
	may := d.cfg.Mode == model.ModeTimeslice || !g.held && (split || g.run || !g.follows(d))
	for _, r := range g.members {
		if r.dev != d {
			continue
		}
		q, was := d.queue(r), d.queue(r).Ready
		q.Admitted, q.Ready = may && q.Eligible(), may && hasWork(q)
		if r == g.members[0] && !split && q.Admitted && !q.Ready && g.ready() {
			if q.Ready = true; !was {
				d.startWait(now, r)
			}
		}
	}
}

// lead applies a device's decision about the gangs it leads.
func (e *Engine) lead(now model.Time, d *device) {
	if !d.cfg.suspends() {
		return
	}
	for k := range d.view.Groups {
		group := &d.view.Groups[k]
		g, run := e.gangs[group.Name], d.view.Queues[group.Members[0]].Running
		if g == nil || g.lead != d || g.run == run {
			continue
		}
		g.run = run
		for _, r := range g.members {
			if r.dev == d {
				continue
			}
			r.dev.mark()
			if g.run && hasWork(r.dev.queue(r)) {
				r.dev.startWait(now, r) // it waited elsewhere
			}
		}
	}
}
