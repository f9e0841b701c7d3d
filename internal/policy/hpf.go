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
	// lull: suspend lows also where slices would do, and for that long after
	// the high.
	lull time.Duration
}

func (h hpf) beside() bool { return h.low >= UsefulSlice }

func (h hpf) decide(now model.Time, v *View, state *turn) (model.Plan, model.Time) {
	n := len(v.Queues)
	high := v.next(0, n, admitted)
	if high < 0 {
		state.paused = true
		return v.all(model.Verdict{}), model.Never
	}
	highEnd := v.classEnd(high)
	t := *state
	state.paused = true // unless this plan gives a turn
	low := v.next(highEnd, n, admitted)
	if low < 0 {
		return v.all(model.Verdict{Run: true, Slice: onlyClassSlice(v, high, highEnd)}), model.Never
	}
	state.rhythm.follow(v.lastRequest(high, highEnd))
	t.rhythm = state.rhythm

	highs := model.Verdict{Run: true, Slice: h.high}
	if v.Unmanaged || v.several(high, highEnd, 1, ready) {
		highs.Slice = min(h.high, v.Knobs.PeerSlice) // else the second waits for all the work of the first
	}
	sliced := h.beside() || !v.Unmanaged && h.lull == 0 && v.allSliced(high, highEnd)
	beside, stopWake := h.beside(), model.Never
	stopNow := false // lows give way to a launch-bound high
	gather := v.LaunchBound.gathers() && sliced && !beside && v.gathers(high, highEnd)
	if gather {
		// The hardware changes to a complete batch by itself.
	} else if sliced && !beside && v.CanSuspend && !v.LaunchBound.tiny() && v.allLaunchBound(high, highEnd) {
		beside = true
		stopNow, stopWake = v.stopForAny(now, high, highEnd)
		highs.Slice = 0 // enough for a batch; beside a longer one the lows would count as starved
	}
	// Suspended lows already have their slice, so that a turn sets none.
	lows := model.Verdict{Limit: true}
	switch {
	case beside && !h.beside():
		lows.Slice = v.besideSlice(stopNow)
	case sliced:
		lows.Slice = h.low
	}
	if !v.CanSuspend {
		lows.Run = true
		if v.several(low, n, 1, admitted) {
			lows.Slice = 0 // several that cannot take turns: slices that still progress
			highs.Slice = min(highs.Slice, v.Knobs.ShareMax)
		}
	}
	plan := v.all(lows)
	fill(plan[:highEnd], highs)
	for i := high; gather && i < highEnd; i++ {
		plan[i].Gather = v.Queues[i].Feeding.Burst
	}
	if !v.CanSuspend {
		return plan, stopWake
	}
	if stopNow && !v.LaunchBound.tinyStop() {
		return plan, stopWake
	}

	if sliced && !beside && !gather {
		if until := v.chained(now, high, highEnd); until > now {
			return plan, until
		}
	}

	// While a high works, only a low that the hardware leaves by itself may run.
	cur := v.running(low)
	from, free := ready, highFreeAt(now, v, high, highEnd, max(h.lull, v.Knobs.Hold))
	if beside || free != model.Never && cur >= 0 && !(sliced && v.Queues[cur].Slices) {
		free = now // a low that must not run beside the high runs already
	}
	if free > now {
		if !sliced {
			return plan, free
		}
		from = readySliced
		if best := v.next(low, n, ready); v.next(0, n, unsliced) < 0 {
			free = model.Never // no queue waits for the high to be idle
		} else if best >= 0 && v.next(best, v.classEnd(best), from) < 0 {
			return plan, free
		}
	}
	cut := -1
	if cur < 0 {
		cut = v.cutShort(t, low, from)
	}
	active, wake := active(now, v, t, low, from, free > now, beside, cut)
	wake = min(wake, stopWake)
	if free > now {
		if !v.Queues[active].Slices {
			return plan, free
		}
		wake = min(wake, free) // one without slices may have a turn then
	}
	if active == cur || active == cut {
		t.resume(&v.Queues[active])
	} else {
		t.begin(&v.Queues[active]) // even if it ran beside others
	}
	*state = t
	lows.Run = true
	plan[active] = lows
	return plan, wake
}

func unsliced(q *Queue) bool { return q.Ready && !q.Slices }

// cutShort returns the low whose turn a high ended before its quantum, if it may
// resume; -1: none. Otherwise a high that comes at regular times could leave the
// same low the end of every interval.
func (v *View) cutShort(t turn, low int, from func(*Queue) bool) int {
	i := v.find(t.queue)
	if t.queue == (model.QueueID{}) || i < low {
		return -1
	}
	if q := &v.Queues[i]; !from(q) || q.Progressing || t.used(q) >= v.equalTurn(v.classStart(i), from) {
		return -1
	}
	return i
}

// active picks the one low of those in from that may run, and when to ask again.
// With sliced, only one with slices qualifies. beside: it progresses beside a high
// that works. cut is the queue whose turn was cut short, or -1.
func active(now model.Time, v *View, t turn, low int, from func(*Queue) bool, sliced, beside bool, cut int) (int, model.Time) {
	cur := v.running(low)
	if cut >= 0 {
		cur = cut
	}
	if cur >= 0 && sliced && !v.Queues[cur].Slices {
		cur = -1
	}
	best := v.next(low, len(v.Queues), from)
	switch {
	case best < 0 && cur < 0:
		return low, model.Never
	case best < 0:
		return cur, model.Never
	case cur < 0 || v.Queues[best].Rank > v.Queues[cur].Rank:
		return hpfTurn(now, v, from, best)
	}
	q := &v.Queues[cur]
	if !from(q) {
		if end := q.ChangedAt.Add(v.Knobs.Hold); now < end {
			return cur, end
		}
		return hpfTurn(now, v, from, best)
	}
	// best has the rank of cur, or is cur. Is it another queue's turn?
	end := v.classEnd(cur)
	if !v.several(best, end, 1, from) || !beside && v.next(0, low, ready) >= 0 {
		return cur, model.Never // alone, or a high works: a turn would be of no use
	}
	length := v.equalTurn(best, from)
	used := t.used(q)
	if used < length {
		return cur, now.Add(length - used)
	}
	if at := t.rhythm.changeAt(now, used-length, length); at > now {
		return cur, at
	}
	others := v.others(cur, from)
	if best = v.next(best, end, others); best < 0 {
		return cur, model.Never
	}
	i, _ := hpfTurn(now, v, others, best)
	return i, now.Add(length)
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

// highFreeAt returns when the high class will have been idle for a hold: at most
// now if it has, Never while it is busy.
func highFreeAt(now model.Time, v *View, high, end int, hold time.Duration) model.Time {
	free := now
	for i := high; i < end; i++ {
		q := &v.Queues[i]
		if q.Ready {
			return model.Never
		}
		if q.Admitted {
			free = max(free, q.ChangedAt.Add(hold))
		}
	}
	return free
}

func onlyClassSlice(v *View, from, end int) time.Duration {
	if v.Queues[from].Rank < model.PriorityDefault && v.several(from, end, 1, admitted) {
		return v.Knobs.PeerSlice
	}
	return 0
}
