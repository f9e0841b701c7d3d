// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"os/user"
	"strconv"
	"sync"
	"time"

	"xsched/internal/control"
	"xsched/internal/driver"
	"xsched/internal/identity"
	"xsched/internal/loop"
)

// This file computes the figures of a process for operators.

// stateOf combines the states of a process's queues: one that runs counts most.
func stateOf(p *control.Process) string {
	if p.Held || p.GroupHeld {
		return control.StateHeld
	}
	for i := range p.Memory {
		if p.Memory[i].Residency != control.MemoryResident {
			return control.StateAway
		}
	}
	best := control.StateIdle
	for _, q := range p.Queues {
		switch {
		case q.State == "running":
			return control.StateRunning
		case q.State == "suspended":
			best = control.StatePreempted
		case q.State == "yielding" && best == control.StateIdle:
			best = control.StateWaiting
		}
	}
	return best
}

// Busy periods describe the requests of a program that is idle in between. A training job may have one
// busy period for hours.
const (
	fewestPeriods = 5 // that ended recently
	longestPeriod = 10 * time.Second
)

// latency returns the durations of a process's requests, nil if there are none.
func latency(s *loop.ClientView, v *loop.LatencyView) *control.Latency {
	if v == nil {
		return nil
	}
	l := &control.Latency{Source: control.SourceBusy, Requests: v.Requests, OpenNS: s.Open.Nanoseconds()}
	if v.Marked {
		l.Source = control.SourceMarked
	}
	l.Total, l.Wait, l.Own = durations(&v.Total), durations(&v.Wait), durations(&v.Own)
	switch {
	case v.Marked:
	case s.Open > longestPeriod:
		l.Uncertain = control.UncertainBusy
	case l.Total.Recent < fewestPeriods:
		l.Uncertain = control.UncertainFew
	}
	return l
}

// durations describes all requests, with the quantiles and the maximum of the recent ones.
func durations(d *loop.Durations) control.Histogram {
	recent, all := histogram(d.Recent), histogram(d.Ever)
	all.P50US, all.P90US, all.P99US, all.MaxUS = recent.P50US, recent.P90US, recent.P99US, recent.MaxUS
	all.Recent = recent.Count
	return all
}

// serviceLevel returns how a process meets its latency target, nil if it has none.
func serviceLevel(s *loop.ClientView, v *loop.LatencyView) *control.SLO {
	target := s.Hint.SLO
	if !target.Said() {
		return nil
	}
	out := &control.SLO{TargetUS: target.Latency.Microseconds(), Objective: target.P() / 100, Attainment: 1, BudgetLeft: 1}
	if v == nil {
		return out
	}
	out.Met, out.Missed = v.Met, v.Missed
	met, missed := v.RecentMet, v.RecentMissed
	if s.Open > target.Latency {
		missed++ // in progress, and too late already
	}
	if all := met + missed; all > 0 {
		out.Attainment = float64(met) / float64(all)
		out.BudgetLeft = 1 - (1-out.Attainment)/(1-out.Objective)
	}
	return out
}

func histogram(h *driver.Histogram) control.Histogram {
	n, at, top := h.Quantiles(0.5, 0.9, 0.99)
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	out := control.Histogram{Count: n, P50US: us(at[0]), P90US: us(at[1]), P99US: us(at[2]), MaxUS: us(top)}
	if n == 0 {
		return out
	}
	cumulative, sum := h.Cumulative(histogramBounds())
	out.Cumulative, out.SumUS = cumulative, us(sum)
	// Durations are added concurrently; the larger count is consistent with the buckets.
	out.Count = max(n, cumulative[len(cumulative)-1])
	return out
}

var histogramBounds = sync.OnceValue(func() (bounds []time.Duration) {
	for _, b := range control.HistogramBoundsUS() {
		bounds = append(bounds, time.Duration(b*float64(time.Microsecond)))
	}
	return bounds
})

// userNames finds login names and primary groups. The results are kept for a while, because readers are
// frequent.
type userNames struct {
	mu    sync.Mutex
	names map[int]userName
	until time.Time
}

type userName struct{ login, group string }

const (
	namesKept = 5 * time.Minute
	namesMost = 1024
)

// of returns the login name of a user of the host, else the digits.
func (n *userNames) of(u identity.User) string {
	if !u.Host() || u.UID < 0 {
		return strconv.Itoa(u.UID) // names in a container are its own
	}
	login, _ := n.find(u.UID)
	return login
}

// find returns the login name and the primary group of a uid of the host; without them the digits, and none.
func (n *userNames) find(uid int) (login, group string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now := time.Now(); now.After(n.until) || len(n.names) >= namesMost {
		n.names, n.until = map[int]userName{}, now.Add(namesKept)
	}
	name, known := n.names[uid]
	if !known {
		name.login, name.group = strconv.Itoa(uid), "unknown"
		if found, err := user.LookupId(name.login); err == nil && found.Username != "" {
			name = userName{found.Username, found.Gid}
			if g, err := user.LookupGroupId(found.Gid); err == nil && g.Name != "" {
				name.group = g.Name
			}
		}
		n.names[uid] = name
	}
	return name.login, name.group
}
