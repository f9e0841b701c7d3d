// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"math"
	"time"

	"xsched/internal/model"
	"xsched/internal/wire"
)

// seenLate marks a timestamp as unreliable: the engine observed this transition late, because the
// queue is polled or its user throttled. The busy period then seems shorter than it is. No request
// begins after this value.
const seenLate = math.MaxUint64

// seenAt returns the time of the last transition as the client dated it, or seenLate.
func seenAt(now model.Time, v *wire.QueueView) uint64 {
	if v.ChangedNS < uint64(now.Add(-model.FedMin/2)) {
		return seenLate
	}
	return v.ChangedNS
}

// submission is how a busy period was submitted; the fields are as for engine.SetIdleAfter.
type submission struct{ submitted, waited time.Duration }

// submissionOf returns how the busy period that began at a time was submitted.
func submissionOf(v *wire.QueueView, began uint64) submission {
	switch {
	case v.Busy() || began == seenLate:
		return submission{}
	case v.FedNS < began:
		return submission{submitted: model.NotWaited}
	}
	took := v.Fed(began)
	if took == 0 {
		return submission{}
	}
	return submission{took, time.Duration((v.ChangedNS - v.FedNS) & (1<<63 - 1))}
}

// submissionBefore returns how the busy period that began at a time was submitted, if another one has begun.
func submissionBefore(v *wire.QueueView, began uint64) submission {
	if !v.Busy() || began == seenLate || v.FedNS <= began || v.FedNS >= v.ChangedNS {
		return submission{}
	}
	return submission{time.Duration((v.FedNS - began) & (1<<63 - 1)), time.Duration((v.ChangedNS - v.FedNS) & (1<<63 - 1))}
}

// progress follows how programs submit their work.
type progress struct {
	engine   *input
	registry *registry
	activity *activity
	due      []model.QueueID // scratch of read
}

// beganAgain separates two requests that would count as one: the program waited, and its queue was idle
// for a moment between two readings. how is how the first one was submitted.
func (p *progress) beganAgain(now model.Time, c *Client, q *queue, v *wire.QueueView, how submission) {
	p.activity.progressed(now, q, v, how.submitted > 0)
	p.activity.setBusy(now, c, q, false, how)
	p.activity.setBusy(now, c, q, true, submission{})
	if v.FedNS >= v.ChangedNS {
		p.activity.progressed(now, q, v, true)
	}
	p.request(c, q)
}

// request asks a client for its progress while decisions depend on it.
func (p *progress) request(c *Client, q *queue) {
	reports := uint32(0)
	if q.gate != nil && !q.polled && p.engine.Follow(q.id) {
		reports = wire.TellProgress | wire.TellWait
	}
	q.ask(c, reportSegments, reports)
}

// read reads the progress of the programs whose next wait is near.
func (p *progress) read(now model.Time) {
	p.due = p.engine.ProgressDue(now, p.due[:0])
	for _, id := range p.due {
		q := p.registry.queue(id)
		if q == nil || q.gate == nil {
			continue
		}
		v := q.owner.page.Queue(int(id.Index))
		if v.Generation != q.generation || v.Transitions != q.seen.transitions {
			continue // its doorbell is pending
		}
		waits := v.Busy() && v.FedNS >= q.seen.changed && v.Waits != q.seen.waits // a known wait may last while another thread submits
		if waits {
			q.seen.waits = v.Waits
		}
		p.engine.SetProgress(now, id, v.Launches, waits)
	}
}
