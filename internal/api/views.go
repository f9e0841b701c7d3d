// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"xsched/internal/control"
	"xsched/internal/identity"
)

// This file serves viewers: clients of the event stream, such as a dashboard. Each gets the state at a
// fixed period. The cost does not depend on the number of changes: one sample per period for all viewers,
// encoded once per user, and a pause of viewShare times as long. A viewer that reads too slowly skips
// periods, but misses no entry of the journal.
const (
	viewShare    = 25 // sampling and encoding take at most 4 % of a core
	shortestView = 250 * time.Millisecond
	longestView  = 10 * time.Second
	usualView    = time.Second
	viewBacklog  = 2 // periods that wait for a slow viewer
	// viewPoints is the length of the history in an event. Clients read the past with GET.
	viewPoints = 5
)

// viewer is a client that gets the state periodically. The feed's goroutine owns the fields below ready.
type viewer struct {
	caller control.Caller
	period time.Duration
	with   []string // control.Parts
	ready  chan [][]byte

	due     time.Time
	entry   uint64 // the last entry of the journal that was sent
	history int64  // end of the last history
}

func newViewer(c control.Caller, r control.EventsRequest) (*viewer, error) {
	r.EveryMS = cmp.Or(r.EveryMS, int(usualView.Milliseconds()))
	v := &viewer{caller: c, period: time.Duration(r.EveryMS) * time.Millisecond, with: []string{control.PartSnapshot}, ready: make(chan [][]byte, viewBacklog), entry: r.Since}
	if r.EveryMS < int(shortestView.Milliseconds()) || r.EveryMS > int(longestView.Milliseconds()) {
		return nil, control.Errorf(control.ErrInvalid, "use 250 to 10000", "every_ms %d is out of range", r.EveryMS)
	}
	if r.With != "" {
		v.with = strings.Split(r.With, ",")
	}
	for i, w := range v.with {
		if !slices.Contains(control.Parts(), w) || slices.Contains(v.with[:i], w) {
			return nil, control.Errorf(control.ErrInvalid, "use each of "+strings.Join(control.Parts(), ", ")+" at most once", "unknown or repeated part %q", w)
		}
	}
	return v, nil
}

// show adds a viewer.
func (f *feed) show(v *viewer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter(v.caller); err != nil {
		return err
	}
	f.viewers[v] = struct{}{}
	if !f.showing {
		f.showing = true
		go f.runViews()
	} else {
		select {
		case f.wake <- struct{}{}: // it need not wait for the others' period
		default:
		}
	}
	return nil
}

// hide removes a viewer.
func (f *feed) hide(v *viewer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.viewers[v]; ok {
		delete(f.viewers, v)
		f.exit(v.caller)
	}
}

// runViews serves the viewers until the last one leaves.
func (f *feed) runViews() {
	for {
		now := time.Now()
		f.mu.Lock()
		if len(f.viewers) == 0 || f.stopped {
			f.showing = false
			f.mu.Unlock()
			return
		}
		var due []*viewer
		next := now.Add(longestView)
		for v := range f.viewers {
			if !v.due.After(now) {
				due = append(due, v)
				v.due = now.Add(v.period)
			}
			if v.due.Before(next) {
				next = v.due
			}
		}
		f.mu.Unlock()
		rest := time.Duration(0)
		if len(due) > 0 {
			f.publishViews(due)
			rest = restAfter(time.Since(now))
		}
		select { // the share of CPU time comes before the periods
		case <-time.After(rest):
		case <-f.quit:
		}
		select {
		case <-time.After(time.Until(next)):
		case <-f.wake:
		case <-f.quit:
		}
	}
}

// restAfter is the pause after a sample. A process that had to wait for a CPU may take seconds for one: that
// must not end the stream for minutes.
func restAfter(took time.Duration) time.Duration { return min(viewShare*took, longestView) }

// round is one sample for all viewers that are due.
type round struct {
	control control.Control
	ctx     context.Context
	list    *control.List // nil: not read yet
	events  map[eventKey]encoded
}

// eventKey identifies an event that viewers share.
type eventKey struct {
	user  identity.User
	admin bool
	part  string
	since int64
}

// encoded is an event in the form of the stream, and where the next one of its part begins. It is empty
// if there is nothing new.
type encoded struct {
	text []byte
	next int64
}

func (f *feed) publishViews(due []*viewer) {
	ctx, cancel := context.WithTimeout(context.Background(), control.CallTimeout)
	defer cancel()
	r := &round{control: f.control, ctx: ctx, events: map[eventKey]encoded{}}
	for _, v := range due {
		if len(v.ready) == cap(v.ready) {
			continue // it has not read the last ones
		}
		if events := r.of(v); len(events) > 0 {
			v.ready <- events // only this goroutine sends
		}
	}
}

// of returns the events of one viewer.
func (r *round) of(v *viewer) (out [][]byte) {
	for _, part := range v.with {
		since := int64(0)
		switch part {
		case control.PartJournal:
			since = int64(v.entry)
		case control.PartHistory:
			since = v.history
		}
		key := eventKey{v.caller.User, v.caller.Admin, part, since}
		e, ok := r.events[key]
		if !ok {
			value, next, err := r.read(v.caller, part, since)
			if e.next = next; err == nil && value != nil {
				e.text = encode(part, value)
			}
			r.events[key] = e
		}
		if e.text == nil {
			continue
		}
		out = append(out, e.text)
		switch part {
		case control.PartJournal:
			v.entry = uint64(e.next)
		case control.PartHistory:
			v.history = e.next
		}
	}
	return out
}

// read returns the value of a part; nil: nothing is new.
func (r *round) read(c control.Caller, part string, since int64) (value any, next int64, err error) {
	switch part {
	case control.PartSnapshot:
		if r.list == nil {
			list, err := r.control.List(r.ctx, control.Caller{})
			if err != nil {
				return nil, 0, err
			}
			r.list = &list
		}
		return listFor(c, r.list), 0, nil
	case control.PartDevices:
		d, err := r.control.Devices(r.ctx, c)
		return d, 0, err
	case control.PartJournal:
		j, err := r.control.Journal(r.ctx, c, control.JournalRequest{Since: uint64(since)})
		if len(j.Entries) == 0 && j.Missed == 0 {
			return nil, since, err
		}
		return j, int64(j.Next), err
	}
	h, err := r.control.History(r.ctx, c, control.HistoryRequest{Seconds: viewPoints, SinceNS: since})
	return h, h.ToNS, err
}

// encode returns an event as text.
func encode(name string, value any) []byte {
	data, err := json.Marshal(value)
	if err != nil { // our own types
		data = []byte("{}")
	}
	b := make([]byte, 0, len(data)+len(name)+20)
	b = append(append(append(b, "event: "...), name...), "\ndata: "...)
	return append(append(b, data...), "\n\n"...)
}

// serveView is the handler of one viewer.
func (f *feed) serveView(w http.ResponseWriter, r *http.Request, v *viewer) {
	if err := f.show(v); err != nil {
		writeError(w, err)
		return
	}
	defer f.hide(v)
	push, ok := startStream(w)
	if !ok {
		return
	}
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	for {
		select {
		case events := <-v.ready:
			if !push(events...) {
				return
			}
		case <-alive.C:
			if !push([]byte(": alive\n\n")) {
				return
			}
		case <-f.quit:
			return
		case <-r.Context().Done():
			return
		}
	}
}
