// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"slices"
	"time"

	"xsched/internal/clock"
	"xsched/internal/control"
	"xsched/internal/engine"
	"xsched/internal/history"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// spanStates are the states of spans by activity.
var spanStates = [engine.Activities]string{
	engine.ActivityRun: control.SpanRun, engine.ActivityWait: control.SpanWait, engine.ActivityStopped: control.SpanPreempted,
}

// History implements control.Control.
func (h *chronicle) History(_ context.Context, c control.Caller, r control.HistoryRequest) (control.History, error) {
	if r.Seconds < 0 || r.Seconds > control.HistorySeconds {
		return control.History{}, control.Errorf(control.ErrInvalid, "use 1 to 3600", "a history of %d seconds is out of range", r.Seconds)
	}
	if r.Seconds == 0 {
		r.Seconds = control.SpanSeconds
	}
	q := history.Request{
		Now: clock.Now(), Length: time.Duration(r.Seconds) * time.Second,
		Visible: func(who *loop.Identity) bool { return visible(c, &loop.ClientView{Identity: *who}) },
	}
	if r.Device != "" {
		id, err := model.ParseDeviceID(r.Device)
		if err != nil {
			return control.History{}, control.Errorf(control.ErrInvalid, "see `xsched list --devices`", "%q is not a PCI address like 0000:01:00.0", r.Device)
		}
		q.Device, q.One = id, true
	}
	unix := unixOffset()
	if r.SinceNS != 0 {
		q.SpansSince = model.Time(r.SinceNS - int64(unix))
	}
	step, _ := history.Steps(q.Length)
	from, timelines := h.history.Query(q)
	out := control.History{FromNS: unix.ns(from), ToNS: unix.ns(q.Now), StepNS: step.Nanoseconds(), Devices: make([]control.DeviceHistory, 0, len(timelines))}
	for i := range timelines {
		if t := &timelines[i]; !c.User.Host() && len(t.Spans)+len(t.Series) == 0 {
			continue // a container does not learn of GPUs that only others use
		}
		out.Devices = append(out.Devices, h.deviceHistory(c, unix, &timelines[i]))
	}
	return out, nil
}

func (h *chronicle) deviceHistory(c control.Caller, unix offset, t *history.Timeline) control.DeviceHistory {
	known := map[model.SessionID]shownProgram{} // spans of a program share its name
	shown := func(who *loop.Identity) shownProgram {
		p, ok := known[who.ID]
		if !ok {
			p.pid = shownPID(c, *who)
			if c.Owns(who.User) {
				p.text = control.TenantName(who.Command)
			}
			known[who.ID] = p
		}
		return p
	}
	out := control.DeviceHistory{
		Device: t.Device.String(), SpansFromNS: unix.ns(t.Complete), GrainNS: t.Grain.Nanoseconds(),
		Spans: make([]control.Span, 0, len(t.Spans)), Series: make([]control.Series, 0, len(t.Series)),
	}
	for i := range t.Spans {
		s := &t.Spans[i]
		p := shown(&s.Who)
		out.Spans = append(out.Spans, control.Span{PID: p.pid, Name: p.text, State: spanStates[s.State], FromNS: unix.ns(s.From), ToNS: unix.ns(s.To)})
	}
	for i := range t.Series {
		s := &t.Series[i]
		p := shown(&s.Who)
		series := control.Series{PID: p.pid, Name: p.text, Pod: h.terms.podName(&s.Who), Share: make([]float32, len(s.Points)), Waited: make([]float32, len(s.Points)), P99US: make([]float32, len(s.Points)), Preemptions: make([]uint32, len(s.Points))}
		for k, point := range s.Points {
			series.Share[k], series.Waited[k], series.P99US[k], series.Preemptions[k] = point.Share, point.Waited, point.P99US, point.Preemptions
		}
		out.Series = append(out.Series, series)
	}
	return out
}

// journalDefault is the number of entries without a request for another one.
const journalDefault = 200

// Journal implements control.Control.
func (h *chronicle) Journal(_ context.Context, c control.Caller, r control.JournalRequest) (control.Journal, error) {
	if r.Max < 0 || r.Max > control.JournalMax {
		return control.Journal{}, control.Errorf(control.ErrInvalid, "use 1 to 2048", "%d entries are out of range", r.Max)
	}
	if r.Max == 0 {
		r.Max = journalDefault
	}
	all, last := h.journal.After(r.Since)
	out := control.Journal{Entries: []control.JournalEntry{}, Next: last}
	if r.Since > last {
		out.Missed = 0 // of another daemon
	} else if total := last - r.Since; total > uint64(len(all)) {
		out.Missed = total - uint64(len(all))
	}
	for i := range all {
		if h.sees(c, &all[i]) {
			out.Entries = append(out.Entries, h.render(&all[i], c))
		}
	}
	before := len(out.Entries)
	out.Entries = newest(out.Entries, r.Max, r.PerKind)
	out.Missed += uint64(before - len(out.Entries))
	return out, nil
}

// newest returns up to most entries, the newest: in all, or of each kind.
func newest(entries []control.JournalEntry, most int, perKind bool) []control.JournalEntry {
	if !perKind {
		return entries[max(0, len(entries)-most):]
	}
	beyond := map[string]int{} // how many of a kind are too many
	for i := range entries {
		beyond[entries[i].Kind]++
	}
	return slices.DeleteFunc(entries, func(e control.JournalEntry) bool {
		beyond[e.Kind]--
		return beyond[e.Kind] >= most
	})
}
