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
// progress, over gaps shorter than Hold and over the work of a high; then the equal that has waited longest is
// next. A lower one is active only while no higher low is ready.
//
// Without slices the active low is stopped as well while a high has work, and for Hold
// after that, so that the high's next kernel does not pay for another stop. That is also better than slices for
// requests that are fed to the device kernel by kernel (fed.go).
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
	return hpf{high: v.Knobs.HighSlice, low: v.Knobs.LowSlice}.decide(now, v)
}

// hpf is the mechanics of HPF.
type hpf struct {
	// high is the slice of the highest class, low that of the active low. With a useful one
	// it runs beside the high instead of giving way.
	high, low time.Duration
	// lull: lows are stopped also where slices would do, and for that long after the high.
	lull time.Duration
}

func (h hpf) beside() bool { return h.low >= UsefulSlice }

func (h hpf) decide(now model.Time, v *View) (model.Plan, model.Time) {
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

	highs := model.Verdict{Run: true, Slice: h.high}
	if v.Unmanaged || v.Ready.CountIn(high, highEnd, 2) > 1 {
		highs.Slice = min(h.high, v.Knobs.PeerSlice) // else the second waits for all the work of the first
	}
	sliced := h.beside() || !v.Unmanaged && h.lull == 0 && allSliced(v, high, highEnd)
	hold, fedUntil := max(h.lull, v.Knobs.Hold), model.Never
	if sliced && v.CanSuspend && !h.beside() {
		if fedUntil = v.fedUntil(now, high, highEnd); fedUntil > now {
			sliced, hold = false, min(hold, FedHold)
		}
	}
	// The stopped lows have their slice already: then a turn needs no slice set.
	lows := model.Verdict{Limit: true}
	if sliced {
		lows.Slice = h.low
	}
	if !v.CanSuspend {
		lows.Run = true
		if v.Eligible.Next(low+1) >= 0 {
			lows.Slice = 0 // several that can't take turns: slices that still progress
			highs.Slice = min(highs.Slice, v.Knobs.ShareMax)
		}
	}
	plan := v.Base(Span{0, highEnd, highs}, Span{highEnd, n, lows})
	if !v.CanSuspend {
		return plan, model.Never
	}

	// While a high works only a low that the hardware leaves by itself may be enabled.
	from, free := v.Ready, highFreeAt(now, v, high, highEnd, hold)
	if cur := activeNow(v, low); h.beside() || free != model.Never && cur >= 0 && !(sliced && v.Sliced.Has(cur)) {
		free = now // nothing to keep up: one that must not run beside the high does already
	}
	if free > now {
		if !sliced {
			return plan, min(free, fedUntil)
		}
		if from = v.readySliced(); from == nil {
			from, free = v.Ready, model.Never // nobody waits for the high to be idle
		} else if best := v.Ready.Next(low); best >= 0 && from.NextIn(best, v.ClassEnd(best)) < 0 {
			return plan, free
		}
	}
	cur, cut := activeNow(v, low), -1
	if cur < 0 {
		cut = v.cutShort(now, low, from)
	}
	active, wake := h.active(now, v, low, from, free > now, cut)
	if active != cur && active != cut {
		v.startTurn(now, active) // also if it was enabled beside others
	}
	if free > now {
		if !v.Sliced.Has(active) {
			return plan, free
		}
		wake = min(wake, free) // one without slices may have a turn then
	}
	lows.Run = true
	v.Set(active, lows)
	v.turn, v.turnAt = v.Queues[active].ID, active
	if active == cut {
		v.goesOn = v.turn
	}
	return plan, wake
}

// cutShort is the low whose turn a high has ended before its quantum, if it may go on; -1: none. Without that a
// high that comes at regular times could leave the same low the end of every interval.
func (v *View) cutShort(now model.Time, low int, from Set) int {
	if v.turn == (model.QueueID{}) {
		return -1
	}
	i := v.find(v.turn, v.turnAt)
	if i < low || !from.Has(i) || v.Chance.Has(i) || now >= v.turnEnd(now, i) {
		return -1
	}
	return i
}

// startTurn begins the turn of queue i. What it waited before, also if it was enabled, is no pause of that turn.
func (v *View) startTurn(now model.Time, i int) {
	c := &v.Clocks[i]
	c.Run = now
	if !v.Chance.Has(i) {
		c.Flip = now
	}
}

// turnEnd is when the turn of queue i is over if it goes on now. Time in which it had no chance does not count.
func (v *View) turnEnd(now model.Time, i int) model.Time {
	c := &v.Clocks[i]
	end := c.Run.Add(v.Knobs.Quantum)
	if !v.Chance.Has(i) {
		end += now - c.Flip
	}
	return end
}

// readySliced is the ready queues with slices, nil if they all have.
func (v *View) readySliced() Set {
	mixed := false
	for w := range v.some {
		v.some[w] = v.Ready[w] & v.Sliced[w]
		mixed = mixed || v.some[w] != v.Ready[w]
	}
	if mixed {
		return v.some
	}
	return nil
}

// active picks the one low of those in from that may run, and says when to look again. With
// sliced only one with slices will do. cut is whose turn was cut short, or -1.
func (h hpf) active(now model.Time, v *View, low int, from Set, sliced bool, cut int) (int, model.Time) {
	cur := activeNow(v, low)
	if cut >= 0 {
		cur = cut
	}
	if cur >= 0 && sliced && !v.Sliced.Has(cur) {
		cur = -1
	}
	best := from.Next(low)
	switch {
	case best < 0 && cur < 0:
		return low, model.Never
	case best < 0:
		return cur, model.Never
	case cur < 0 || v.Queues[best].Rank > v.Queues[cur].Rank:
		return hpfTurn(now, v, from, best)
	}
	q := &v.Queues[cur]
	if !from.Has(cur) {
		if end := q.ChangedAt.Add(v.Knobs.Hold); now < end {
			return cur, end
		}
		return hpfTurn(now, v, from, best)
	}
	// best has the same rank as cur, or is cur: somebody else's turn after the quantum?
	if from.CountIn(best, v.ClassEnd(cur), 2) < 2 || !h.beside() && v.Ready.Next(0) < low {
		return cur, model.Never // alone, or a high works: a turn would be of no use to anybody
	}
	turn := v.Clocks[cur].Run.Add(v.Knobs.Quantum)
	if cur == cut {
		turn = v.turnEnd(now, cut)
	}
	if now < turn {
		return cur, turn
	}
	others := v.others(from, cur)
	if best = others.NextIn(best, v.ClassEnd(cur)); best < 0 {
		return cur, model.Never
	}
	i, _ := hpfTurn(now, v, others, best)
	return i, now.Add(v.Knobs.Quantum)
}

// hpfTurn gives the turn to who has waited longest of the class that begins at its first
// queue in from.
func hpfTurn(now model.Time, v *View, from Set, best int) (int, model.Time) {
	end := v.ClassEnd(best)
	next := v.longestWaiting(from, best, end)
	if from.CountIn(best, end, 2) < 2 {
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

// highFreeAt returns when the high class will have been idle for a hold: in the past or
// now if it has, Never while it is busy.
func highFreeAt(now model.Time, v *View, high, end int, hold time.Duration) model.Time {
	if v.Ready.NextIn(high, end) >= 0 {
		return model.Never
	}
	free := now
	for i := v.Eligible.NextIn(high, end); i >= 0; i = v.Eligible.NextIn(i+1, end) {
		free = max(free, v.Queues[i].ChangedAt.Add(hold))
	}
	return free
}

func onlyClassSlice(v *View, from, end int) time.Duration {
	if v.Queues[from].Rank < model.PriorityDefault && v.Eligible.CountIn(from, end, 2) > 1 {
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
