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

// history follows the daemon's recording: when the online program had work, and when the offline
// one had to stand still.
type history struct {
	online   map[model.QueueID]bool       // which queues are the online program's
	since    map[model.QueueID]model.Time // its queues with work
	stopped  map[model.QueueID]bool       // the offline program's, by the newest decision
	window   bench.Window                 // in which requests count: they begin after the programs' start
	requests []time.Duration

	began                    model.Time // of the request under way: from the first queue to the last
	suspensions              int
	afterRequest, afterSlice int
}

// readRecording works out requests and suspensions.
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

// busy: a request lasts from the first queue of the online program that gets work to the last
// one that has none left.
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
