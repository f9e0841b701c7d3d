// SPDX-License-Identifier: Apache-2.0

package gpumodel

import "xsched/internal/model"

// Kind is the state of the compute engine during a span.
type Kind string

// The kinds of a Span.
const (
	KindRun    Kind = "run"
	KindSwitch Kind = "switch" // towards the client named in the span, if any
	KindIdle   Kind = "idle"
)

// Account is the device's record of one client process.
type Account struct {
	PID         int    `json:"pid"`
	Name        string `json:"name"`
	Alive       bool   `json:"alive"` // has an open file
	Kernels     uint64 `json:"kernels"`
	Copies      uint64 `json:"copies"`
	Preemptions uint64 `json:"preemptions"` // in the middle of a kernel
	Disables    uint64 `json:"disables"`    // FIFO_DISABLE_CHANNELS calls that named its channels
	Enables     uint64 `json:"enables"`
	Stopped     int    `json:"stopped"`    // channels disabled now
	Timeslices  uint64 `json:"timeslices"` // SET_TIMESLICE calls executed
	RunNS       int64  `json:"run_ns"`
	SliceNS     int64  `json:"slice_ns"` // in force for its newest compute group
	Faults      uint64 `json:"faults"`   // bad submissions
	Missed      uint64 `json:"missed"`   // accesses to memory that was not mapped
	Torn        uint64 `json:"torn"`     // memory unmapped that submitted work used
}

// Span is a piece of a device's timeline.
type Span struct {
	T0     int64  `json:"t0"` // CLOCK_MONOTONIC ns
	T1     int64  `json:"t1"`
	Device int    `json:"device"`
	PID    int    `json:"pid"` // 0: none
	Name   string `json:"name"`
	Kind   Kind   `json:"kind"`
}

// timelineSpans bounds the memory of one device's timeline.
const timelineSpans = 1 << 17

// Timeline records which client held a device, as the newest timelineSpans changes. A nil Timeline
// records nothing.
type Timeline struct {
	device int
	spans  []span
	next   int // next slot of the full ring
	waits  waitRing
}

type span struct {
	t0, t1  model.Time
	account *Account
	kind    Kind
}

// NewTimeline returns an empty timeline of the device with this number.
func NewTimeline(device int) *Timeline {
	return &Timeline{device: device, spans: make([]span, 0, timelineSpans)} // preallocated: growing would cost time
}

func (l *Timeline) add(t0, t1 model.Time, kind Kind, account *Account) {
	if l == nil {
		return
	}
	if n := len(l.spans); n > 0 {
		last := &l.spans[(l.next+n-1)%n]
		if last.kind == kind && last.account == account && last.t1 == t0 {
			last.t1 = t1
			return
		}
	}
	s := span{t0, t1, account, kind}
	if len(l.spans) < timelineSpans {
		l.spans = append(l.spans, s)
		return
	}
	l.spans[l.next] = s
	l.next = (l.next + 1) % len(l.spans)
}

// Spans returns the pieces that overlap [from, to), oldest first.
func (l *Timeline) Spans(from, to model.Time) []Span {
	var out []Span
	for i := range l.spans {
		s := l.spans[(l.next+i)%len(l.spans)]
		if s.t1 <= from || s.t0 >= to {
			continue
		}
		piece := Span{T0: int64(s.t0), T1: int64(s.t1), Device: l.device, Kind: s.kind}
		if s.account != nil {
			piece.PID, piece.Name = s.account.PID, s.account.Name
		}
		out = append(out, piece)
	}
	return out
}
