// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"xsched/internal/model"
)

// MLFQ learns who is interactive: everybody begins in the top tier, who uses
// up the time of its tier sinks to the next, and a lower tier runs only while no
// higher one has work. Turns are longer in lower tiers. After every Boost all
// begin at the top again, so that a program that changes its ways is noticed.
//
// Queue.Memo is the tier and what was used of it; View.Memo[0] is the next boost.
type MLFQ struct{}

const (
	mlfqTiers = 4
	mlfqShift = 56 // of the tier in a key
)

var (
	_ Policy  = MLFQ{}
	_ Keyer   = MLFQ{}
	_ Charger = MLFQ{}
)

// Name implements Policy.
func (MLFQ) Name() string { return "MLFQ" }

// Decide implements Policy.
func (m MLFQ) Decide(now model.Time, v *View) (model.Plan, model.Time) {
	v.settleFew()
	if int64(now) >= v.Memo[0] {
		v.Memo[0] = int64(now.Add(v.Knobs.Boost))
		for i := range v.Queues {
			v.Queues[i].Memo = [2]int64{}
			v.Rekey(i)
		}
	}
	plan, i, wake := turns{preempt: true, shift: mlfqShift, length: mlfqTurn, hold: true}.decide(now, v)
	if i >= 0 && wake != model.Never {
		wake = min(wake, model.Time(v.Memo[0]))
	}
	return plan, wake
}

// Key implements Keyer: the tier, and in it who waits longest.
func (MLFQ) Key(v *View, i int) int64 {
	return v.Queues[i].Memo[0]<<mlfqShift | int64(v.Clocks[i].Wait)
}

// Charge implements Charger.
func (MLFQ) Charge(v *View, i int, used time.Duration) {
	m := &v.Queues[i].Memo
	m[1] += int64(used)
	for m[0] < mlfqTiers-1 && m[1]+int64(time.Microsecond) >= int64(mlfqAllot(v, m[0])) {
		m[1] = max(0, m[1]-int64(mlfqAllot(v, m[0])))
		m[0]++
	}
}

// mlfqAllot is what a tier may use: a fifth of a quantum at the top, twice as much in each below.
func mlfqAllot(v *View, tier int64) time.Duration { return v.Knobs.Quantum / 5 << tier }

// mlfqTurn is the rest of what a queue may use in its tier.
func mlfqTurn(v *View, i int) time.Duration {
	m := &v.Queues[i].Memo
	allot := mlfqAllot(v, m[0])
	if m[0] == mlfqTiers-1 {
		return allot
	}
	return max(time.Millisecond, allot-time.Duration(m[1]))
}
