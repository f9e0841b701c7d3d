// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"slices"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// gang is the queues with one name. One of its devices leads: the policy
// decides there whether the gang runs, and the others follow.
type gang struct {
	name    string
	members []*record // those on the leading device first
	lead    *device
	run     bool // as decided there
	held    bool // a member may not run, so none does
}

// regroup finds the gangs again after queues came, went or changed. The most crowded
// device of a gang leads, because there the gang has most to wait for.
func (e *Engine) regroup() {
	if !e.regrouping {
		return
	}
	e.regrouping = false
	old := e.gangs
	e.gangs = nil
	e.order = append(e.order[:0], e.devices...)
	if !e.anyGang && len(old) == 0 {
		return
	}
	slices.SortStableFunc(e.order, func(a, b *device) int {
		return cmp.Or(cmp.Compare(len(b.records), len(a.records)), cmp.Compare(a.id, b.id))
	})
	e.anyGang = false
	for _, d := range e.order {
		d.reorder() // so that who stands for a gang is always the same
		for i, r := range d.records {
			q := &d.view.Queues[i]
			if r.gang = nil; q.Hint.Gang == "" {
				continue
			}
			e.anyGang = true
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
	for _, d := range e.devices {
		d.restructure()
	}
}

// follows says that the gang's verdict is another device's, and matters.
func (g *gang) follows(d *device, cfg *Config) bool {
	return g.lead != d && cfg.Mode != model.ModeOff && cfg.Mode != model.ModeTimeslice
}

// ready says that any member has work.
func (g *gang) ready() bool {
	for _, r := range g.members {
		if r.dev.view.Queues[r.index].Ready() {
			return true
		}
	}
	return false
}

// group tells the view which of its queues belong together.
func (d *device) group(cfg *Config) {
	v := &d.view
	groups := v.Groups[:0]
	if cfg.Mode == model.ModeOff {
		return
	}
	done := d.next // empty so far
	for i, r := range d.records {
		if done.Has(i) {
			continue
		}
		var group policy.Group
		if g := r.gang; g != nil {
			group = policy.Group{Led: g.follows(d, cfg), Run: g.run, Name: g.name}
			for _, m := range g.members {
				if m.dev == d {
					group.Members = append(group.Members, m.index)
				}
			}
		} else if int(v.Kin[i]) != i && !v.Queues[i].Hint.PerQueue {
			group.Members = append(group.Members, i)
			for j := int(v.Kin[i]); j != i; j = int(v.Kin[j]) {
				if d.records[j].gang == nil && !v.Queues[j].Hint.PerQueue {
					group.Members = append(group.Members, j)
				}
			}
		}
		for _, m := range group.Members {
			done.Put(m, true)
		}
		if len(group.Members) > 1 || group.Name != "" {
			groups = append(groups, group)
		}
	}
	clear(done)
	v.SetGroups(groups)
	for k := range groups {
		if g := d.records[groups[k].Members[0]].gang; g != nil {
			d.follow(g, cfg)
		}
	}
}

// follow brings the sets of a device in line with a gang.
func (d *device) follow(g *gang, cfg *Config) {
	v := &d.view
	may := cfg.Mode == model.ModeTimeslice || !g.held && (g.run || !g.follows(d, cfg))
	for _, r := range g.members {
		if r.dev != d {
			continue
		}
		q := &v.Queues[r.index]
		v.Eligible.Put(r.index, may && q.Eligible())
		v.Ready.Put(r.index, may && q.Ready())
		v.Recheck(r.index)
	}
	if rep := g.members[0]; rep.dev == d && v.Eligible.Has(rep.index) && g.ready() {
		v.Ready.Put(rep.index, true) // work elsewhere is its work
	}
}

// gangChanged follows a change of a member's work.
func (e *Engine) gangChanged(now model.Time, g *gang) {
	if e.regrouping {
		return // it will be found anew
	}
	for _, d := range e.devices {
		if len(d.view.Groups) == 0 || d.moved {
			continue
		}
		rep := g.members[0]
		was := rep.dev == d && d.view.Ready.Has(rep.index)
		d.follow(g, &e.cfg)
		if rep.dev == d && !was && d.view.Ready.Has(rep.index) {
			d.startWait(now, rep)
		}
	}
	g.lead.dirty = true
}

// lead takes over what a device decided about the gangs it leads.
func (e *Engine) lead(now model.Time, d *device) {
	for k := range d.view.Groups {
		group := &d.view.Groups[k]
		g := e.gangs[group.Name]
		if g == nil || g.lead != d || g.run == group.Run {
			continue
		}
		g.run = group.Run
		for _, r := range g.members {
			o := r.dev
			if o == d {
				continue
			}
			o.dirty = true
			if g.run && o.view.Queues[r.index].Ready() {
				o.startWait(now, r) // it waited elsewhere
			}
			if o.moved {
				continue
			}
			for k := range o.view.Groups {
				if o.view.Groups[k].Name == g.name {
					o.view.Groups[k].Run = g.run
				}
			}
			o.follow(g, &e.cfg)
		}
	}
}
