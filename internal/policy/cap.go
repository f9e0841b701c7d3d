// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"slices"

	"xsched/internal/model"
)

// This file enforces the administrator's limit of a user (model.Cap) for every
// policy. A policy derives an order from hints in its own way, so the limit
// applies to what it derives:
//
//   - CapRanks bounds the rank of each queue.
//   - Counted reduces hints to those that can't win against another user. The
//     engine applies it while a queue has a rival.
//
// Both leave the order of a user's own queues alone where they can.

// CapRanks sets the rank of each queue from its claim, within the cap of its
// user. To keep the order of a user's own queues, it lowers the others: a claim
// above the cap counts among those only. It reports whether any queue has a cap.
func CapRanks(queues []Queue) bool {
	var capped map[string][]*Queue
	for i := range queues {
		q := &queues[i]
		if q.Rank = q.Claim; q.Hint.Cap.On {
			if capped == nil {
				capped = make(map[string][]*Queue)
			}
			capped[q.User] = append(capped[q.User], q)
		}
	}
	for _, own := range capped {
		slices.SortFunc(own, func(a, b *Queue) int { return cmp.Compare(b.Claim, a.Claim) })
		// below is the highest rank left by the queues with a higher claim, lowest
		// the same including those with this one.
		below, lowest := model.PriorityMax, model.PriorityMax
		for i, q := range own {
			if i > 0 && q.Claim < own[i-1].Claim {
				below = max(lowest-1, model.PriorityMin)
			}
			q.Rank = min(q.Claim, q.Hint.Cap.Priority, below)
			lowest = min(lowest, q.Rank)
		}
	}
	return capped != nil
}

// rivals are the highest queue of those that qualify, and the highest of another
// user; -1: none.
type rivals struct{ first, second int }

func findRivals(queues []Queue, qualifies func(*Queue) bool) rivals {
	r := rivals{-1, -1}
	for i := range queues {
		switch q := &queues[i]; {
		case !qualifies(q):
		case r.first < 0:
			r.first = i
		case q.User != queues[r.first].User:
			r.second = i
			return r
		}
	}
	return r
}

// of reports whether a queue is capped and has a rival: a queue of another user
// whose rank the cap does not exceed.
func (r rivals) of(queues []Queue, q *Queue) bool {
	rival := r.first
	if rival >= 0 && queues[rival].User == q.User {
		rival = r.second
	}
	return q.Hint.Cap.On && rival >= 0 && queues[rival].Rank >= q.Hint.Cap.Priority
}

// SetRivalled finds the queues with a rival on the device, with work or without.
// Queues must be in order. It calls changed for each queue with a new answer.
func SetRivalled(queues []Queue, changed func(i int)) {
	all := findRivals(queues, func(*Queue) bool { return true })
	for i := range queues {
		if q := &queues[i]; q.Rivalled != all.of(queues, q) {
			q.Rivalled = !q.Rivalled
			changed(i)
		}
	}
}

// SetContested is SetRivalled for rivals that have work.
func SetContested(queues []Queue, changed func(i int)) {
	busy := findRivals(queues, func(q *Queue) bool { return q.Queue.Ready() })
	for i := range queues {
		if q := &queues[i]; q.Contested != busy.of(queues, q) {
			q.Contested = !q.Contested
			changed(i)
		}
	}
}

// Counted returns the part of a capped queue's hint that counts beside a rival:
// with it, the queue gets no more than without any hint. While no rival has work,
// all hints count whose effect ends at once when one has. Of a contested queue
// only those count that this function lists.
func Counted(h *model.Hint, contested bool) model.Hint {
	out := *h
	if contested {
		out = model.Hint{
			Priority: min(h.Priority, h.Cap.Priority), Utilization: h.Utilization, Nice: h.Nice,
			Level: h.Level, InFlight: h.InFlight, Batch: h.Batch, // the engine limits these
			Gang: h.Gang, PerQueue: h.PerQueue, // Group.Split
			Cap: h.Cap, Pool: h.Pool,
		}
	}
	out.Nice = min(max(out.Nice, -int(h.Cap.Priority)), model.NiceMax)
	// A long turn or slice outlasts the arrival of another user's work, and one too
	// short for progress would be repeated.
	out.Timeslice = 0
	return out
}
