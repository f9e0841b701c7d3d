// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
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
func (l *Loop) mayAdd(c *Client) bool {
	a := c.account
	if a.addsAt != l.beats {
		a.addsAt, a.adds = l.beats, 0
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
func (l *Loop) mayHave(c *Client, gpu model.DeviceID, host *queue) bool {
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
	return claim == driver.ClaimVerified || claim == driver.ClaimTrusted || c.account.queues < l.maxQueuesOf(c)
}

// refuse counts the queues of a client that the last scan refused.
func (l *Loop) refuse(c *Client, n int) {
	if n != c.refused {
		l.refusedQueues.Add(int64(n - c.refused))
		c.refused = n
		c.touch()
	}
}

func (l *Loop) maxQueuesOf(c *Client) int {
	if c.User.Root() || c.User == identity.OnHost(l.cfg.UID) {
		return maxOwnerQueues
	}
	return maxUserQueues
}

// hostFor returns the queue into which a new one is folded; nil: it gets a place of its own.
func (l *Loop) hostFor(c *Client, gpu model.DeviceID) *queue {
	if c.onGPU[gpu] == 0 || c.account.queues < l.maxQueuesOf(c) && l.queueCount.Load() < maxQueues {
		return nil
	}
	return c.hosts[gpu]
}

// fold adds a queue to a host.
func (l *Loop) fold(now model.Time, c *Client, host, q *queue) {
	q.owner, q.host = c, host
	q.place, host.folded = len(host.folded), append(host.folded, q)
	host.merged++
	c.queues[q.id.Index] = q
	c.touch()
	l.folded.Add(1)
	c.account.merged++
	if q.busy {
		host.foldedBusy++
		l.syncHost(now, c, host)
	}
	l.applyFolded(c, q)
}

// unfold removes a folded queue.
func (l *Loop) unfold(now model.Time, c *Client, q *queue) {
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
	l.folded.Add(-1)
	c.account.merged--
	if q.busy {
		host.foldedBusy--
		l.syncHost(now, c, host)
	}
}

// dissolve removes what is folded into a host that ends. The next scan adds those queues again.
func (l *Loop) dissolve(now model.Time, c *Client, host *queue) {
	for len(host.folded) > 0 {
		q := host.folded[len(host.folded)-1]
		q.busy, host.foldedBusy = false, 0
		l.unfold(now, c, q)
		c.waiting = true
	}
}

// followFolded updates a folded queue from its page slot.
func (l *Loop) followFolded(now model.Time, c *Client, q *queue, v *wire.QueueView) {
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
	l.syncHost(now, c, q.host)
	l.applyFolded(c, q)
}

// syncHost marks a host busy or idle.
func (l *Loop) syncHost(now model.Time, c *Client, host *queue) {
	if busy := host.own || host.foldedBusy > 0; busy != host.busy {
		l.setBusy(now, c, host, busy, feed{})
	}
}

// applyFolded sets the gate of a folded queue: that of the host while it has work. An idle one is
// held where the gate preempts it, so that its next launch waits until the loop knows about it.
func (l *Loop) applyFolded(c *Client, q *queue) {
	want := l.gateState(c, q.host)
	cfg := l.engine.Config()
	if on := cfg.On(q.device); !q.busy && q.host.level == model.LevelBlock && on.Suspends() && !l.stopping && c.off[q.device] == "" {
		want.Suspend = model.LevelBlock
	}
	_ = q.gate.Apply(context.Background(), want)
}

// setGate applies a queue's desired state to its gate. Opening wakes the program by a system call, so
// a pass opens only some gates; the next ones open the others.
func (l *Loop) setGate(c *Client, q *queue) {
	want := l.gateState(c, q)
	if want.Suspend != model.LevelBlock && q.gate.Held() {
		if l.opened >= openedAtOnce {
			l.openLater(q)
			return
		}
		l.opened++
	}
	_ = q.gate.Apply(context.Background(), want)
	for _, f := range q.folded {
		if f.busy {
			l.setFoldedGate(c, f)
		}
	}
}

func (l *Loop) setFoldedGate(c *Client, f *queue) {
	if l.opened >= openedAtOnce {
		l.openLater(f)
		return
	}
	if f.gate.Held() {
		l.opened++
	}
	l.applyFolded(c, f)
}

func (l *Loop) openLater(q *queue) {
	if !q.late {
		q.late = true
		l.lateGates = append(l.lateGates, q)
	}
}

// openLate opens gates that earlier passes left.
func (l *Loop) openLate() {
	l.opened = 0
	if len(l.lateGates) == 0 {
		return
	}
	late := l.lateGates
	l.lateGates = nil
	for _, q := range late {
		q.late = false
		if c := q.owner; c.queues[q.id.Index] != q {
			continue // its gate was opened when it left
		} else if q.host != nil {
			l.setFoldedGate(c, q)
		} else {
			l.setGate(c, q)
		}
	}
}
