// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"maps"
	"time"

	"xsched/internal/model"
)

// ByOthers is the cause of a stop by no particular process, or by more processes than maxCauses.
const ByOthers = 0

// maxCauses limits the number of processes that a queue counts stops for.
const maxCauses = 16

// Stops are the times that a queue with work was suspended, or yielded to the longer timeslices of
// others.
type Stops struct {
	Preemptions uint64
	Yielded     uint64 // times that it began to yield

	suspended, yielding span
	causes              map[int]uint64 // by cause: a PID, or a number up to 0
	shared              bool           // a snapshot has causes
}

// Suspend counts a suspension.
func (s *Stops) Suspend(now model.Time, cause int) {
	s.Preemptions++
	s.count(cause)
	s.suspended.since = now
}

// Suspended begins to account a suspension that does not count.
func (s *Stops) Suspended(now model.Time) { s.suspended.since = now }

// Resume ends a suspension. It returns its length, and false if there was none.
func (s *Stops) Resume(now model.Time) (time.Duration, bool) {
	since := s.suspended.since
	if since == 0 {
		return 0, false
	}
	s.suspended.set(now, false)
	return now.Sub(since), true
}

// Yield begins to yield.
func (s *Stops) Yield(now model.Time, cause int) {
	s.Yielded++
	s.yielding.set(now, true)
	s.count(cause)
}

// Run ends to yield.
func (s *Stops) Run(now model.Time) { s.yielding.set(now, false) }

// Times returns for how long the queue was suspended, and for how long it yielded.
func (s *Stops) Times(now model.Time) (suspended, yielding time.Duration) {
	return s.suspended.upTo(now), s.yielding.upTo(now)
}

// Share lets a snapshot have the causes as they are now.
func (s *Stops) Share() { s.shared = true }

// Causes returns the stops by cause: a PID, or a number up to 0.
func (s *Stops) Causes() map[int]uint64 { return s.causes }

func (s *Stops) count(cause int) {
	if s.causes == nil {
		s.causes = map[int]uint64{}
	} else if s.shared {
		s.causes = maps.Clone(s.causes) // a snapshot has this one
	}
	s.shared = false
	if _, known := s.causes[cause]; !known && cause > 0 && len(s.causes) >= maxCauses {
		cause = ByOthers
	}
	s.causes[cause]++
}
