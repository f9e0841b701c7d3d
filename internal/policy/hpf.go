// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math/bits"
	"time"

	"xsched/internal/model"
)

// HPF runs the highest priority first. The highest class that exists on a
// device ("high") is always enabled; of all lower queues ("lows") at most one, the
// active one. Why one: beside a high with a long slice, the hardware leaves a
// low with a tiny slice within 0.2 ms and with no software in the path, but two
// runnable queues with tiny slices only switch and get nothing done. And where there are no
// slices, one enabled low means that one stop is enough when the high arrives.
//
// The active low keeps its turn for a quantum of time in which it could
// progress, over gaps shorter than Hold; then the equal that has waited longest is
// next. A lower one is active only while no higher low is ready.
//
// Without slices the active low is stopped as well while a high has work, and for Hold
// after that, so that the high's next kernel does not pay for another stop.
//
// Where all queues have one priority nobody is stopped. Equals at or above the
// default priority keep the driver's slices: longer ones would save up to 8 %
// of the chip but make each wait five times as long for the other, and nobody
// said that he would not mind. Equals below it did say so, and get PeerSlice.
type HPF struct{}

var _ Policy = HPF{}

// Name implements Policy.
func (HPF) Name() string { return "HPF" }

// Decide implements Policy.
func (HPF) Decide(now model.Time, v *View) (model.Plan, model.Time) {
	n := len(v.Queues)
	high := v.Eligible.Next(0)
	if high < 0 {
		return v.Base(Span{0, n, model.Verdict{}}), model.Never
	}
	highEnd := v.ClassEnd(high)
	low := v.Eligible.Next(highEnd)
	if low < 0 {
		only := model.Verdict{Run: true, Slice: onlyClassSlice(v, high, highEnd)}
		return v.Base(Span{0, n, only}), model.Never
	}

	highs := model.Verdict{Run: true, Slice: v.Knobs.HighSlice}
	if v.Ready.CountIn(high, highEnd, 2) > 1 {
		highs.Slice = v.Knobs.PeerSlice // else the second waits for all the work of the first
	}
	sliced := allSliced(v, high, highEnd)
	// The stopped lows have the tiny slice already: then a turn needs no slice set.
	lows := model.Verdict{Limit: true}
	if sliced {
		lows.Slice = v.Knobs.LowSlice
	}
	if !v.CanSuspend {
		lows.Run = true
		if v.Eligible.Next(low+1) >= 0 {
			lows.Slice = 0 // several that can't take turns: slices that still progress
		}
	}
	plan := v.Base(Span{0, highEnd, highs}, Span{highEnd, n, lows})
	if !v.CanSuspend {
		return plan, model.Never
	}

	free := now
	if !sliced {
		if free = highFreeAt(now, v, high, highEnd); free > now {
			return plan, free
		}
	}
	active, wake := hpfActive(now, v, low)
	if sliced && !v.Sliced.Has(active) {
		free = highFreeAt(now, v, high, highEnd)
	}
	if free > now {
		return plan, free
	}
	lows.Run = true
	v.Set(active, lows)
	return plan, wake
}

// hpfActive picks the one low that may run, and says when to look again.
func hpfActive(now model.Time, v *View, low int) (int, model.Time) {
	cur := activeNow(v, low)
	best := v.Ready.Next(low)
	switch {
	case best < 0 && cur < 0:
		return low, model.Never
	case best < 0:
		return cur, model.Never
	case cur < 0 || v.Queues[best].Hint.Priority > v.Queues[cur].Hint.Priority:
		return hpfTurn(now, v, best, -1)
	}
	q := &v.Queues[cur]
	if !v.Ready.Has(cur) {
		if end := q.ChangedAt.Add(v.Knobs.Hold); now < end {
			return cur, end
		}
		return hpfTurn(now, v, best, -1)
	}
	// best has the same priority as cur, or is cur: somebody else's turn after the quantum?
	if v.Ready.CountIn(best, v.ClassEnd(cur), 2) < 2 || v.Ready.Next(0) < low {
		return cur, model.Never // alone, or a high works: a turn would be of no use to anybody
	}
	if turn := q.RunSince.Add(v.Knobs.Quantum); now < turn {
		return cur, turn
	}
	return hpfTurn(now, v, best, cur)
}

// hpfTurn gives the turn to who has waited longest of the class that begins at its first
// ready queue, but not to the one whose turn it was.
func hpfTurn(now model.Time, v *View, best, was int) (int, model.Time) {
	end := v.ClassEnd(best)
	next := v.longestWaiting(best, end, was)
	if v.Ready.CountIn(best, end, 2) < 2 {
		return next, model.Never
	}
	return next, now.Add(v.Knobs.Quantum)
}

// activeNow returns the low that is enabled now, a ready one if there are
// several (after another policy or mode), or -1.
func activeNow(v *View, low int) int {
	idle := -1
	for i := v.Running.Next(low); i >= 0; i = v.Running.Next(i + 1) {
		if v.Ready.Has(i) {
			return i
		}
		if idle < 0 && v.Eligible.Has(i) {
			idle = i
		}
	}
	return idle
}

// highFreeAt returns when the high class will have been idle for Hold: in the past or
// now if it has, Never while it is busy.
func highFreeAt(now model.Time, v *View, high, end int) model.Time {
	if v.Ready.NextIn(high, end) >= 0 {
		return model.Never
	}
	free := now
	for i := v.Eligible.NextIn(high, end); i >= 0; i = v.Eligible.NextIn(i+1, end) {
		free = max(free, v.Queues[i].ChangedAt.Add(v.Knobs.Hold))
	}
	return free
}

func onlyClassSlice(v *View, from, end int) time.Duration {
	if v.Queues[from].Hint.Priority < model.PriorityDefault && v.Eligible.CountIn(from, end, 2) > 1 {
		return v.Knobs.PeerSlice
	}
	return 0
}

// allSliced says whether every eligible queue of [from, end) has hardware slices.
func allSliced(v *View, from, end int) bool {
	for w := from >> 6; w<<6 < end; w++ {
		for out := v.Eligible[w] &^ v.Sliced[w]; out != 0; out &= out - 1 {
			if i := w<<6 + bits.TrailingZeros64(out); i >= from && i < end {
				return false
			}
		}
	}
	return true
}
