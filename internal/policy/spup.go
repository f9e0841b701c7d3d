// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"math"
	"time"

	"xsched/internal/model"
)

// SPUP is PUP with the utilization as a quota: a process that used its
// utilization within the window is suspended until the next one, even if no
// other process wants the device. A process without a utilization, or with 100,
// is never suspended for it. Processes that compete share as under PUP.
type SPUP struct{}

type spupState struct {
	turn   turn
	window int64                   // number of the current one
	got    perQueue[time.Duration] // Queue.Got when the window began
	pools  poolGot                 // Pool.Got then
	rota   rota
}

// Decide implements Policy.
func (SPUP) Decide(now model.Time, v *View, s *spupState) (model.Plan, model.Time) {
	s.got.align(v, func(q *Queue) time.Duration { return q.Got })
	window := int64(now) / int64(v.Knobs.Window)
	if window != s.window {
		s.window = window
		for i := range v.Queues {
			s.got.of[i] = v.Queues[i].Got
		}
		clear(s.pools)
	}
	s.pools.follow(v)
	next := model.Time((window + 1) * int64(v.Knobs.Window))
	u := spupUsage(v, s, next)
	var plan model.Plan
	wake := model.Never
	if v.slicesShare() {
		plan, wake = v.divide(now, v.shareOut(utilization, u.slice(), v.Knobs.ShareMax), true, &s.rota)
	} else {
		plan, wake = u.takeTurns(now, s)
	}
	if !v.CanSuspend {
		return plan, wake
	}
	for i := range v.Queues {
		if v.Queues[i].Admitted && u.left[i] == 0 {
			plan[i] = model.Verdict{Limit: true, Slice: plan[i].Slice}
			wake = min(wake, next)
		}
	}
	if at := u.spentAt(now, plan); at < wake {
		wake = min(at, next)
	}
	return plan, wake
}

// usage is the GPU time of a device's processes in the current window.
type usage struct {
	*View
	end   model.Time      // of the window
	used  []time.Duration // by process or pool
	ready []int           // queues with work, by process or pool
	left  []time.Duration // remaining quota of each queue's process or pool, or noQuota
	round time.Duration   // slices of the queues that progress
	least int             // the smallest utilization
}

const noQuota = time.Duration(math.MaxInt64)

func spupUsage(v *View, s *spupState, end model.Time) *usage {
	u := &usage{
		View: v, end: end, used: make([]time.Duration, v.payers()), ready: v.readyByPayer(true),
		left: make([]time.Duration, len(v.Queues)), least: model.UtilizationMax,
	}
	for i := range v.Queues {
		q := &v.Queues[i]
		if q.Pool == 0 || q.Spare > 0 {
			u.used[q.Process] += q.Got - s.got.of[i]
		}
		if q.Progressing {
			u.round += q.Slice
		}
	}
	for k := range v.Pools {
		u.used[len(v.Queues)+k] = v.Pools[k].Got - s.pools[v.Pools[k].Name]
	}
	if least := v.lightest(utilization); least > 0 {
		u.least = least
	}
	for i := range v.Queues {
		q := &v.Queues[i]
		quota, used := cmp.Or(q.Hint.Utilization, model.UtilizationMax), u.used[v.payer(i, true)]
		if q.Spare > 0 {
			used = u.used[q.Process] // what is spare is no quota; that of a program is its own
		}
		if u.left[i] = noQuota; quota < model.UtilizationMax {
			u.left[i] = v.Knobs.Window*time.Duration(quota)/model.UtilizationMax - used
		}
		if u.left[i] < time.Microsecond {
			u.left[i] = 0
		}
	}
	return u
}

// takeTurns serves one queue at a time: the process that used the least part of
// its share in this window is next. The programs of a pool take turns.
func (u *usage) takeTurns(now model.Time, s *spupState) (model.Plan, model.Time) {
	n := len(u.Queues)
	first := u.next(0, n, admitted)
	if first < 0 {
		return u.all(model.Verdict{}), model.Never
	}
	rest := model.Verdict{Limit: u.several(first, n, 1, admitted)}
	plan := u.all(rest)
	best, wake := u.pick(now, s)
	if best >= 0 {
		s.rota.begin(u.View, best)
		plan[best] = model.Verdict{Run: true, Limit: rest.Limit}
	}
	return plan, wake
}

// pick chooses a queue that may have a turn; -1: all have used their share.
func (u *usage) pick(now model.Time, s *spupState) (int, model.Time) {
	t := &s.turn
	s.rota.align(u.View)
	best, least, candidates := -1, 0.0, 0
	demand := 0.0 // percent of the device, of all processes with work
	for i := range u.Queues {
		q := &u.Queues[i]
		if !q.Ready {
			continue
		}
		share := float64(utilization(q))
		demand += share / float64(u.ready[u.payer(i, true)])
		if u.left[i] == 0 {
			continue
		}
		candidates++
		if part := float64(u.used[u.payer(i, true)]) / share; best < 0 || part < least || part == least && s.rota.last(i) < s.rota.last(best) {
			best, least = i, part
		}
	}
	cur := u.running(0)
	if cur >= 0 && u.left[cur] == 0 {
		cur = -1
	}
	if cur >= 0 {
		q := &u.Queues[cur]
		t.resume(q)
		if best < 0 {
			return cur, model.Never
		}
		end := q.ChangedAt.Add(u.Knobs.Hold)
		if q.Ready {
			end = u.ends(now, cur, t.used(q), demand)
		}
		if now < end {
			return cur, end
		}
	}
	if best < 0 {
		return cur, model.Never
	}
	q := &u.Queues[best]
	t.begin(q) // a new turn, even of the same queue
	if candidates > 1 {
		return best, u.ends(now, best, 0, demand)
	}
	return best, model.Never
}

// ends returns when the turn of a queue ends: after a quantum, or when it has
// used its part of the window. A window has few turns: otherwise the first queue
// would get an extra turn in each. For the same reason the last turn of a window
// lasts until its end, if what is left is too short for another.
func (u *usage) ends(now model.Time, i int, used time.Duration, demand float64) model.Time {
	q := &u.Queues[i]
	part := time.Duration(float64(u.Knobs.Window) * float64(utilization(q)) / max(demand, model.UtilizationMax))
	least := max(UsefulSlice, min(part, u.Knobs.Timeslice))
	end := now.Add(max(least-used, min(u.turnLength(q)-used, part-u.used[u.payer(i, true)])))
	if end < u.end && u.end.Sub(end) < UsefulSlice {
		return u.end
	}
	return end
}

// slice is the slice of the smallest share: a quarter of its quota, so that
// accounting follows the slices, but at most a timeslice.
func (u *usage) slice() time.Duration {
	quota := u.Knobs.Window * time.Duration(u.least) / model.UtilizationMax
	return min(u.Knobs.Timeslice, max(UsefulSlice, quota/4))
}

// spentAt returns when the first running process will have used its share, at
// the rate at which it progresses now. A queue that the plan starts progresses
// at an unknown rate: the whole device is the most it can have.
func (u *usage) spentAt(now model.Time, plan model.Plan) model.Time {
	at := model.Never
	for i := range u.Queues {
		q := &u.Queues[i]
		left := u.left[i]
		switch {
		case left == noQuota || left == 0:
		case q.Progressing:
			rounds := float64(left) / (float64(q.Slice) * float64(max(1, u.ready[u.payer(i, true)])))
			at = min(at, now.Add(time.Duration(rounds*float64(u.round)))+1)
		case q.Ready && plan[i].Run:
			at = min(at, now.Add(left))
		}
	}
	return at
}
