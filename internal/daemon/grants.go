// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"xsched/internal/control"
	"xsched/internal/identity"
	"xsched/internal/journal"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// Grants implements control.Control.
func (d *Daemon) Grants(ctx context.Context, c control.Caller, r control.GrantsRequest) (control.GrantsReply, error) {
	reply, _, err := d.setGrants(ctx, c, r)
	return reply, err
}

// Grants implements control.Control. One entry of the journal describes the difference.
func (a audited) Grants(ctx context.Context, c control.Caller, r control.GrantsRequest) (control.GrantsReply, error) {
	reply, diff, err := a.setGrants(ctx, c, r)
	switch {
	case diff != "": // applied, also where the reply failed
		a.chronicle.audit(c, journal.Entry{What: changeGrants + " of " + r.Source, After: diff, Cluster: true})
	case err != nil && r.Source != "":
		a.chronicle.refused(c, changeGrants, err)
	}
	return reply, err
}

// setGrants replaces the grants of a source and returns what has changed; empty: nothing has.
func (d *Daemon) setGrants(ctx context.Context, c control.Caller, r control.GrantsRequest) (control.GrantsReply, string, error) {
	none := control.GrantsReply{}
	if err := d.access.owner(c, "grants"); err != nil {
		return none, "", err
	}
	if r.Source == "" {
		reply, err := d.grantsReply(ctx, d.terms.grants.Load(), "")
		return reply, "", err
	}
	if err := r.Check(); err != nil {
		return none, "", err
	}
	d.terms.changing.Lock()
	defer d.terms.changing.Unlock()
	old := d.terms.grants.Load()
	next := maps.Clone(old.sources)
	if next[r.Source] = slices.Clone(r.Grants); len(r.Grants) == 0 {
		delete(next, r.Source)
	}
	if err := checkTotal(next); err != nil {
		return none, "", err
	}
	change := compareGrants(old.sources[r.Source], r.Grants)
	now := old
	if change.some() {
		now = newGrants(old.number+1, next)
		now.past = old.past.after(old, now)
		if err := d.applyGrants(ctx, old, now); err != nil {
			return none, "", err
		}
		d.keeper.setGrants(next)
		d.keeper.flush(ctx)
		d.log.Info("grants changed", "source", r.Source, "grants", len(r.Grants), "added", change.added, "changed", change.changed, "removed", change.removed, "user", c.User)
	}
	reply, err := d.grantsReply(ctx, now, r.Source)
	reply.Added, reply.Changed, reply.Removed = change.added, change.changed, change.removed
	return reply, change.text(), err
}

// checkTotal bounds the grants of all sources.
func checkTotal(sources map[string][]control.Grant) error {
	total := 0
	for _, all := range sources {
		total += len(all)
	}
	switch {
	case len(sources) > control.MaxGrantSources:
		return control.Errorf(control.ErrInvalid, "remove the grants of a source first", "%d sources of grants are too many: at most %d are possible", len(sources), control.MaxGrantSources)
	case total > control.MaxGrants:
		return control.Errorf(control.ErrInvalid, "remove grants of pods that have ended", "%d grants are too many: at most %d are possible", total, control.MaxGrants)
	}
	return nil
}

// applyGrants makes grants take effect for new programs and then for running ones. The engine's thread
// pays for programs of pods with a change only.
func (d *Daemon) applyGrants(ctx context.Context, old, now *grants) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	d.terms.grants.Store(now) // from here on, clients that join get the new terms
	clients, err := d.loop.Identities(ctx)
	if err == nil {
		if terms := d.changedTerms(old, now, clients); len(terms) > 0 {
			err = d.loop.SetAllTerms(ctx, terms)
		}
	}
	if err != nil { // programs that joined meanwhile may have them: see grants.unsure
		d.terms.grants.Store(&grants{number: old.number + 2, sources: old.sources, pods: old.pods, past: old.past, unsure: true})
	}
	return typed(unavailable(err))
}

// changedTerms returns the terms of clients whose grants differ.
func (d *Daemon) changedTerms(old, now *grants, clients []loop.Identity) map[model.SessionID]loop.Terms {
	terms := map[model.SessionID]loop.Terms{}
	for i := range clients {
		who := &clients[i]
		before, after := old.of(who), now.of(who)
		if old.unsure && who.Program != nil && who.Program.Pod.UID != "" || !before.same(&after) {
			terms[who.ID] = d.terms.of(*who)
		}
	}
	return terms
}

// grantsReply lists the grants of a source, or of all, with the programs that have them.
func (d *Daemon) grantsReply(ctx context.Context, g *grants, source string) (control.GrantsReply, error) {
	out := control.GrantsReply{Grants: []control.GrantEntry{}}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	clients, err := d.loop.Identities(ctx)
	if err != nil {
		return out, typed(unavailable(err))
	}
	pods := map[identity.Pod][]int{}
	for i := range clients {
		if p := clients[i].Program; p != nil && p.Pod.UID != "" {
			pods[p.Pod] = append(pods[p.Pod], clients[i].PID)
			if p.Pod.Container != "" {
				pods[p.Pod.Whole()] = append(pods[p.Pod.Whole()], clients[i].PID)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(g.sources)) {
		if source != "" && name != source {
			continue
		}
		for _, one := range g.sources[name] {
			pids := slices.Sorted(slices.Values(pods[identity.Pod{UID: identity.PodUID(one.PodUID), Container: one.ContainerID}]))
			out.Grants = append(out.Grants, control.GrantEntry{Source: name, Grant: one, PIDs: pids})
		}
	}
	return out, nil
}

// restoreGrants returns the grants that a previous daemon kept.
func restoreGrants(kept map[string]json.RawMessage, log *slog.Logger) *grants {
	sources := map[string][]control.Grant{}
	for _, source := range slices.Sorted(maps.Keys(kept)) {
		r := control.GrantsRequest{Source: source}
		err := json.Unmarshal(kept[source], &r.Grants)
		if err == nil {
			err = r.Check()
		}
		if err == nil {
			sources[source] = r.Grants
			err = checkTotal(sources)
		}
		if err != nil {
			delete(sources, source)
			log.Warn("grants of the previous daemon are lost until their source sends them again", "source", source, "err", err)
		}
	}
	return newGrants(0, sources)
}

// grantChange is the difference between two sets of grants of a source.
type grantChange struct {
	added, changed, removed int
	parts                   []string
}

func (c *grantChange) some() bool { return c.added+c.changed+c.removed > 0 }

// maxGrantParts bounds the grants that an entry of the journal names.
const maxGrantParts = 8

func compareGrants(old, now []control.Grant) grantChange {
	var out grantChange
	before := make(map[string]*control.Grant, len(old))
	for i := range old {
		before[old[i].ID] = &old[i]
	}
	for i := range now {
		g := &now[i]
		was := before[g.ID]
		delete(before, g.ID)
		switch {
		case was == nil:
			out.added++
			out.part("+", g, "")
		case grantText(was) != grantText(g):
			out.changed++
			out.part("", g, hintsText(was)+" to ")
		}
	}
	for _, id := range slices.Sorted(maps.Keys(before)) {
		out.removed++
		out.part("-", before[id], "")
	}
	return out
}

func (c *grantChange) part(sign string, g *control.Grant, from string) {
	if len(c.parts) < maxGrantParts {
		c.parts = append(c.parts, fmt.Sprintf("%s%s (%s%s)", sign, control.PodName(g.Namespace, g.Pod, g.Container), from, hintsText(g)))
	}
}

// text describes the change in one line; empty: nothing has changed.
func (c *grantChange) text() string {
	if !c.some() {
		return ""
	}
	text := fmt.Sprintf("%d added, %d changed, %d removed: %s", c.added, c.changed, c.removed, strings.Join(c.parts, ", "))
	if n := c.added + c.changed + c.removed - len(c.parts); n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

func grantText(g *control.Grant) string {
	text, _ := json.Marshal(g) // strings and numbers
	return string(text)
}

// hintsText lists the class and the hints of a grant: "gpu-batch priority=-10".
func hintsText(g *control.Grant) string {
	var parts []string
	if g.Class != "" {
		parts = append(parts, g.Class)
	}
	if hints, err := g.Hints(); err == nil && !hints.Empty() {
		var h model.Hint
		hints.Apply(&h)
		shown := control.HintsOf(&h)
		parts = append(parts, hintText(&shown, &hints))
	}
	if len(parts) == 0 {
		return "name only"
	}
	return strings.Join(parts, " ")
}
