// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"xsched/internal/model"
)

// HPF runs the highest priority first. The highest class that exists on a device
// ("high") always runs. Of all lower queues ("lows") at most one runs, the active
// one: beside a high with a long slice, the hardware leaves a low with a tiny
// slice within 0.2 ms and with no software in the path. Two runnable queues with
// tiny slices would only switch. Without slices, one running low means that one
// suspend is enough when the high arrives.
//
// The active low keeps its turn for a quantum of time in which it could progress,
// across gaps shorter than Hold and across the work of a high. Then the equal
// that has waited longest is next. A lower queue is active only while no higher
// low is ready.
//
// Without slices the active low is suspended while a high has work and for Hold
// after that, so that the next kernel of the high does not pay for another
// suspend. Beside launch-bound highs another rule applies (launch_bound.go).
//
// Where all queues have one priority, none is suspended. Equals at or above the
// default priority keep the driver's slices: longer ones would save up to 8 % of
// the chip, but make each wait five times as long for the other. Equals below it
// are background work and get PeerSlice.
type HPF struct{}

// Decide implements Policy.
func (HPF) Decide(now model.Time, v *View, s *turn) (model.Plan, model.Time) {
	if v.sharesNatively() {
		return hpf{high: v.Knobs.NativeSlice, low: v.Knobs.NativeSlice}.decide(now, v, s)
	}
	return hpf{high: v.Knobs.HighSlice, low: v.Knobs.LowSlice}.decide(now, v, s)
}

// hpf is the mechanism of HPF.
type hpf struct {
	// high is the slice of the highest class, low that of the active low. With a
	// useful slice the low runs beside the high instead of giving way.
	high, low time.Duration
	// idleGap: suspend lows also where slices would do, and for that long after
	// the high.
	idleGap time.Duration
}

// sharing returns how lows share the device with the highs, [high, end).
func (h hpf) sharing(v *View, high, end int) model.Sharing {
	switch {
	case h.low >= UsefulSlice:
		return model.SharingUseful
	case v.Unmanaged || h.idleGap > 0 || !v.allSliced(high, end):
		return model.SharingStop
	case v.LaunchBound.gathers() && v.gathers(high, end):
		return model.SharingBatches
	case v.CanSuspend && !v.LaunchBound.tiny() && v.allLaunchBound(high, end):
		return model.SharingInTime
	}
	return model.SharingTiny
}

// concurrent reports that the low progresses while a high works.
func (c *contest) concurrent() bool {
	return c.sharing == model.SharingInTime || c.sharing == model.SharingUseful
}

func (h hpf) decide(now model.Time, v *View, state *turn) (model.Plan, model.Time) {
	c := contest{View: v, now: now, hold: max(h.idleGap, v.Knobs.Hold), turn: *state, high: v.next(0, len(v.Queues), admitted)}
	state.paused = true // unless this plan gives a turn
	if c.high < 0 {
		return v.all(model.Verdict{}), model.Never
	}
	c.end = v.classEnd(c.high)
	if c.low = v.next(c.end, len(v.Queues), admitted); c.low < 0 {
		return v.all(model.Verdict{Run: true, Slice: onlyClassSlice(v, c.high, c.end)}), model.Never
	}
	state.rhythm.follow(v.lastRequest(c.high, c.end))
	c.turn.rhythm = state.rhythm
	c.sharing = h.sharing(v, c.high, c.end)
	stop, stopWake := false, model.Never
	if c.sharing == model.SharingInTime {
		stop, stopWake = v.stopForAny(now, c.high, c.end)
	}
	highs, lows := h.verdicts(&c, stop)
	plan := v.all(lows)
	fill(plan[:c.end], highs)
	for i := c.high; c.sharing == model.SharingBatches && i < c.end; i++ {
		plan[i].Gather = v.Queues[i].Feeding.Burst
	}
	if !v.CanSuspend || stop && !v.LaunchBound.tinyStop() {
		return plan, stopWake
	}
	active, wake := c.active()
	if active < 0 {
		return plan, wake
	}
	*state = c.turn
	lows.Run = true
	plan[active] = lows
	return plan, min(wake, stopWake)
}

// verdicts returns those of the highs and of the lows, of which the active one runs. Suspended lows
// already have their slice, so that a turn sets none. stop: lows give way to a launch-bound high.
func (h hpf) verdicts(c *contest, stop bool) (highs, lows model.Verdict) {
	highs, lows = model.Verdict{Run: true, Slice: h.high, Sharing: c.sharing}, model.Verdict{Limit: true, Slice: h.low}
	if c.Unmanaged || c.several(c.high, c.end, 1, ready) {
		highs.Slice = min(h.high, c.Knobs.PeerSlice) // else the second waits for all the work of the first
	}
	switch c.sharing {
	case model.SharingStop:
		lows.Slice = 0
	case model.SharingInTime:
		highs.Slice = 0 // enough for a batch; beside a longer one the lows would count as starved
		lows.Slice = c.besideSlice(stop)
	}
	if !c.CanSuspend {
		lows.Run = true
		if c.several(c.low, len(c.Queues), 1, admitted) {
			lows.Slice = 0 // several that cannot take turns: slices that still progress
			highs.Slice = min(highs.Slice, c.Knobs.ShareMax)
		}
	}
	return highs, lows
}

// contest is one choice of the active low.
type contest struct {
	*View
	now       model.Time
	hold      time.Duration // how long highs count as busy after their work
	turn      turn
	sharing   model.Sharing
	high, end int // the highs
	low       int // the first queue below them that may run
}

// active returns the low that may run and gives it the turn, -1 for none, and when to ask again.
func (c *contest) active() (int, model.Time) {
	if c.sharing == model.SharingTiny {
		if until := c.chained(c.now, c.high, c.end); until > c.now {
			return -1, until
		}
	}
	cur := c.running(c.low)
	from, free := ready, c.freeAt(cur)
	if free > c.now { // only a low that the hardware leaves by itself may run
		if c.sharing == model.SharingStop {
			return -1, free
		}
		from = readySliced
		if best := c.next(c.low, len(c.Queues), ready); c.next(0, len(c.Queues), unsliced) < 0 {
			free = model.Never // no queue waits for the high to be idle
		} else if best >= 0 && c.next(best, c.classEnd(best), from) < 0 {
			return -1, free
		}
	}
	if cur < 0 {
		cur = c.cutShort(from)
	}
	holder := cur
	if cur >= 0 && free > c.now && !c.Queues[cur].Slices {
		holder = -1
	}
	active, wake := c.choose(holder, from)
	if free > c.now {
		if !c.Queues[active].Slices {
			return -1, free
		}
		wake = min(wake, free) // one without slices may have a turn then
	}
	if active == cur {
		c.turn.resume(&c.Queues[active])
	} else {
		c.turn.begin(&c.Queues[active]) // even if it ran beside others
	}
	return active, wake
}

func unsliced(q *Queue) bool { return q.Ready && !q.Slices }

// cutShort returns the low whose turn a high ended before its quantum, if it may
// resume; -1: none. Otherwise a high that comes at regular times could leave the
// same low the end of every interval.
func (c *contest) cutShort(from func(*Queue) bool) int {
	i := c.find(c.turn.queue)
	if c.turn.queue == (model.QueueID{}) || i < c.low {
		return -1
	}
	if q := &c.Queues[i]; !from(q) || q.Progressing || c.turn.used(q) >= c.equalTurn(c.classStart(i), from) {
		return -1
	}
	return i
}

// choose picks one of the lows in from, and says when to ask again. cur has the turn, or had it when a high
// ended it early; -1: none.
func (c *contest) choose(cur int, from func(*Queue) bool) (int, model.Time) {
	best := c.next(c.low, len(c.Queues), from)
	switch {
	case best < 0 && cur < 0:
		return c.low, model.Never
	case best < 0:
		return cur, model.Never
	case cur < 0 || c.Queues[best].Rank > c.Queues[cur].Rank:
		return hpfTurn(c.now, c.View, from, best)
	}
	q := &c.Queues[cur]
	if !from(q) {
		if end := q.ChangedAt.Add(c.Knobs.Hold); c.now < end {
			return cur, end
		}
		return hpfTurn(c.now, c.View, from, best)
	}
	// best has the rank of cur, or is cur. Is it another queue's turn?
	end := c.classEnd(cur)
	if !c.several(best, end, 1, from) || !c.concurrent() && c.next(0, c.low, ready) >= 0 {
		return cur, model.Never // alone, or a high works: a turn would be of no use
	}
	length := c.equalTurn(best, from)
	used := c.turn.used(q)
	if used < length {
		return cur, c.now.Add(length - used)
	}
	if at := c.turn.rhythm.changeAt(c.now, used-length, length); at > c.now {
		return cur, at
	}
	others := c.others(cur, from)
	if best = c.next(best, end, others); best < 0 {
		return cur, model.Never
	}
	i, _ := hpfTurn(c.now, c.View, others, best)
	return i, c.now.Add(length)
}

// afterRequest is how long after the end of a request a turn may change.
const afterRequest = time.Millisecond

// changeAt returns when a turn that is over by some time should change. A request that arrives during the
// suspend and the resume waits for both. So beside a high with at least one request per turn, turns change
// when a request has just ended. Then all of them take as many periods, so that none is favoured.
func (r rhythm) changeAt(now model.Time, over, turn time.Duration) model.Time {
	idle := now.Sub(r.last)
	if r.period == 0 || r.period > turn || idle <= afterRequest {
		return now
	}
	return now.Add(max(0, 2*turn-max(idle, over)))
}

// lastRequest returns when the last request of the highs ended; 0: none has, or one goes on.
func (v *View) lastRequest(high, end int) model.Time {
	last := model.Time(0)
	for i := high; i < end; i++ {
		switch q := &v.Queues[i]; {
		case !q.Admitted:
		case q.Ready || q.Feeding.Paused:
			return 0
		default:
			last = max(last, q.ChangedAt)
		}
	}
	return last
}

// hpfTurn gives the turn to the longest waiting queue of the class that begins
// at best, its first queue in from.
func hpfTurn(now model.Time, v *View, from func(*Queue) bool, best int) (int, model.Time) {
	next, n := best, 0
	for i, end := best, v.classEnd(best); i < end; i++ {
		if q := &v.Queues[i]; from(q) {
			n++
			if q.WaitSince < v.Queues[next].WaitSince {
				next = i
			}
		}
	}
	if n < 2 {
		return next, model.Never
	}
	return next, now.Add(v.equalTurn(best, from))
}

const (
	// roundTime is the longest round of equal queues that shorter turns preserve.
	roundTime = 500 * time.Millisecond
	// mostShorter bounds how much shorter a turn gets. At a fifth of the default
	// quantum, a turn's suspend and resume cost almost 10 %.
	mostShorter = 5
)

// equalTurn returns the length of a turn in the class that begins at first: the
// quantum, or less if many processes with a queue in from share the round. Queues
// of one process count once: they are adjacent and mostly run together.
func (v *View) equalTurn(first int, from func(*Queue) bool) time.Duration {
	most := int(roundTime / max(1, v.Knobs.Quantum)) // processes with a full quantum
	n, last := 0, -1
	for i, end := first, v.classEnd(first); i < end; i++ {
		if q := &v.Queues[i]; q.Process != last && from(q) {
			n, last = n+1, q.Process
		}
	}
	if n <= max(1, most) {
		return v.Knobs.Quantum
	}
	return max(roundTime/time.Duration(n), v.Knobs.Quantum/mostShorter)
}

// freeAt returns when the active low may have the device: when the highs have been idle for a hold, Never
// while one is busy. cur is the active low, or -1.
func (c *contest) freeAt(cur int) model.Time {
	free := c.now
	if c.concurrent() {
		return free
	}
	for i := c.high; i < c.end; i++ {
		q := &c.Queues[i]
		if q.Ready {
			return model.Never
		}
		if q.Admitted {
			free = max(free, q.ChangedAt.Add(c.hold))
		}
	}
	if cur >= 0 && (c.sharing == model.SharingStop || !c.Queues[cur].Slices) {
		return c.now // a low that must not run beside the high runs already
	}
	return free
}

func onlyClassSlice(v *View, from, end int) time.Duration {
	if v.Queues[from].Rank < model.PriorityDefault && v.several(from, end, 1, admitted) {
		return v.Knobs.PeerSlice
	}
	return 0
}
