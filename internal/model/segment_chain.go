// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// This file tells the segments of one request from those of the next, also where the end of one was not seen.

// joins decides whether the segment that begins belongs to the request of the last one, and reports
// whether lower queues are still stopped for that.
func (s *Segments) joins(now Time) (held bool) {
	gap := now.Sub(s.ended)
	soon := s.ended != 0 && gap <= FollowGap
	held = soon && gap <= s.hold()
	if s.ended != 0 {
		p := s.another()
		s.likely = *p
		*p += (b2f(soon) - *p) / 8
	}
	longest := chainMax
	if s.class == ClassLaunchBound {
		longest = chainLong
	}
	s.was, s.chain = s.chain, s.chain+1
	if s.follows = soon && s.was < longest; !s.follows {
		s.chain = 0
	}
	if soon {
		s.gap += (gap - s.gap) / 4
	}
	return held
}

// hold is how long a stop outlasts a segment.
func (s *Segments) hold() time.Duration {
	least, gaps := float32(followsAny), time.Duration(2)
	if s.class == ClassLaunchBound {
		least, gaps = followsFed, 4 // a second stop would come late, and cost more than a longer one
	}
	if *s.another() < least {
		return 0
	}
	return min(FollowGap, gaps*s.gap+holdSlack)
}

// another is the probability that a segment follows the current one, or the last one.
func (s *Segments) another() *float32 { return &s.follow[min(s.chain, len(s.follow)-1)] }

// again begins a segment for a program that submits although a thread waits: the wait is over, or is another
// thread's.
func (s *Segments) again(now Time) {
	began, base := s.waitAt, s.waitCount
	s.Drop()
	s.ended = began
	s.Begin(now, s.count)
	s.began, s.base = began, base
}

// expectMore corrects the expected size of a segment that follows and has outgrown it: to that of a larger one which
// followed before, or else to that of a prompt.
func (s *Segments) expectMore() {
	done, expect := uint32(s.count-s.base), s.first.predict()
	if s.large || done <= s.expect+s.expect/32 {
		return
	}
	if more := s.next.longer(done); more != 0 {
		if length := s.next.length(more); s.follows && s.usual < FedMin && length >= FedMin {
			s.expect, s.usual, s.gaveUp, s.stopped = more, length, false, 0
		}
		return
	}
	if !s.beginsRequest(expect) {
		return
	}
	s.large, s.expect, s.usual = true, expect, s.first.length(expect)
	s.hidden, s.gaveUp, s.checks, s.left, s.stopped = false, false, 0, 0, 0 // of what it was taken for
}

// look ends the stop of a short segment that has lasted for longer than expected, and plans to look again. It may
// be a prompt that has hardly begun.
func (s *Segments) look(now Time) {
	if s.stopAt != Never && now >= s.until {
		s.stopAt, s.gaveUp = Never, true
	}
	s.checkAt = 0
	elapsed := now.Sub(s.began)
	if s.checks++; s.follows && s.counted && s.checks < maxChecks && elapsed < s.first.length(s.first.predict()) {
		s.checkAt = now.Add(max(FedMin, elapsed))
	}
	if s.stopAt != Never && (s.checkAt == 0 || s.checkAt > s.until) {
		s.checkAt = s.until
	}
}

// settle decides by its size to which request a segment belongs that has ended, and reports whether it was predicted
// from the sizes of such segments.
func (s *Segments) settle(size uint32, fed, tail time.Duration) (foreseen bool) {
	large := s.large
	s.large = false
	begins := s.beginsRequest(size)
	if !begins && s.follows && s.counted && fed >= FedMin && size >= launchesMin && s.next.mostlyBelow(size/4) {
		s.larges++
		begins = s.larges > largesMax
	}
	switch {
	case begins:
		p := &s.follow[min(s.chain-1, len(s.follow)-1)]
		*p = max(0, *p-1./8) // no segment of the same request followed
		s.follows, s.chain, s.lates, s.larges = false, 0, 0, 0
		if !large {
			s.hidden, s.checks = false, 0
		}
		return large
	case large:
		s.checks = 0
		return false
	case s.comesLate(size, tail > fed/3):
		if s.lates < latesMax { // else they are requests
			s.follows, s.chain = true, s.was+1
			s.lates++
			return false
		}
	case !s.follows && s.chained(size):
		s.follows, s.chain = true, s.was+1
		return false
	case !s.follows:
		s.lates, s.larges = 0, 0
	}
	return true
}

// beginsRequest reports whether a segment of this size begins a request although it follows another one closely, as
// a prompt does that waited for the last request's tokens: it is as large as those that begin requests, and most
// that follow are far smaller.
func (s *Segments) beginsRequest(size uint32) bool {
	mean := uint32(s.first.mean)
	return s.follows && s.counted && size >= max(mean/2, launchesMin) && size/2 <= mean && s.next.mostlyBelow(size/4)
}

// chained reports whether a segment of this size belongs to a request that has more than chainMax of them: it is far
// smaller than those that begin requests.
func (s *Segments) chained(size uint32) bool {
	return s.began.Sub(s.ended) <= FollowGap && s.ended != 0 && s.was >= chainMax && s.was < chainLong && s.counted && size < uint32(s.first.mean)/4
}

// comesLate reports whether a segment of this size belongs to the request of the last one although it came late: it
// is as small as those that follow, those that begin requests are far larger, and it waits early or was likely to
// follow.
func (s *Segments) comesLate(size uint32, early bool) bool {
	gap := s.began.Sub(s.ended)
	if gap <= FollowGap || gap > SegmentGap || !s.counted || s.next.n == 0 {
		return false
	}
	return size < uint32(s.first.mean)/4 && !s.next.mostlyBelow(size/4) && (early || s.likely >= followsFed)
}

// Unseen reports that the segment ended, and that it is not known for how long the program submitted and
// waited. A token follows a prompt so soon that nobody sees the end of the prompt.
func (s *Segments) Unseen(now Time, lows Lows) {
	if s.open && s.waits && s.waitAt > s.began {
		s.End(now, s.began, s.waitAt.Sub(s.began), now.Sub(s.waitAt), lows)
		return
	}
	if s.open && now.Sub(s.began) >= FedMin {
		s.unseen = unseenMax
	}
	s.Drop()
	s.ended = now
}

// Followed reports that it matters when the program begins to wait.
func (s *Segments) Followed() bool { return s.class == ClassLaunchBound || s.unseen > 0 }
