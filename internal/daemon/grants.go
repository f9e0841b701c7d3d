// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"maps"
	"slices"

	"xsched/internal/control"
	"xsched/internal/identity"
	"xsched/internal/model"
)

// grants are the grants of all sources. A change makes a new value.
type grants struct {
	number  uint64 // increases with every change
	sources map[string][]control.Grant
	pods    map[string][]grant // by pod UID
}

// grant is one grant with its hints.
type grant struct {
	control.Grant
	source string
	hints  model.HintChange
}

// newGrants indexes grants that were checked.
func newGrants(number uint64, sources map[string][]control.Grant) *grants {
	g := &grants{number: number, sources: sources, pods: map[string][]grant{}}
	for _, source := range slices.Sorted(maps.Keys(sources)) {
		for _, one := range sources[source] {
			hints, _ := one.Hints()
			uid := identity.PodUID(one.PodUID)
			g.pods[uid] = append(g.pods[uid], grant{one, source, hints})
		}
	}
	return g
}

// Grants implements control.Control.
func (d *Daemon) Grants(_ context.Context, c control.Caller, r control.GrantsRequest) (control.GrantsReply, error) {
	if err := d.owner(c, "grants"); err != nil {
		return control.GrantsReply{}, err
	}
	if r.Source == "" {
		return d.grantsReply(d.grants.Load(), ""), nil
	}
	if err := r.Check(); err != nil {
		return control.GrantsReply{}, err
	}
	d.reload.Lock()
	defer d.reload.Unlock()
	old := d.grants.Load()
	next := maps.Clone(old.sources)
	if next[r.Source] = slices.Clone(r.Grants); len(r.Grants) == 0 {
		delete(next, r.Source)
	}
	total := 0
	for _, all := range next {
		total += len(all)
	}
	switch {
	case len(next) > control.MaxGrantSources:
		return control.GrantsReply{}, control.Errorf(control.ErrInvalid, "remove the grants of a source first", "%d sources of grants are too many: at most %d are possible", len(next), control.MaxGrantSources)
	case total > control.MaxGrants:
		return control.GrantsReply{}, control.Errorf(control.ErrInvalid, "remove grants of pods that have ended", "%d grants are too many: at most %d are possible", total, control.MaxGrants)
	}
	now := newGrants(old.number+1, next)
	d.grants.Store(now)
	return d.grantsReply(now, r.Source), nil
}

// grantsReply lists the grants of a source, or of all.
func (d *Daemon) grantsReply(g *grants, source string) control.GrantsReply {
	out := control.GrantsReply{Grants: []control.GrantEntry{}}
	for _, name := range slices.Sorted(maps.Keys(g.sources)) {
		if source != "" && name != source {
			continue
		}
		for _, one := range g.sources[name] {
			out.Grants = append(out.Grants, control.GrantEntry{Source: name, Grant: one})
		}
	}
	return out
}
