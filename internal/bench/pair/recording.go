// SPDX-License-Identifier: Apache-2.0

package pair

import (
	"errors"
	"fmt"
	"io"
	"time"

	"xsched/internal/bench"
	"xsched/internal/engine"
	"xsched/internal/model"
	"xsched/internal/record"
	"xsched/internal/report"
)

// history evaluates the daemon's recording: when the online program had work and when the offline
// program was suspended.
type history struct {
	online   map[model.QueueID]bool       // queues of the online program
	since    map[model.QueueID]model.Time // busy queues of the online program
	stopped  map[model.QueueID]bool       // suspended queues of the offline program
	window   bench.Window                 // requests that begin here count
	requests []time.Duration
	tenths   [10]report.Histogram // of the requests, by their begin in the window

	began                    model.Time // start of the current request
	paused                   map[model.QueueID]model.Time
	pauses, busies           []bench.Window // suspensions and requests in the drawn window
	drawn                    bench.Window
	suspensions              int
	afterRequest, afterSlice int
}

func newHistory(window bench.Window) *history {
	return &history{
		window: window, online: map[model.QueueID]bool{}, since: map[model.QueueID]model.Time{},
		stopped: map[model.QueueID]bool{}, paused: map[model.QueueID]model.Time{},
	}
}

// readRecording extracts requests and suspensions.
func (c *colocation) readRecording() error {
	in, err := record.Open(c.record)
	if err != nil {
		return fmt.Errorf("read the recording: %w", err)
	}
	defer in.Close()
	h := newHistory(bench.Window{From: c.together.from, To: c.together.to})
	h.drawn = c.drawn
	for {
		item, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the recording: %w", err)
		}
		switch {
		case item.State != nil && item.State.Gap:
			return errors.New("read the recording: the daemon could not write all of it; the machine is too busy")
		case item.Event != nil:
			h.follow(item.Event)
		}
	}
	c.report.Requests = report.Summarize(h.requests)
	for i := range h.tenths {
		c.report.Tenths = append(c.report.Tenths, h.tenths[i].Latency())
	}
	c.report.raw = pictures{
		Requests: h.requests, Window: h.drawn, Segments: c.segments, Pauses: h.pauses, Busies: h.busies,
		Online: c.online.pids, Offline: c.offline.pids,
	}
	c.report.Suspensions, c.report.AfterRequest, c.report.AfterSlice = h.suspensions, h.afterRequest, h.afterSlice
	return nil
}

func (h *history) follow(ev *engine.Event) {
	switch ev.Kind {
	case engine.EventAdd:
		h.online[ev.Queue.ID] = ev.Queue.Hint.Priority > 0
		if ev.Queue.Busy {
			h.busy(ev.At, ev.Queue.ID, true)
		}
	case engine.EventBusy:
		h.busy(ev.At, ev.ID, ev.On)
	case engine.EventRemove:
		h.busy(ev.At, ev.ID, false)
		delete(h.online, ev.ID)
		delete(h.stopped, ev.ID)
	case engine.EventDecide:
		h.decide(ev.At, ev.Changes)
	}
}

// busy handles a busy change. A request lasts from the first busy queue of the online program until
// all its queues are idle.
func (h *history) busy(at model.Time, id model.QueueID, on bool) {
	if !h.online[id] {
		return
	}
	if on {
		if len(h.since) == 0 {
			h.began = at
		}
		h.since[id] = at
		return
	}
	if _, was := h.since[id]; !was {
		return
	}
	delete(h.since, id)
	if len(h.since) == 0 {
		h.busies = h.keep(h.busies, h.began, at)
	}
	if len(h.since) == 0 && int64(h.began) >= h.window.From && int64(h.began) < h.window.To {
		h.requests = append(h.requests, at.Sub(h.began))
		tenth := (int64(h.began) - h.window.From) * int64(len(h.tenths)) / (h.window.To - h.window.From)
		h.tenths[tenth].Add(uint64(at.Sub(h.began)))
	}
}

func (h *history) decide(at model.Time, changes []model.Desired) {
	for i := range changes {
		d := &changes[i]
		if h.online[d.Queue] {
			continue
		}
		stop := d.Suspend >= model.LevelDeactivate
		switch {
		case stop && !h.stopped[d.Queue]:
			h.suspensions++
			h.paused[d.Queue] = at
		case !stop && h.stopped[d.Queue] && len(h.since) > 0:
			h.afterSlice++
		case !stop && h.stopped[d.Queue]:
			h.afterRequest++
		}
		if !stop && h.stopped[d.Queue] {
			h.pauses = h.keep(h.pauses, h.paused[d.Queue], at)
		}
		h.stopped[d.Queue] = stop
	}
}

// keep appends an interval that the timeline shows.
func (h *history) keep(list []bench.Window, from, to model.Time) []bench.Window {
	if h.drawn.Overlap(int64(from), int64(to)) == 0 {
		return list
	}
	return append(list, bench.Window{From: int64(from), To: int64(to)})
}
