// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"math"
	"time"

	"xsched/internal/driver/gate"
	"xsched/internal/meter"
	"xsched/internal/model"
	"xsched/internal/terms"
	"xsched/internal/wire"
)

// queue is the loop's state of a page slot in use.
type queue struct {
	owner      *Client
	id         model.QueueID
	device     model.DeviceID
	generation uint64
	hints      terms.Queue
	seen       reading
	busy       bool
	yields     bool   // it has work, and the hardware prefers the longer timeslices of others
	unproved   string // why it does not compete, empty: it does; see admission.go
	unlisted   bool   // competes on a device that no driver lists
	level      model.Level
	want       model.Desired
	gate       *gate.Target // nil: the queue's work is estimated
	late       bool         // in dispatcher.lateGates
	estimate   meter.Guess  // used if gate is nil
	probing    *meter.Probing
	merge      queueMerge
	polled     bool // the client does not ring; see poll.go

	stops  meter.Stops
	use    meter.QueueUse
	period meter.Period

	copies  model.Copies // see progress.go
	reports [reportUsers]uint32
}

// reading is what was last read from a queue's slot.
type reading struct {
	transitions uint64
	changed     uint64 // last transition as the client dated it; see seenAt
	submitted   uint64
	bursts      uint64 // batches released to the device
	waits       uint64 // of the program
}

// queueMerge is the merger's state of a queue. A merged queue has a primary one, which has members.
type queueMerge struct {
	primary   *queue
	place     int // in primary.merge.members
	members   []*queue
	busy      int    // members with work
	count     int    // of members, also in a copy
	submitted uint64 // by the members, those that ended included
	own       bool   // the primary queue itself has work
}

// guessed reports whether the state of the queue is an estimate.
func (q *queue) guessed() bool { return q.gate == nil }

// Users of queue.reports.
const (
	reportCopies = iota
	reportSegments
	reportUsers
)

// ask sets the reports that one user wants from a queue's client.
func (q *queue) ask(c *Client, user int, reports uint32) {
	if q.reports[user] == reports {
		return
	}
	q.reports[user] = reports
	all := uint32(0)
	for _, t := range q.reports {
		all |= t
	}
	c.page.SetTell(int(q.id.Index), all)
}

// seenLate marks a timestamp as unreliable: the engine observed this transition late, because the
// queue is polled or its user throttled. The busy period then seems shorter than it is. No request
// begins after this value.
const seenLate = math.MaxUint64

// seenAt returns the time of the last transition as the client dated it, or seenLate.
func seenAt(now model.Time, v *wire.QueueView) uint64 {
	if v.ChangedNS < uint64(now.Add(-model.SegmentMin/2)) {
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
