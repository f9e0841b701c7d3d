// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"time"
)

// Machine is a node's part of one group.
type Machine struct {
	Config
	node string

	need     bool
	priority int32

	record Record
	known  bool  // a record, or that there is none, was seen
	seenAt int64 // monotonic; first sight of this version
	asks   []seen

	writing  bool
	base     string // version that the write replaces
	triedAt  int64  // monotonic; the last attempt to write
	tried    bool
	lost     bool     // the last attempt failed
	wrote    int64    // wall clock of an own write that the watch has not shown; 0: none
	latency  [8]int64 // of the last own writes, until the watch showed them
	measured int

	stats Stats
}

// Stats count what happened to a group on this node.
type Stats struct {
	Writes, Failures uint64
	// Late counts asks that were first seen after their effect was due, and LateNS the worst delay.
	Late   uint64
	LateNS int64
	// Ahead counts asks that were written by a clock ahead of this node's, and AheadNS the worst offset.
	Ahead   uint64
	AheadNS int64
}

// New returns the machine of a group.
func New(c Config, node string) *Machine { return &Machine{Config: c, node: node} }

// Stats returns the counts so far.
func (m *Machine) Stats() Stats { return m.stats }

// Need says whether ranks on this node are kept from running, and the highest priority among them.
func (m *Machine) Need(need bool, priority int32) { m.need, m.priority = need, priority }

// maxAhead is how far ahead of this node's clock an ask may have been written. Asks beyond it are ignored.
const maxAhead = 5 * time.Second

// seen is an ask with its times by this node's monotonic clock.
type seen struct {
	Ask
	Hold
}

// Observe takes a record that the watch shows. A version that was seen before changes nothing.
func (m *Machine) Observe(now Moment, r Record) {
	if a, ok := r.live(m.node, 0); ok && m.wrote != 0 && a.Wrote == m.wrote {
		m.latency[m.measured%len(m.latency)] = now.Mono - m.triedAt
		m.measured++
		m.wrote = 0
	}
	m.adopt(now, r)
}

func (m *Machine) adopt(now Moment, r Record) {
	if m.known && r.Version == m.record.Version {
		return
	}
	old := m.asks
	m.record, m.known, m.seenAt, m.asks = Record{Version: r.Version, Since: min(r.Since, now.Wall+int64(m.MaxLead))}, true, now.Mono, nil
	for _, a := range r.Asks[:min(len(r.Asks), maxAsks)] {
		if a.Node == Operator {
			a.Until = min(a.Until, a.Wrote+int64(MaxSuspension+m.MaxLead))
		}
		at := slices.IndexFunc(old, func(o seen) bool { return o.Node == a.Node })
		if at >= 0 && old[at].Ask == a { // keep its times: this clock may have been set in between
			m.record.Asks, m.asks = append(m.record.Asks, a), append(m.asks, old[at])
			continue
		}
		if ahead := a.Wrote - now.Wall; ahead > 0 {
			m.stats.Ahead++
			m.stats.AheadNS = max(m.stats.AheadNS, ahead)
			if ahead > int64(maxAhead) {
				continue
			}
		}
		m.record.Asks = append(m.record.Asks, a)
		one := seen{a, m.holdOf(now, a)}
		m.asks = append(m.asks, one)
		if late := now.Mono - one.Hold.From; late > 0 && one.lasts(now) && (at < 0 || old[at].Ask.From != a.From) {
			m.stats.Late++
			m.stats.LateNS = max(m.stats.LateNS, late)
		}
	}
}

// holdOf converts an ask to this node's monotonic clock. It never lasts longer than its author had asked
// for when it wrote it, counted from now, so that a clock far ahead does not extend it.
func (m *Machine) holdOf(now Moment, a Ask) Hold {
	until, lasts := a.Until, a.Until-a.Wrote
	if a.Node != Operator {
		until = min(until, m.record.Since+int64(m.MaxHold))
		lasts = min(lasts, int64(m.TTL+m.MaxLead))
	}
	return Hold{
		Priority: a.Priority, From: now.Mono + (a.From - now.Wall), Until: now.Mono + min(until-now.Wall, lasts),
	}
}

// lasts reports whether a hold has not ended, and ever begins.
func (h *Hold) lasts(now Moment) bool { return h.Until > now.Mono && h.Until > h.From }

// lead is the time that this node leaves others to learn of a decision: twice the slowest of its own last
// writes, from the request until the watch showed it.
func (m *Machine) lead() time.Duration {
	slowest := slices.Max(m.latency[:])
	return min(max(m.Lead, time.Duration(2*slowest)), m.MaxLead)
}

// Holds returns the times at which this node holds its ranks, without those that have ended.
func (m *Machine) Holds(now Moment) []Hold {
	var out []Hold
	for i := range m.asks {
		if h := &m.asks[i].Hold; h.lasts(now) {
			out = append(out, *h)
		}
	}
	return merge(now, out)
}

// merge joins holds that overlap and have the same priority, and leaves out those that others cover. All
// nodes of a job may ask, and the daemon takes a limited number of holds.
func merge(now Moment, all []Hold) []Hold {
	slices.SortFunc(all, func(a, b Hold) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.From, b.From))
	})
	var out []Hold
	for _, h := range all {
		if last := len(out) - 1; last >= 0 && out[last].Priority == h.Priority && h.From <= out[last].Until {
			out[last].Until = max(out[last].Until, h.Until)
		} else if !slices.ContainsFunc(out, func(o Hold) bool { return o.Until >= h.Until && o.From <= max(h.From, now.Mono) }) {
			out = append(out, h)
		}
	}
	return out
}

// Held reports whether this node holds its ranks now.
func (m *Machine) Held(now Moment) bool {
	return slices.ContainsFunc(m.Holds(now), func(h Hold) bool { return h.From <= now.Mono })
}

// Write returns the record to write now, or the time after which to ask again; 0: not before something
// changes. After a record, Wrote must follow.
func (m *Machine) Write(now Moment) (Record, bool, time.Duration) {
	if !m.known || m.writing {
		return Record{}, false, 0
	}
	a, since, wait := m.wish(now)
	if wait != due {
		return Record{}, false, wait
	}
	free := m.seenAt + int64(m.Gap)
	if m.tried {
		free = max(free, m.triedAt+int64(m.Gap))
	}
	if _, asking := m.record.live(m.node, now.Wall); m.lost || !asking && m.record.end() > now.Wall {
		free += int64(m.jitter())
	}
	if m.record.Version != "" || m.tried {
		if wait := free - now.Mono; wait > 0 {
			return Record{}, false, time.Duration(wait)
		}
	}
	out := m.record.with(now.Wall, m.MinRun, a)
	out.Since = since
	if len(out.Asks) > maxAsks {
		return Record{}, false, m.TTL
	}
	m.writing, m.tried, m.base, m.triedAt, m.wrote = true, true, m.record.Version, now.Mono, now.Wall
	return out, true, 0
}

// due tells Write to write.
const due = -1

// wish returns the ask that this node wants to have written, and since when the group is then held. wait is
// due, or the time after which to look again, or 0.
func (m *Machine) wish(now Moment) (a Ask, since int64, wait time.Duration) {
	lead := int64(m.lead())
	mine, asking := m.record.live(m.node, now.Wall)
	end := m.record.end()
	switch {
	case !m.need && asking && mine.Until > now.Wall+lead:
		mine.Wrote, mine.Until = now.Wall, now.Wall+lead
		mine.From = min(mine.From, mine.Until)
		return mine, m.record.Since, due
	case !m.need:
		return a, 0, 0
	case asking:
		if left := mine.Until - now.Wall - int64(m.TTL)/2; left > 0 && mine.Priority >= m.priority {
			return a, 0, time.Duration(left)
		}
		mine.Priority = max(mine.Priority, m.priority)
	case end >= now.Wall+lead: // another one holds the group already
		if wait := m.covered(now); wait > 0 {
			return a, 0, wait
		}
		mine = Ask{Node: m.node, Priority: m.priority, From: now.Wall + lead}
	default:
		from := now.Wall + lead
		if rest := end + int64(m.MinRun) - from; rest > 0 {
			return a, 0, time.Duration(rest)
		}
		mine = Ask{Node: m.node, Priority: m.priority, From: from, Wrote: now.Wall, Until: now.Wall + int64(m.TTL)}
		return mine, from, due
	}
	until := min(now.Wall+int64(m.TTL), m.record.Since+int64(m.MaxHold))
	if until <= max(mine.Until, now.Wall+lead) {
		// The hold has its longest time. Look again when it is over.
		return a, 0, time.Duration(max(end-now.Wall, int64(m.Gap)))
	}
	mine.Wrote, mine.Until = now.Wall, until
	return mine, m.record.Since, due
}

// enough asks for this node's priority make another one needless. Those who asked renew theirs at half of
// the TTL.
const enough = 3

// covered returns the time for which others hold the group well enough, 0 if they do not. In a job of many
// nodes all would write the record otherwise, and most of their writes would fail.
func (m *Machine) covered(now Moment) time.Duration {
	var ends []int64
	for _, a := range m.record.Asks {
		if a.Node != m.node && a.Priority >= m.priority {
			ends = append(ends, a.Until)
		}
	}
	if len(ends) < enough {
		return 0
	}
	slices.Sort(ends)
	return time.Duration(max(0, ends[len(ends)-enough]-int64(m.TTL)/4-now.Wall))
}

// jitter is the time by which this node's next write is later than the gap. All nodes see a record at the
// same moment, and one write of it succeeds.
func (m *Machine) jitter() time.Duration {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, m.node, " ", m.record.Version, " ", m.stats.Failures)
	return time.Duration(h.Sum64() % uint64(m.Gap))
}

// Wrote takes the result of a write: the record with its new version, or why it failed. The next attempt
// is a gap later, with what is known then.
func (m *Machine) Wrote(now Moment, r Record, err error) {
	m.writing = false
	if m.lost = err != nil; m.lost {
		m.stats.Failures++
		m.wrote = 0
		return
	}
	m.stats.Writes++
	if m.known && m.record.Version == m.base {
		m.adopt(now, r)
	} // else the watch has shown it, or a later one, already
}

// Missing says that there is no record, unless one was seen in the meantime.
func (m *Machine) Missing(now Moment) {
	if !m.known {
		m.adopt(now, Record{})
	}
}
