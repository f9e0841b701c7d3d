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

	began                    model.Time // start of the current request
	suspensions              int
	afterRequest, afterSlice int
}

// readRecording extracts requests and suspensions.
func (c *colocation) readRecording() error {
	in, err := record.Open(c.record)
	if err != nil {
		return fmt.Errorf("read the recording: %w", err)
	}
	defer in.Close()
	h := &history{window: bench.Window{From: c.together.from, To: c.together.to}, online: map[model.QueueID]bool{}, since: map[model.QueueID]model.Time{}, stopped: map[model.QueueID]bool{}}
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
		h.decide(ev.Changes)
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
	if len(h.since) == 0 && int64(h.began) >= h.window.From && int64(h.began) < h.window.To {
		h.requests = append(h.requests, at.Sub(h.began))
	}
}

func (h *history) decide(changes []model.Desired) {
	for i := range changes {
		d := &changes[i]
		if h.online[d.Queue] {
			continue
		}
		stop := d.Suspend >= model.LevelDeactivate
		switch {
		case stop && !h.stopped[d.Queue]:
			h.suspensions++
		case !stop && h.stopped[d.Queue] && len(h.since) > 0:
			h.afterSlice++
		case !stop && h.stopped[d.Queue]:
			h.afterRequest++
		}
		h.stopped[d.Queue] = stop
	}
}
