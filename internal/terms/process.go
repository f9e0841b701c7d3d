// SPDX-License-Identifier: Apache-2.0

// Package terms owns the hints, limits and shares in force for a program: it derives them from the
// configuration, a grant, the administrator, control clients and the program. It must not know how
// any of these reach the daemon, nor what the engine makes of the result.
package terms

import (
	"slices"

	"xsched/internal/identity"
	"xsched/internal/model"
)

// Process is the hint of a process. It consists of what the rule gives, what the program has said, and
// what control clients have set since.
type Process struct {
	Hint  model.Hint // in force
	Terms Terms
	Note  string // why the requested priority was not granted

	Streams int // queues that are one stream each; they make the process scheduled queue by queue

	book     *Book
	user     identity.User
	groups   []int
	attached bool // by an authorised caller: only terms limit its hint

	// granted is the highest priority that an authorised caller has granted; up to 0: none.
	granted   model.Priority
	said, set model.HintChange
	// pinned are the hints of the administrator about this process, and ceiling the highest priority.
	// The program and its user can't change them.
	pinned   model.HintChange
	ceiling  *model.Priority
	fixed    model.HintChange // pinned, over what a grant pins
	reported model.Cap        // by the last call of ForEngine
}

// Options describe a new process.
type Options struct {
	Book     *Book
	User     identity.User
	Groups   []int // of the process
	Attached bool

	Nice    int
	Said    model.HintChange // hints of the program
	Granted model.Priority   // by an authorised caller
	Terms   Terms
	Kept    Kept // of the same process under a previous daemon
}

// New returns the initial hint: that of the program over that of the rule, and over both what control
// clients set under a previous daemon. The limit of the user applies, except to attached processes
// without a rule or grant.
func New(o Options) Process {
	p := Process{
		Hint: model.Hint{Nice: o.Nice}, Terms: o.Terms, book: o.Book, user: o.User, groups: o.Groups, attached: o.Attached,
		granted: max(o.Granted, o.Kept.Granted), said: o.Said, set: o.Kept.Set, pinned: o.Kept.Pinned, ceiling: o.Kept.Ceiling,
	}
	p.compose()
	if !p.attached || p.Terms.bind() {
		p.Note = p.restrict(&p.Hint)
	}
	return p
}

// Kept returns what control clients have set.
func (p *Process) Kept() Kept {
	return Kept{Set: p.set, Pinned: p.pinned, Ceiling: p.ceiling, Granted: p.granted}
}

// compose derives the hint from its sources.
func (p *Process) compose() {
	p.fix()
	p.Terms.Hint.Complete(&p.Hint, &p.said, &p.set)
	p.said.Apply(&p.Hint)
	p.set.Apply(&p.Hint)
	p.fixed.Apply(&p.Hint)
}

// fix combines what the administrator has set for the process with the grant of its pod.
func (p *Process) fix() {
	p.fixed = p.Terms.Grant.Pinned
	p.fixed.Merge(&p.pinned)
}

// SetTerms replaces what the configuration gives to the process. It reports whether the engine must
// learn of a change of hint or limit.
func (p *Process) SetTerms(t Terms) bool {
	if t.Number < p.Terms.Number {
		t = p.Terms
	}
	hint, grant, pool := p.Hint, p.Terms.Grant, p.pool()
	p.Terms = t
	p.compose()
	p.Note = ""
	if !p.attached || t.bind() {
		p.Note = p.restrict(&p.Hint)
	}
	return p.Hint != hint || p.cap(p.granted) != p.reported || t.Grant.Share != grant.Share || t.Grant.Owner != grant.Owner || p.pool() != pool ||
		!slices.Equal(t.Grant.Devices, grant.Devices)
}

// Say applies a hint of the program. It returns why a priority was not granted; empty: it was.
func (p *Process) Say(change *model.HintChange) (note string) {
	if change.Has("priority") {
		p.Note = ""
	}
	p.set = p.set.Without(&model.HintChange{}, change) // the newer hint wins
	p.said.Merge(change)
	change.Apply(&p.Hint)
	p.fixed.Apply(&p.Hint)
	return p.keepNote(p.restrict(&p.Hint))
}

func (p *Process) keepNote(note string) string {
	if note != "" {
		p.Note = note
	}
	return note
}

// restrict limits the share, the memory and the priorities of a hint to those that the process may have.
func (p *Process) restrict(h *model.Hint) (note string) {
	p.limitShare(h)
	p.limitMemory(h)
	return p.limit(p.granted, h)
}

func (p *Process) limit(granted model.Priority, hint *model.Hint) (note string) {
	limit := p.cap(granted)
	for _, at := range []*model.Priority{&hint.Priority, &hint.LaxPriority, &hint.CriticalPriority} {
		if !limit.On || *at <= limit.Priority || *at == 0 && at != &hint.Priority { // 0: unset
			continue
		}
		if *at > model.PriorityDefault {
			note = refused(p.user, *at, limit)
		}
		*at = limit.Priority
	}
	return note
}

// limitShare limits the share of a hint to that of the user, unless the administrator has set it. A
// program without a share has the largest one.
func (p *Process) limitShare(hint *model.Hint) {
	most := p.Terms.Grant.Share
	if most == 0 {
		most = p.book.LimitOf(p.user, p.groups).Share
	}
	if most != 0 && (hint.Utilization == 0 || hint.Utilization > most) && !p.pinned.Has("utilization") {
		hint.Utilization = most
	}
}

// mostMemory is the quota of the rule, which the program and its user can lower; 0: none. What the
// administrator or a grant has set goes before the rule.
func (p *Process) mostMemory() model.Bytes {
	var h model.Hint
	if !p.fixed.Has("memory") {
		p.Terms.Hint.Apply(&h)
	}
	return h.Memory
}

func (p *Process) limitMemory(hint *model.Hint) {
	if most := p.mostMemory(); most != 0 && (hint.Memory == 0 || hint.Memory > most) {
		hint.Memory = most
	}
}

// cap returns the limit of the process: that of its user, or a higher priority that an authorised
// caller or a rule granted. What the administrator set for this process goes before a grant of its
// pod, and that before the rule.
func (p *Process) cap(granted model.Priority) model.Cap {
	limit := p.book.Cap(p.user, p.groups)
	if p.ceiling != nil && granted <= max(*p.ceiling, model.PriorityDefault) {
		return model.Cap{On: true, Priority: *p.ceiling}
	}
	if top := p.Terms.Grant.Ceiling; top != nil {
		return model.Cap{On: *top != model.PriorityMax, Priority: *top}
	}
	if !limit.On {
		return limit
	}
	if granted = max(granted, p.Terms.Granted); granted > max(limit.Priority, model.PriorityDefault) {
		limit.Priority = granted
	}
	if limit.Priority == model.PriorityMax {
		return model.Cap{}
	}
	return limit
}

// highest returns the highest priority that the user can set; nil: the user's own limit.
func (p *Process) highest() *model.Priority {
	if p.ceiling != nil {
		return p.ceiling
	}
	return p.Terms.Grant.Ceiling
}

// pool names those who have one share in common. Without a share, a granted program is best effort. Empty:
// it has no grant, or the administrator gave the process its own share.
func (p *Process) pool() string {
	switch g := &p.Terms.Grant; {
	case p.pinned.Has("utilization"):
		return ""
	case g.Share != 0:
		return g.Pool
	case g.Ceiling != nil:
		return model.PoolBestEffort
	}
	return ""
}

// exceeds reports that a hint has a larger share than the grant, or more memory than the rule.
func (p *Process) exceeds(h *model.Hint) bool {
	if memory := p.mostMemory(); memory != 0 && h.Memory > memory {
		return true
	}
	most := p.Terms.Grant.Share
	return most != 0 && h.Utilization > most && !p.pinned.Has("utilization")
}

// ForEngine returns the hint of the process as the engine needs it.
func (p *Process) ForEngine() model.Hint {
	h := p.withOwner(p.Hint)
	p.reported = p.cap(p.granted)
	h.Cap, h.Pool = p.reported, p.pool()
	h.PerQueue = h.PerQueue || p.Streams > 0
	return h
}

// withOwner qualifies the gang of a hint with the user. Otherwise a user could join another user's
// gang by name, and use its priority or suspend it.
func (p *Process) withOwner(h model.Hint) model.Hint {
	switch {
	case h.Gang == "":
	case p.Terms.Grant.Owner != "" && !p.pinned.Has("gang"):
		h.Gang = p.Terms.Grant.Owner + "/" + h.Gang
	default:
		h.Gang = p.user.Key() + "/" + h.Gang
	}
	return h
}
