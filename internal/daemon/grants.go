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
	"xsched/internal/keeper"
	"xsched/internal/model"
)

// granting changes the grants of sources and applies them to the programs.
type granting struct {
	log    *slog.Logger
	access *access
	terms  *terms
	keeper *keeper.Keeper
}

// Grants implements control.Control.
func (s *granting) Grants(ctx context.Context, c control.Caller, r control.GrantsRequest) (control.GrantsReply, error) {
	reply, _, err := s.replace(ctx, c, r)
	return reply, err
}

// replace replaces the grants of a source and returns what has changed; empty: nothing has.
func (s *granting) replace(ctx context.Context, c control.Caller, r control.GrantsRequest) (control.GrantsReply, string, error) {
	none := control.GrantsReply{}
	if err := s.access.owner(c, "grants"); err != nil {
		return none, "", err
	}
	if r.Source == "" {
		reply, err := s.reply(ctx, s.terms.grants.Load(), "")
		return reply, "", err
	}
	if err := r.Check(); err != nil {
		return none, "", err
	}
	s.terms.changing.Lock()
	defer s.terms.changing.Unlock()
	old := s.terms.grants.Load()
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
		if err := s.apply(ctx, old, now); err != nil {
			return none, "", err
		}
		s.keeper.SetGrants(next)
		s.keeper.Flush(ctx)
		s.log.Info("grants changed", "source", r.Source, "grants", len(r.Grants), "added", change.added, "changed", change.changed, "removed", change.removed, "user", c.User)
	}
	reply, err := s.reply(ctx, now, r.Source)
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

// apply makes grants take effect for new programs and then for running ones. The engine's thread
// pays for programs of pods with a change only.
func (s *granting) apply(ctx context.Context, old, now *grants) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	s.terms.grants.Store(now) // from here on, clients that join get the new terms
	clients, err := s.access.loop.Identities(ctx)
	if err == nil {
		if terms := s.terms.changed(old, now, clients); len(terms) > 0 {
			err = s.access.loop.SetAllTerms(ctx, terms)
		}
	}
	if err != nil { // programs that joined meanwhile may have them: see grants.unsure
		s.terms.grants.Store(&grants{number: old.number + 2, sources: old.sources, pods: old.pods, past: old.past, unsure: true})
	}
	return typed(unavailable(err))
}

// reply lists the grants of a source, or of all, with the programs that have them.
func (s *granting) reply(ctx context.Context, g *grants, source string) (control.GrantsReply, error) {
	out := control.GrantsReply{Grants: []control.GrantEntry{}}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	clients, err := s.access.loop.Identities(ctx)
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
