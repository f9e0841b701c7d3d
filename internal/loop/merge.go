// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"sync/atomic"
	"time"

	"xsched/internal/driver"
	"xsched/internal/identity"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// Limits of queues and of the work of one pass.
const (
	maxQueues      = 16384 // of all users, besides primary queues
	maxUserQueues  = 2048  // of one user, besides primary queues
	maxOwnerQueues = 12288 // of root and the daemon's user; the rest is for others
	maxMerged      = 4096  // merged queues of one user: four processes with all that a page has
	addsPerTick    = 64    // new queues of one client per heartbeat; the rest wait
	addsPerUser    = 256   // of one user
	openedAtOnce   = 64    // gates opened per pass: each is a system call
	beatsPerPass   = 128   // pages updated per pass
	hintsPerPass   = 100 * time.Microsecond
)

// merger bounds the queues of each user. A client always has one queue per GPU of its own, its primary
// queue there. Queues beyond the user's limit are merged with it: the engine sees one queue that has
// work while any of them has. So a user gains nothing by more queues: they lose their separate hints
// and counters, and wait for a decision at the start of each busy period. Queues beyond a second limit
// are refused: the loop keeps nothing about them and leaves their gates open. Their process still has
// its primary queue on each GPU that a driver lists, so it can't escape a suspension.
type merger struct {
	activity *activity
	dispatch *dispatcher
	uid      int    // of the daemon
	beats    uint64 // heartbeats so far

	queues, merged, refused atomic.Int64
}

// mayAdd reports whether a client may add a queue at this time.
func (m *merger) mayAdd(c *Client) bool {
	a := c.account
	if a.addsAt != m.beats {
		a.addsAt, a.adds = m.beats, 0
	}
	if c.merge.adds >= addsPerTick || a.adds >= addsPerUser {
		c.merge.waiting = true
		return false
	}
	c.merge.adds++
	a.adds++
	return true
}

// mayHave reports whether a client may have another queue on a GPU, to be merged with primary unless that is nil.
func (m *merger) mayHave(c *Client, gpu model.DeviceID, primary *queue) bool {
	switch {
	case primary != nil:
		return c.account.merged < maxMerged
	case c.counts.queues[gpu] > 0:
		return true // within the user's limit
	case len(c.counts.queues) >= maxGPUs:
		return false
	}
	// A process that uses a GPU always has a queue there.
	claim := c.claim(gpu)
	return claim == driver.ClaimVerified || claim == driver.ClaimTrusted || c.account.queues < m.maxQueuesOf(c)
}

// refuse counts the queues of a client that the last scan refused.
func (m *merger) refuse(c *Client, n int) {
	if n != c.merge.refused {
		m.refused.Add(int64(n - c.merge.refused))
		c.merge.refused = n
		c.touch()
	}
}

func (m *merger) maxQueuesOf(c *Client) int {
	if c.User.Root() || c.User == identity.OnHost(m.uid) {
		return maxOwnerQueues
	}
	return maxUserQueues
}

// primaryFor returns the queue with which a new one is merged; nil: it gets a place of its own.
func (m *merger) primaryFor(c *Client, gpu model.DeviceID) *queue {
	if c.counts.queues[gpu] == 0 || c.account.queues < m.maxQueuesOf(c) && m.queues.Load() < maxQueues {
		return nil
	}
	return c.merge.primaries[gpu]
}

// add merges a queue with a primary one.
func (m *merger) add(now model.Time, c *Client, primary, q *queue) {
	q.owner, q.merge.primary = c, primary
	q.merge.place, primary.merge.members = len(primary.merge.members), append(primary.merge.members, q)
	primary.merge.count++
	c.queues[q.id.Index] = q
	c.touch()
	m.merged.Add(1)
	c.account.merged++
	if q.busy {
		primary.merge.busy++
		m.syncPrimary(now, c, primary)
	}
	m.dispatch.applyGate(q)
}

// remove removes a merged queue.
func (m *merger) remove(now model.Time, c *Client, q *queue) {
	primary := q.merge.primary
	last := len(primary.merge.members) - 1
	primary.merge.members[q.merge.place] = primary.merge.members[last]
	primary.merge.members[q.merge.place].merge.place = q.merge.place
	primary.merge.members[last] = nil
	primary.merge.members = primary.merge.members[:last]
	primary.merge.count--
	_ = q.gate.Close()
	c.requests.Leave(&q.period)
	delete(c.queues, q.id.Index)
	c.touch()
	m.merged.Add(-1)
	c.account.merged--
	if q.busy {
		primary.merge.busy--
		m.syncPrimary(now, c, primary)
	}
}

// dissolve removes what is merged with a primary queue that ends. The next scan adds those queues again.
func (m *merger) dissolve(now model.Time, c *Client, primary *queue) {
	for len(primary.merge.members) > 0 {
		q := primary.merge.members[len(primary.merge.members)-1]
		q.busy, primary.merge.busy = false, 0
		m.remove(now, c, q)
		c.merge.waiting = true
	}
}

// follow updates a merged queue from its page slot.
func (m *merger) follow(now model.Time, c *Client, q *queue, v *wire.QueueView) {
	if v.Submitted > q.seen.submitted {
		q.merge.primary.merge.submitted += v.Submitted - q.seen.submitted
		c.touch()
	}
	q.seen.submitted, q.seen.transitions = v.Submitted, v.Transitions
	if v.Busy() == q.busy {
		return
	}
	c.touch()
	if q.busy = v.Busy(); q.busy {
		q.merge.primary.merge.busy++
	} else {
		q.merge.primary.merge.busy--
	}
	m.syncPrimary(now, c, q.merge.primary)
	m.dispatch.applyGate(q)
}

// syncPrimary marks a primary queue busy or idle.
func (m *merger) syncPrimary(now model.Time, c *Client, primary *queue) {
	if busy := primary.merge.own || primary.merge.busy > 0; busy != primary.busy {
		m.activity.setBusy(now, c, primary, busy, submission{})
	}
}
