// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"time"
)

const tries = 3 // replays of one candidate; timing decides, so that one may pass by chance

// shrink looks for a short schedule that breaks the same rule, within the campaign's time box.
func (c *campaign) shrink(f *Failure, stop <-chan struct{}) {
	end := time.Now().Add(c.box)
	rule := f.Violations[0].Rule
	fails := func(s Schedule) bool {
		for range tries {
			select {
			case <-stop:
				return false
			default:
			}
			if time.Now().After(end) {
				return false
			}
			f.Replays++
			o, err := c.episode(s, stop)
			if err == nil && slices.ContainsFunc(o.violations, func(v Violation) bool { return v.Rule == rule }) {
				return true
			}
		}
		return false
	}
	s := upTo(f.Schedule, f.Violations[0])
	if !fails(s) {
		if s = f.Schedule; !fails(s) {
			return
		}
	}
	f.Repeats = true
	f.Minimal = minimize(s, fails)
	c.say("seed %d episode %d: %d faults suffice, of %d", f.Schedule.Seed, f.Schedule.Episode, f.Minimal.Faults(), f.Schedule.Faults())
}

// upTo keeps only the faults beside the violation: most failures need no more.
func upTo(s Schedule, v Violation) Schedule {
	out := s
	out.Segments = nil
	for _, segment := range s.Segments {
		kept := slices.DeleteFunc(slices.Clone(segment), func(f Fault) bool { return !slices.Contains(v.Active, f) })
		if len(kept) > 0 {
			out.Segments = append(out.Segments, kept)
		}
	}
	if out.Faults() == 0 {
		return s
	}
	return out
}

// minimize drops parts of a failing schedule while it still fails: halves, then smaller parts,
// then single faults. The times of the others stay.
func minimize(s Schedule, fails func(Schedule) bool) Schedule {
	for part := max(1, s.Faults()/2); ; part /= 2 {
		for at := 0; at < s.Faults(); {
			candidate := without(s, at, part)
			if candidate.Faults() > 0 && fails(candidate) {
				s = candidate
				continue
			}
			at += part
		}
		if part <= 1 {
			return s
		}
	}
}

// without drops n faults from the given position, and segments that become empty.
func without(s Schedule, at, n int) Schedule {
	out := s
	out.Segments = nil
	i := 0
	for _, segment := range s.Segments {
		var kept []Fault
		for _, f := range segment {
			if i < at || i >= at+n {
				kept = append(kept, f)
			}
			i++
		}
		if len(kept) > 0 {
			out.Segments = append(out.Segments, kept)
		}
	}
	return out
}
