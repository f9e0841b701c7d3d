// SPDX-License-Identifier: Apache-2.0

package policy

import "xsched/internal/model"

// FIFO serves first who came first: of the ready queues of a device the one
// that is busy for the longest time runs alone till it goes idle.
//
// At most one queue is enabled, idle or not: a queue that runs alone never
// meets another one on the chip, and a hand-over is one stop and one continue
// however many queues there are. Unlike HPF it does not hold a turn over a
// gap: going idle is what ends a turn here.
type FIFO struct{}

var _ Policy = FIFO{}

// Name implements Policy.
func (FIFO) Name() string { return "FIFO" }

// Decide implements Policy.
func (FIFO) Decide(_ model.Time, v *View) (model.Plan, model.Time) {
	first := v.Eligible.Next(0)
	if first < 0 {
		return v.Base(Span{0, len(v.Queues), model.Verdict{}}), model.Never
	}
	rest := model.Verdict{Limit: v.Eligible.Next(first+1) >= 0}
	plan := v.Base(Span{0, len(v.Queues), rest})
	turn := model.Verdict{Run: true, Limit: rest.Limit}
	if !v.CanSuspend {
		// The others run too: let this one's slice outlast its work.
		turn.Slice = v.Knobs.HighSlice
	}
	v.Set(fifoTurn(v, first), turn)
	return plan, model.Never
}

// fifoTurn picks whose turn it is: a running queue keeps its turn also against one
// that was released from a hold and is busy for longer. With nobody ready the last one
// stays enabled.
func fifoTurn(v *View, first int) int {
	running, ready, idle := -1, -1, -1
	for i := v.Running.Next(0); i >= 0; i = v.Running.Next(i + 1) {
		if v.Ready.Has(i) {
			if running < 0 || v.Queues[i].ChangedAt < v.Queues[running].ChangedAt {
				running = i
			}
		} else if idle < 0 && v.Eligible.Has(i) {
			idle = i
		}
	}
	if running >= 0 {
		return running
	}
	for i := v.Ready.Next(0); i >= 0; i = v.Ready.Next(i + 1) {
		if ready < 0 || v.Queues[i].ChangedAt < v.Queues[ready].ChangedAt {
			ready = i
		}
	}
	switch {
	case ready >= 0:
		return ready
	case idle >= 0:
		return idle
	}
	return first
}
