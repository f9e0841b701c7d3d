// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"xsched/internal/control"
	"xsched/internal/journal"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// Settings in the journal.
const (
	changeHint    = "hint"
	changePolicy  = "policy"
	changeMode    = "mode"
	changeSuspend = "suspend"
	changeResume  = "resume"
	changeEvict   = "evict"
	changeRestore = "restore"
	changeAttach  = "attach"
	changeDetach  = "detach"
	changeWedge   = "wedge"
	changeConfig  = "configuration"
	changeGrants  = "grants"
	changeHolds   = "holds"
	changeRefused = "refused"
)

// audited is the control interface that enters every change in the journal: who, what, before, after.
// Requests that the caller may not make are entered, too.
type audited struct{ *Daemon }

// Control returns the daemon's control interface for clients.
func (d *Daemon) Control() control.Control { return audited{d} }

// Hint implements control.Control.
func (a audited) Hint(ctx context.Context, c control.Caller, r control.HintRequest) (control.HintReply, error) {
	change, err := r.Change()
	if err != nil || change.Empty() {
		return a.Daemon.Hint(ctx, c, r)
	}
	before := a.access.known(ctx, c, r.PID)
	reply, err := a.Daemon.Hint(ctx, c, r)
	if err != nil {
		a.chronicle.refused(c, changeHint, err)
		return reply, err
	}
	old, queue := before.Hint, ""
	if r.Queue != nil {
		queue = fmt.Sprintf(" of queue %d", *r.Queue)
		for _, q := range before.Queues {
			if q.Index == *r.Queue {
				old = q.Hint
			}
		}
	}
	was := control.HintsOf(&old)
	a.chronicle.audit(c, journal.Entry{
		What: changeHint + queue, Program: a.chronicle.programOf(&before.Identity), Before: hintText(&was, &change), After: hintText(&reply.Hints, &change),
	})
	return reply, nil
}

// hintText lists the hints that a change sets: "priority=10 level=3 slo=20ms".
func hintText(h *control.Hints, change *model.HintChange) string {
	var parts []string
	for _, f := range model.HintFields() {
		if change.Has(f.Name) {
			value := h.Value(&f)
			text := f.Format(value)
			if value == (model.HintValue{}) && (f.Kind == model.HintTime || f.Kind == model.HintName) {
				text = "none"
			}
			parts = append(parts, strings.TrimSuffix(f.Name, "_us")+"="+text) // a duration has its unit
		}
	}
	return strings.Join(parts, " ")
}

// valuesText lists the values of keys: "policy=HPF mode=live". Keys without a single value have none.
func valuesText(values []control.ConfigValue, keys []string) string {
	parts := make([]string, 0, len(keys))
	for _, key := range keys {
		if i := slices.IndexFunc(values, func(v control.ConfigValue) bool { return v.Key == key }); i >= 0 {
			key += "=" + values[i].Value
		}
		parts = append(parts, key)
	}
	return strings.Join(parts, " ")
}

// Policy implements control.Control.
func (a audited) Policy(ctx context.Context, c control.Caller, r control.PolicyRequest) (control.PolicyReply, error) {
	if r.Name == "" && r.QuantumUS == 0 {
		return a.Daemon.Policy(ctx, c, r)
	}
	text := func(p control.PolicyReply) string {
		if r.QuantumUS != 0 {
			return fmt.Sprintf("%s quantum=%dus", p.Name, p.QuantumUS)
		}
		return p.Name
	}
	before, _ := a.Daemon.Policy(ctx, c, control.PolicyRequest{Device: r.Device})
	reply, err := a.Daemon.Policy(ctx, c, r)
	if err != nil {
		a.chronicle.refused(c, changePolicy, err)
		return reply, err
	}
	a.chronicle.audit(c, journal.Entry{What: changePolicy, Device: r.Device, Before: text(before), After: text(reply)})
	return reply, nil
}

// Mode implements control.Control.
func (a audited) Mode(ctx context.Context, c control.Caller, r control.ModeRequest) (control.ModeReply, error) {
	if r.Mode == "" {
		return a.Daemon.Mode(ctx, c, r)
	}
	text := func(m control.ModeReply) string { return control.ModeText(m.Mode, m.Level) }
	before, _ := a.Daemon.Mode(ctx, c, control.ModeRequest{Device: r.Device})
	reply, err := a.Daemon.Mode(ctx, c, r)
	if err != nil {
		a.chronicle.refused(c, changeMode, err)
		return reply, err
	}
	a.chronicle.audit(c, journal.Entry{What: changeMode, Device: r.Device, Before: text(before), After: text(reply)})
	return reply, nil
}

// Suspend implements control.Control.
func (a audited) Suspend(ctx context.Context, c control.Caller, r control.ProcessRequest) (control.ProcessReply, error) {
	return a.process(ctx, c, r, changeSuspend, a.Daemon.Suspend)
}

// Resume implements control.Control.
func (a audited) Resume(ctx context.Context, c control.Caller, r control.ProcessRequest) (control.ProcessReply, error) {
	return a.process(ctx, c, r, changeResume, a.Daemon.Resume)
}

// Attach implements control.Control.
func (a audited) Attach(ctx context.Context, c control.Caller, r control.ProcessRequest) (control.ProcessReply, error) {
	return a.process(ctx, c, r, changeAttach, a.Daemon.Attach)
}

// Detach implements control.Control.
func (a audited) Detach(ctx context.Context, c control.Caller, r control.ProcessRequest) (control.ProcessReply, error) {
	return a.process(ctx, c, r, changeDetach, a.Daemon.Detach)
}

// process runs a change of a process and enters it.
func (a audited) process(ctx context.Context, c control.Caller, r control.ProcessRequest, what string, f func(context.Context, control.Caller, control.ProcessRequest) (control.ProcessReply, error)) (control.ProcessReply, error) {
	before := a.access.known(ctx, c, r.PID)
	reply, err := f(ctx, c, r)
	if err != nil {
		a.chronicle.refused(c, what, err)
		return reply, err
	}
	after := a.access.known(ctx, c, r.PID)
	who := before.Identity
	if who.PID == 0 {
		who = after.Identity
	}
	if who.PID == 0 {
		return reply, nil // it has ended
	}
	e := journal.Entry{What: what, Program: a.chronicle.programOf(&who), Before: standing(before), After: standing(after)}
	if what == changeResume && !before.Held {
		return reply, nil // nothing changed
	}
	if r.Priority != nil {
		e.After += fmt.Sprintf(" priority=%d", *r.Priority)
	}
	if r.Utilization != nil {
		e.After += fmt.Sprintf(" utilization=%d", *r.Utilization)
	}
	a.chronicle.audit(c, e)
	return reply, nil
}

// standing describes what users did to a process.
func standing(v loop.ClientView) string {
	switch {
	case v.PID == 0:
		return "unmanaged"
	case v.Held:
		return "held"
	case v.Attached:
		return "attached"
	}
	return "managed"
}

// Wedge implements control.Control.
func (a audited) Wedge(ctx context.Context, c control.Caller, r control.WedgeRequest) (control.WedgeReply, error) {
	reply, err := a.Daemon.Wedge(ctx, c, r)
	if err != nil {
		a.chronicle.refused(c, changeWedge, err)
		return reply, err
	}
	a.chronicle.audit(c, journal.Entry{What: changeWedge, After: fmt.Sprintf("%d ms", r.DurationMS)})
	return reply, nil
}

// Holds implements control.Control. Changes of the agents are many and end by themselves: the journal has
// only those that were refused.
func (a audited) Holds(ctx context.Context, c control.Caller, r control.HoldsRequest) (control.HoldsReply, error) {
	reply, err := a.Daemon.Holds(ctx, c, r)
	if err != nil && r.Source != "" {
		a.chronicle.refused(c, changeHolds, err)
	}
	return reply, err
}

// Grants implements control.Control. One entry of the journal describes the difference.
func (a audited) Grants(ctx context.Context, c control.Caller, r control.GrantsRequest) (control.GrantsReply, error) {
	reply, diff, err := a.granting.replace(ctx, c, r)
	switch {
	case diff != "": // applied, also where the reply failed
		a.chronicle.audit(c, journal.Entry{What: changeGrants + " of " + r.Source, After: diff, Cluster: true})
	case err != nil && r.Source != "":
		a.chronicle.refused(c, changeGrants, err)
	}
	return reply, err
}
