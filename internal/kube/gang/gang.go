// SPDX-License-Identifier: Apache-2.0

// Package gang decides when the ranks of a job that spans nodes are suspended together. It has no clock
// and no network: a Machine gets moments and records, and says what to write and what to hold.
//
// A record lists the asks of nodes and operators. An ask suspends the group from one moment of the wall
// clock until another, and a group is held while any ask says so. Nobody has to answer for a hold to end:
// each node resumes its ranks when the last ask ends by its own clock.
package gang

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Config has the times of the protocol. All nodes of a cluster should have the same.
type Config struct {
	// Lead is the shortest time between a decision and its effect, in which all nodes learn of it.
	// A node that has measured a slower API server uses more, up to MaxLead.
	Lead, MaxLead time.Duration
	// TTL is the time for which a node asks at once. It renews its ask while it needs it.
	TTL time.Duration
	// MaxHold bounds a hold by nodes, and MinRun is the time that the group then runs at least.
	MaxHold, MinRun time.Duration
	// Gap is the shortest time between two writes of a group's record, of all nodes together.
	Gap time.Duration
}

// Default returns the times for a cluster.
func Default() Config {
	return Config{
		Lead: 150 * time.Millisecond, MaxLead: time.Second, TTL: 4 * time.Second,
		MaxHold: 30 * time.Second, MinRun: time.Second, Gap: 250 * time.Millisecond,
	}
}

// Operator is the asker of `kubectl xsched suspend`. No node has this name: it is not a DNS name.
const Operator = "operator!"

// AllPriorities is the priority of an ask for the whole group.
const AllPriorities = math.MaxInt32

// MaxSuspension bounds a suspension by the operator. Nobody may remember it.
const MaxSuspension = 24 * time.Hour

// maxAsks bounds a record. Nodes beyond it do not ask.
const maxAsks = 64

// Moment is a time on a node: by its wall clock, which others read, and by its monotonic clock.
type Moment struct{ Wall, Mono int64 }

// After returns a later moment.
func (m Moment) After(d time.Duration) Moment {
	return Moment{m.Wall + int64(d), m.Mono + int64(d)}
}

// Ask asks to suspend the ranks of a group. Times are nanoseconds of the asker's wall clock.
type Ask struct {
	Node string `json:"node"`
	// Priority spares ranks with a higher one: a batch rank does not stop the service that preempts it.
	Priority int32 `json:"priority"`
	Wrote    int64 `json:"wrote"`
	From     int64 `json:"from"`
	Until    int64 `json:"until"`
}

// Record is what the API server keeps of a group.
type Record struct {
	Version string `json:"-"` // for a conditional write; empty: there is no record
	// Since is when the present hold began, or the last one.
	Since int64 `json:"since"`
	Asks  []Ask `json:"asks"`
}

// end returns when the last ask ends, 0 if there is none.
func (r *Record) end() int64 {
	end := int64(0)
	for i := range r.Asks {
		end = max(end, r.Asks[i].Until)
	}
	return end
}

// with returns the record with an ask replaced. Asks that ended longer ago than keep are left out.
func (r *Record) with(now int64, keep time.Duration, a Ask) Record {
	out := Record{Version: r.Version, Since: r.Since}
	for _, o := range r.Asks {
		if o.Node != a.Node && o.Until > now-int64(keep) {
			out.Asks = append(out.Asks, o)
		}
	}
	out.Asks = append(out.Asks, a)
	slices.SortFunc(out.Asks, func(a, b Ask) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

// live returns the ask of a node that has not ended.
func (r *Record) live(node string, now int64) (Ask, bool) {
	for _, a := range r.Asks {
		if a.Node == node && a.Until > now {
			return a, true
		}
	}
	return Ask{}, false
}

// Suspend returns a record in which the operator suspends a whole group.
func (c Config) Suspend(r Record, now int64, d time.Duration) Record {
	a, ok := r.live(Operator, now)
	if !ok {
		a = Ask{Node: Operator, From: now + int64(c.Lead)}
	}
	if a.Priority = AllPriorities; r.end() <= now {
		r.Since = a.From
	}
	a.Wrote, a.Until = now, now+int64(c.Lead)+int64(d)
	return r.with(now, c.MinRun, a)
}

// Resume returns a record in which all asks end together. A node that still needs one may ask again after
// MinRun.
func (c Config) Resume(r Record, now int64) Record {
	at := now + int64(c.Lead)
	r.Asks = slices.Clone(r.Asks)
	for i := range r.Asks {
		a := &r.Asks[i]
		if a.Until > at {
			a.Wrote, a.Until = now, at
			a.From = min(a.From, at)
		}
	}
	return r
}

// Hold is a time during which a node holds its ranks, by its monotonic clock.
type Hold struct {
	Priority    int32
	From, Until int64
}
