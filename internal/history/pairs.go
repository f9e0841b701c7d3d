// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"slices"
	"time"

	"xsched/internal/engine"
	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// Preemption is how often, and for how long, one program kept another from a GPU.
type Preemption struct {
	At     model.Time // end of the last one
	Device model.DeviceID
	Victim loop.Identity
	By     loop.Identity // the zero value: by hand, with its group, or unknown
	Hand   bool
	Group  bool
	Yield  bool // the hardware preferred the other's timeslices; otherwise the program was suspended
	Count  uint64
	Time   time.Duration
}

// Rest sums up preemptions that were not reported one pair at a time.
type Rest struct {
	Pairs int
	Count uint64
	Time  time.Duration
}

// Bounds of the report of one period.
const (
	maxPairs       = 4096 // kept; more are only counted
	reportPairs    = 64
	reportPairsOne = 16 // with victims of one user
)

type pairKey struct {
	victim model.SessionID
	device model.DeviceID
	by     int
	yield  bool
}

// pairs are the preemptions since the last report.
type pairs map[pairKey]*Preemption

// preempted records the end of a lane's wait or suspension.
func (h *History) preempted(l *lane, at model.Time) {
	key := pairKey{l.key.session, l.key.device, l.by, l.state == engine.ActivityWait}
	p := h.pairs[key]
	if p == nil {
		if len(h.pairs) >= maxPairs {
			key = pairKey{}
			p = h.pairs[key]
		}
		if p == nil {
			p = &Preemption{Device: key.device, Victim: l.who, Hand: key.by == engine.ByHand, Group: key.by == engine.ByGroup, Yield: key.yield}
			if key.by > 0 {
				p.By = loop.Identity{PID: l.by, LocalPID: l.by, User: identity.Nobody}
				if who, ok := h.byPID[l.by]; ok {
					p.By = who
				}
			}
			h.pairs[key] = p
		}
	}
	p.At = at
	p.Count++
	p.Time += at.Sub(l.since)
}

// Preemptions returns the preemptions since the last call, the longest ones first, and the sum of those
// beyond the bounds. One user's programs can't displace the others'.
func (h *History) Preemptions() (out []Preemption, rest Rest) {
	h.mu.Lock()
	all := make([]Preemption, 0, len(h.pairs))
	for key, p := range h.pairs {
		if key == (pairKey{}) {
			rest.add(p)
			continue
		}
		all = append(all, *p)
	}
	clear(h.pairs)
	h.mu.Unlock()
	slices.SortFunc(all, func(a, b Preemption) int {
		return cmp.Or(cmp.Compare(b.Time, a.Time), cmp.Compare(a.Victim.ID, b.Victim.ID), cmp.Compare(a.By.ID, b.By.ID))
	})
	users := map[identity.User]int{}
	for i := range all {
		user := all[i].Victim.User.Account()
		if len(out) >= reportPairs || users[user] >= reportPairsOne {
			rest.add(&all[i])
			continue
		}
		users[user]++
		out = append(out, all[i])
	}
	slices.SortStableFunc(out, func(a, b Preemption) int { return cmp.Compare(a.At, b.At) })
	return out, rest
}

func (r *Rest) add(p *Preemption) {
	r.Pairs++
	r.Count += p.Count
	r.Time += p.Time
}
