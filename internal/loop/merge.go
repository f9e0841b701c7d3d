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

// This file bounds the queues of each user. A client always has one queue per GPU of its own, its
// host there. Queues beyond the user's limit are folded into the host: the engine sees one queue that
// has work while any of them has. So a user gains nothing by more queues: they lose their separate
// hints and counters, and wait for a decision at the start of each busy period. Queues beyond a second
// limit are refused: the loop keeps nothing about them and leaves their gates open. Their process
// still has its primary queue on each GPU that a driver lists, so it can't escape a suspension.
const (
	maxQueues      = 16384 // of all users, beside the hosts
	maxUserQueues  = 2048  // of one user, beside the hosts
	maxOwnerQueues = 12288 // of root and the daemon's user; the rest is for others
	maxMerged      = 4096  // merged queues of one user: four processes with all that a page has
	addsPerTick    = 64    // new queues of one client per heartbeat; the rest wait
	addsPerUser    = 256   // of one user
	openedAtOnce   = 64    // gates opened per pass: each is a system call
	beatsPerPass   = 128   // pages updated per pass
	freshenPerPass = 100 * time.Microsecond
)

// merger bounds the queues of each user.
type merger struct {
	activity *activity
	dispatch *dispatcher
	uid      int    // of the daemon
	beats    uint64 // heartbeats so far

	queueCount, folded, refusedQueues atomic.Int64
}

// newHost chooses another host on a GPU, after the last one has left.
func (c *Client) newHost(gpu model.DeviceID) {
	delete(c.hosts, gpu)
	for _, q := range c.queues {
		if q.device == gpu && q.host == nil {
			c.hosts[gpu] = q
			return
		}
	}
}

// mayAdd reports whether a client may add a queue at this time.
func (m *merger) mayAdd(c *Client) bool {
	a := c.account
	if a.addsAt != m.beats {
		a.addsAt, a.adds = m.beats, 0
	}
	if c.adds >= addsPerTick || a.adds >= addsPerUser {
		c.waiting = true
		return false
	}
	c.adds++
	a.adds++
	return true
}

// mayHave reports whether a client may have another queue on a GPU, with host as its primary queue.
func (m *merger) mayHave(c *Client, gpu model.DeviceID, host *queue) bool {
	switch {
	case host != nil:
		return c.account.merged < maxMerged
	case c.onGPU[gpu] > 0:
		return true // within the user's limit
	case len(c.onGPU) >= maxGPUs:
		return false
	}
	// A process that uses a GPU always has a queue there.
	claim := c.claim(gpu)
	return claim == driver.ClaimVerified || claim == driver.ClaimTrusted || c.account.queues < m.maxQueuesOf(c)
}

// refuse counts the queues of a client that the last scan refused.
func (m *merger) refuse(c *Client, n int) {
	if n != c.refused {
		m.refusedQueues.Add(int64(n - c.refused))
		c.refused = n
		c.touch()
	}
}

func (m *merger) maxQueuesOf(c *Client) int {
	if c.User.Root() || c.User == identity.OnHost(m.uid) {
		return maxOwnerQueues
	}
	return maxUserQueues
}

// hostFor returns the queue into which a new one is folded; nil: it gets a place of its own.
func (m *merger) hostFor(c *Client, gpu model.DeviceID) *queue {
	if c.onGPU[gpu] == 0 || c.account.queues < m.maxQueuesOf(c) && m.queueCount.Load() < maxQueues {
		return nil
	}
	return c.hosts[gpu]
}

// add adds a queue to a host.
func (m *merger) add(now model.Time, c *Client, host, q *queue) {
	q.owner, q.host = c, host
	q.place, host.folded = len(host.folded), append(host.folded, q)
	host.merged++
	c.queues[q.id.Index] = q
	c.touch()
	m.folded.Add(1)
	c.account.merged++
	if q.busy {
		host.foldedBusy++
		m.syncHost(now, c, host)
	}
	m.dispatch.applyMerged(c, q)
}

// remove removes a folded queue.
func (m *merger) remove(now model.Time, c *Client, q *queue) {
	host := q.host
	last := len(host.folded) - 1
	host.folded[q.place] = host.folded[last]
	host.folded[q.place].place = q.place
	host.folded[last] = nil
	host.folded = host.folded[:last]
	host.merged--
	_ = q.gate.Close()
	c.requests.Leave(&q.period)
	delete(c.queues, q.id.Index)
	c.touch()
	m.folded.Add(-1)
	c.account.merged--
	if q.busy {
		host.foldedBusy--
		m.syncHost(now, c, host)
	}
}

// dissolve removes what is folded into a host that ends. The next scan adds those queues again.
func (m *merger) dissolve(now model.Time, c *Client, host *queue) {
	for len(host.folded) > 0 {
		q := host.folded[len(host.folded)-1]
		q.busy, host.foldedBusy = false, 0
		m.remove(now, c, q)
		c.waiting = true
	}
}

// follow updates a folded queue from its page slot.
func (m *merger) follow(now model.Time, c *Client, q *queue, v *wire.QueueView) {
	if v.Submitted > q.submitted {
		q.host.mergedSubmitted += v.Submitted - q.submitted
		c.touch()
	}
	q.submitted, q.transitions = v.Submitted, v.Transitions
	if v.Busy() == q.busy {
		return
	}
	c.touch()
	if q.busy = v.Busy(); q.busy {
		q.host.foldedBusy++
	} else {
		q.host.foldedBusy--
	}
	m.syncHost(now, c, q.host)
	m.dispatch.applyMerged(c, q)
}

// syncHost marks a host busy or idle.
func (m *merger) syncHost(now model.Time, c *Client, host *queue) {
	if busy := host.own || host.foldedBusy > 0; busy != host.busy {
		m.activity.setBusy(now, c, host, busy, feed{})
	}
}
