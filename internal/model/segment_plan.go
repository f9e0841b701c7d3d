// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// This file plans the stop of lower queues within a segment.

// plan sets when to stop and when to check again. left is the predicted time until the wait, and least the shortest
// possible one.
func (s *Segments) plan(now Time, left, least time.Duration, held bool) {
	s.checked, s.left = now, left
	wait := now.Add(left)
	at := wait.Add(-s.lead)
	worth := checkSoon
	if held {
		worth = FedMin // a resume and another stop would be of no use
	}
	if at <= now.Add(worth) {
		s.stop(now, wait)
		return
	}
	s.stopAt, s.until = at, wait.Add(patience)
	s.checkAt = s.until
	if !s.counted || s.checks >= maxChecks {
		return
	}
	step := at.Sub(now)
	if step > checkAhead {
		step = step * 5 / 8
	}
	if soon := least - s.lead; soon < step {
		step = max(soon, step/2, checkSoon)
	}
	s.checkAt = now.Add(step)
}

// shift postpones a planned stop by the time of a pause. Nothing was stopped meanwhile.
func (s *Segments) shift(by time.Duration) {
	if s.stopAt == 0 || s.stopAt == Never {
		return
	}
	s.stopAt, s.until = s.stopAt.Add(by), s.until.Add(by)
	if s.stopped != 0 {
		s.stopped = s.stopped.Add(by)
	}
}

// stop begins a stop that lasts until the expected wait ends.
func (s *Segments) stop(now, wait Time) {
	if s.stopped == 0 {
		s.stopped = now
	}
	s.stopAt, s.until = now, wait.Add(patience)
	if limit := now.Add(stopMax); s.until > limit {
		s.until = limit
	}
	s.checkAt = s.until
}

// giveWay ends the stop of a segment whose wait lasts too long.
func (s *Segments) giveWay() { s.overdue, s.stopAt, s.until, s.checkAt = true, Never, 0, 0 }
