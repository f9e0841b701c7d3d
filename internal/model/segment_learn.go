// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// This file learns from the segments that ended.

// judge learns the lead from how the stop of this segment was.
func (s *Segments) judge(wait Time, fed, tail time.Duration) {
	atWait := s.waitAt != 0 && s.stopAt == s.waitAt // not predicted, however late the end was reported
	if s.stopAt != 0 && s.stopped == 0 && wait >= s.stopAt && s.stopAt != Never && !atWait {
		s.stopped = s.stopAt
	}
	if fed+tail < FedMin || s.whole {
		return
	}
	ahead := wait.Sub(s.stopped) // of the wait
	stopped := s.stopped != 0 && ahead > 0
	hit := stopped && !s.gaveUp && ahead <= s.lead+2*patience
	if s.hits += (b2f(hit) - s.hits) / 16; s.hits < hitsLow {
		s.poor = true
	} else if s.hits > hitsHigh {
		s.poor = false
	}
	if s.poor {
		s.counts.Unaided++
		return
	}
	over := tail - s.floor - s.floor/4 - tailSlack // by so much a wait is longer than it has to be
	if over > s.noise && over <= noiseMax && stopped && ahead >= leadEnough {
		s.noise = over // lower queues were stopped long ago
	}
	late := s.floor != 0 && over > s.noise && fed+tail > s.usual+s.floor+tailSlack
	s.noise -= s.noise / 2048
	switch {
	case s.floor == 0:
		s.floor = max(1, tail)
	case tail < s.floor:
		s.floor -= (s.floor - tail) / 4
	default:
		s.floor += (tail - s.floor) / 256
	}
	switch {
	case s.gaveUp:
		s.counts.Early++
	case stopped && !late:
		s.counts.InTime++
		ease := leadEase
		if !s.eased {
			ease = s.lead / 16
		}
		s.lead = max(leadMin, s.lead-ease)
	case stopped && ahead >= leadEnough:
		s.counts.InTime++ // so long in force that something else delayed the program
	default:
		s.counts.Late++
		s.eased = true
		s.lead = min(leadMax, s.lead+leadStep)
	}
}

// learn adds the size and the pace of a segment.
func (s *Segments) learn(wait Time, fed time.Duration) {
	size, counted := uint32(max(1, min(s.count-s.base, 1<<31))), s.count != 0
	if !counted {
		size = uint32(max(1, fed/time.Microsecond))
	}
	if counted != s.counted {
		s.counted, s.checks = counted, 0
		s.first, s.next = sizes{}, sizes{}
	}
	if s.lead == 0 {
		s.lead, s.hits = leadFirst, 1
	}
	k := s.size()
	k.learn(size, fed)
	if s.checks > 0 && s.left > max(100*time.Microsecond, bounded(launchesMin*k.pace)) { // fewer launches are too coarse
		if took := wait.Sub(s.checked); took > 0 {
			k.bend += (min(max(k.bend*float64(took)/float64(s.left), 0.25), 4) - k.bend) / 8
		}
	}
}

// learn adds a size, and for how long it was submitted.
func (s *sizes) learn(size uint32, fed time.Duration) {
	for p := range s.errs {
		if guess := s.guess(p); guess != 0 {
			e := float32(max(guess, size)-min(guess, size)) / float32(max(guess, size))
			s.tried[p] = min(s.tried[p]+1, 8)
			s.errs[p] += (e - s.errs[p]) / float32(s.tried[p])
		}
	}
	s.last[s.n%history] = size
	s.n++
	if s.n >= 1<<30 {
		s.n = 1<<29 + s.n%history
	}
	s.mean += (float32(size) - s.mean) / float32(min(s.n, 8))
	pace := float64(fed) / float64(size)
	if s.pace == 0 {
		s.pace, s.bend = pace, 1
	} else if fed >= FedMin || s.n < history {
		s.pace += (pace - s.pace) / 4
	}
}

// classify adds evidence for a class.
func (s *Segments) classify(fed, tail time.Duration) {
	if fed+tail < FedMin {
		if s.shorts++; s.shorts >= shortsMax {
			s.class, s.evidence, s.shorts = ClassUnknown, 0, 0
		}
		return
	}
	s.shorts = 0
	k := s.size()
	size := k.last[(k.n-1)%history]
	s.trust(size)
	few := s.hidden || s.counted && (size < launchesMin || fed/time.Duration(size) > launchPace)
	if s.class == ClassLaunchBound && fed >= FedMin { // lower queues may have delayed it
		tail = max(0, tail-nativeWait)
	}
	was := s.evidence
	switch {
	case submits(fed, tail) && !few:
		if s.doubt == 0 || was < 0 {
			s.evidence += 1 + b2i(was < 0)
		}
	default:
		s.evidence -= 1 + b2i(was > 0)
	}
	s.evidence = max(-evidenceMax, min(evidenceMax, s.evidence))
	switch {
	case s.evidence >= evidenceEnough:
		s.class = ClassLaunchBound
	case s.evidence <= 0 && s.class == ClassLaunchBound:
		s.class = ClassGPUBound
		s.distrust(size) // a program near the limit must not change again and again
	case s.evidence <= -evidenceEnough:
		s.class = ClassGPUBound
	case s.evidence >= 0 && s.class == ClassGPUBound:
		s.class = ClassUnknown
	}
}

// submits reports that a program hardly waited for what it submitted.
func submits(fed, tail time.Duration) bool { return tail <= fed/6+fedTail }

// distrust makes the next segments count nothing for launch-bound.
func (s *Segments) distrust(size uint32) {
	s.doubted = min(max(2*s.doubted, doubtFirst), doubtMax)
	s.doubt, s.doubtOf, s.others = s.doubted, size, 0
}

// trust lessens the doubts by a segment of this size.
func (s *Segments) trust(size uint32) {
	s.doubt = max(0, s.doubt-1)
	if s.others++; !s.counted || size >= s.doubtOf/2 && size/2 <= s.doubtOf {
		s.others = 0
	}
	if s.others >= otherMax {
		s.doubt, s.doubted, s.others = 0, 0, 0
	}
}

func b2f(b bool) float32 {
	if b {
		return 1
	}
	return 0
}

func b2i(b bool) int8 {
	if b {
		return 1
	}
	return 0
}
