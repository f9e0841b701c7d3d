// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"slices"
	"time"
)

// Segment is an interval of the device's own record. Time without a segment was idle.
type Segment struct {
	From, To int64
	PID      int  // the process that ran or was switched to
	Switch   bool // context switch
}

// Wait is when a kernel was submitted and when the device first ran it.
type Wait struct {
	PID                int
	Submitted, Started int64
}

// SplitTime adds up the device time in the windows.
func SplitTime(segs []Segment, ws []Window, high int) *Split {
	t := Total(ws)
	if t <= 0 {
		return nil
	}
	var highNS, lowNS, switchNS int64
	for _, s := range segs {
		for _, w := range ws {
			n := w.Overlap(s.From, s.To)
			switch {
			case s.Switch:
				switchNS += n
			case s.PID == high:
				highNS += n
			default:
				lowNS += n
			}
		}
	}
	out := Split{
		High:      float64(highNS) / float64(t),
		Low:       float64(lowNS) / float64(t),
		Switching: float64(switchNS) / float64(t),
	}
	out.Idle = max(1-out.High-out.Low-out.Switching, 0)
	return &out
}

// Held returns how long one process ran on the device inside a window.
func Held(segs []Segment, pid int, w Window) time.Duration {
	var n int64
	for _, s := range segs {
		if s.PID == pid && !s.Switch {
			n += w.Overlap(s.From, s.To)
		}
	}
	return time.Duration(n)
}

// WaitsOf returns, sorted, how long the kernels that a process submitted
// inside the windows waited for the device.
func WaitsOf(all []Wait, pid int, ws []Window) []time.Duration {
	var out []time.Duration
	for _, k := range all {
		for _, w := range ws {
			if k.PID == pid && k.Submitted >= w.From && k.Submitted < w.To {
				out = append(out, time.Duration(k.Started-k.Submitted))
			}
		}
	}
	slices.Sort(out)
	return out
}

// Cut returns the segments inside a window, shortened to it.
func Cut(segs []Segment, w Window) []Segment {
	var out []Segment
	for _, s := range segs {
		if w.Overlap(s.From, s.To) > 0 {
			s.From, s.To = max(s.From, w.From), min(s.To, w.To)
			out = append(out, s)
		}
	}
	return out
}

// HoldSlack is how long a process may run after its suspension was confirmed: the clocks are read at
// two ends.
const HoldSlack = 50 * time.Microsecond
