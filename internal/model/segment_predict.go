// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// This file predicts the size of a segment and the time until its wait.

// sizes is what is known of the sizes of segments: launches, or microseconds where launches are not counted.
type sizes struct {
	n    int // segments so far
	last [history]uint32
	// errs is the mean relative error of each way to predict: 0 by the mean, p by the segment p before.
	errs  [lags + 1]float32
	tried [lags + 1]uint8
	mean  float32
	pace  float64 // ns per unit of size
	bend  float64 // time from the last check to the wait, in proportion to the prediction
}

// guess predicts the next size in one way; 0: it cannot.
func (s *sizes) guess(p int) uint32 {
	switch {
	case p == 0:
		return uint32(s.mean)
	case p <= s.n:
		return s.last[(s.n-p)%history]
	}
	return 0
}

// predict returns the expected size of the next segment, in the way that was best so far.
func (s *sizes) predict() uint32 {
	best := 1
	for p := range s.errs {
		if s.tried[p] >= 2 && (s.tried[best] < 2 || s.errs[p] < s.errs[best]) {
			best = p
		}
	}
	return s.guess(best)
}

// length returns the expected submission time of a size.
func (s *sizes) length(size uint32) time.Duration { return bounded(float64(size) * s.pace) }

// remaining predicts the time until the wait. least is the shortest possible time: a slow segment may have stalled, and
// go on at the usual pace.
func (s *Segments) remaining(now Time) (left, least time.Duration, known bool) {
	if !s.counted {
		return 0, 0, false // more time than expected has passed
	}
	done, size := uint32(s.count-s.base), s.size()
	if done == 0 { // unknown before the end
		left = max(0, size.length(s.expect)-now.Sub(s.began))
		return left, left, true
	}
	if done > s.expect+s.expect/32 {
		if s.expect = size.longer(done); s.expect == 0 {
			return 0, 0, false
		}
	}
	pace := size.pace // a few launches say less than the segments before
	if done >= max(history, s.expect/8) {
		// A segment that was slow since the last check, too, is slow; another one has stalled.
		pace = min(max(pace, s.recent), float64(now.Sub(s.began))/float64(done))
	}
	more := (float64(s.expect) - float64(done)) * size.bend
	return bounded(more * pace), bounded(more * min(pace, size.pace)), true
}

// waitsUnseen reports that the program has submitted what was expected and nothing since the last check.
func (s *Segments) waitsUnseen(now Time) bool {
	whole := uint32(s.count-s.base) >= s.expect-s.expect/32
	return whole && s.counted && s.usual >= FedMin && s.checks > 0 && s.count == s.checkedCount && now.Sub(s.checked) >= patience
}

// longer returns the shortest known segment that is longer than a size; 0: none.
func (s *sizes) longer(than uint32) uint32 {
	least := uint32(0)
	for _, size := range s.last[:min(s.n, history)] {
		if size > than+than/32+1 && (least == 0 || size < least) {
			least = size
		}
	}
	return least
}

// mostlyBelow reports whether most of the last segments were smaller than a size.
func (s *sizes) mostlyBelow(most uint32) bool {
	known := s.last[:min(s.n, history)]
	n := 0
	for _, size := range known {
		n += int(b2i(size < most))
	}
	return 2*n > len(known)
}

func bounded(ns float64) time.Duration { return time.Duration(min(max(ns, 0), float64(segmentMax))) }
