// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"time"

	"xsched/internal/identity"
	"xsched/internal/model"
)

// This file estimates when attached and bare clients have work. CPU time is the only evidence. A
// program that sleeps until its kernel ends uses none while it is suspended. Treating it as busy
// would give an idle program every second turn; treating it as idle would starve one with a long
// kernel. So its last observed state counts, and a program that looks idle gets a short probing
// turn from time to time.

const (
	// idleAfter is how long a program must be able to run without using CPU time before it counts
	// as idle. Time during which it is suspended does not count.
	idleAfter = time.Second
	// probeTime is the length of a probing turn, and firstPause the time until the first one. Each
	// unsuccessful probe doubles the pause, up to the starvation bound, or longestPause without one.
	probeTime    = 50 * time.Millisecond
	firstPause   = 50 * time.Millisecond
	longestPause = 2 * time.Second
)

// guess is the estimated state of a queue.
type guess struct {
	idle    bool          // used no CPU time while it could run
	waits   bool          // idle, but counts as busy to get a probing turn
	stopped bool          // suspended
	ran     time.Duration // runnable time since it last worked or began to wait
	counted model.Time    // end of the time included in ran
	pause   time.Duration // before the last unsuccessful probe
	retry   model.Time    // start of the next probe while it is suspended or kept
	since   model.Time    // last time that it worked or began to wait
	starved bool          // made no progress between since and the last observation
}

// standing is the engine's view of a queue. Beside a suspension, tiny timeslices and a
// latency-critical queue with short gaps keep a queue from making progress.
type standing struct {
	kept    bool // the queue cannot make progress now
	starved bool // it waits, and has made no progress since it last worked or began to wait
}

// guessTimes are the limits that depend on the configuration.
type guessTimes struct{ probe, pause time.Duration }

func (l *Loop) guessTimes() guessTimes {
	cfg := l.engine.Config()
	t := guessTimes{probe: min(probeTime, cfg.Quantum), pause: cfg.StarvationBound}
	if t.pause == 0 {
		t.pause = longestPause
	}
	return t
}

func (g *guess) busy() bool { return !g.idle || g.waits }

func (g *guess) count(now model.Time) {
	if !g.stopped {
		g.ran += now.Sub(g.counted)
	}
	g.counted = now
}

// observe updates the estimate: worked reports whether the program used CPU time since the last
// observation.
func (g *guess) observe(now model.Time, worked bool, at standing, t guessTimes) {
	g.count(now)
	if g.starved {
		g.ran = 0 // a turn since the last observation did not last all that time
	}
	g.starved = at.starved && !g.stopped
	switch {
	case worked:
		*g = guess{stopped: g.stopped, counted: now, since: now}
	case !g.idle:
		if g.idle = g.ran >= idleAfter && !at.starved; g.idle && g.stopped {
			g.backOff(now, t)
		}
	case g.waits:
		if g.waits = g.stopped || at.starved || g.ran < t.probe; !g.waits && at.kept {
			g.backOff(now, t) // it keeps its small share of the GPU
		}
	case (g.stopped || at.kept) && now >= g.retry:
		g.waits, g.ran, g.since = true, 0, now
	}
}

// stop ends a turn. A probe that was cut short continues with the next turn, and so does one in
// which the queue made no progress.
func (g *guess) stop(now model.Time, starved bool, t guessTimes) {
	g.count(now)
	g.stopped, g.starved = true, false
	if g.idle && g.ran >= t.probe && !starved {
		g.backOff(now, t)
	}
}

func (g *guess) resume(now model.Time) {
	g.count(now)
	g.stopped = false
}

func (g *guess) backOff(now model.Time, t guessTimes) {
	g.waits, g.ran = false, 0
	g.pause = min(max(2*g.pause, firstPause), t.pause)
	g.retry = now.Add(g.pause)
}

// Observe reports whether a program of a user used CPU time since the last call, or returns ErrBusy.
// The caller observes each program about every 50 ms.
func (l *Loop) Observe(user identity.User, id model.SessionID, worked bool) error {
	return l.offer(user, func() {
		c := l.clients[id]
		if c == nil {
			return
		}
		now, times := l.now(), l.guessTimes()
		for _, q := range c.queues {
			if q.guessed() {
				q.guess.observe(now, worked, standing{l.engine.Kept(q.id), l.engine.WaitsSince(q.id, q.guess.since)}, times)
				l.applyGuess(now, c, q)
			}
		}
		l.updateWorkers(c)
	})
}

// guessChange is an estimated queue that a decision suspends or resumes.
type guessChange struct {
	client *Client
	queue  *queue
	stop   bool
}

// applyGuessChanges reports to the engine how a decision changes estimated queues. It runs after
// applyDecision, which must not re-enter the engine.
func (l *Loop) applyGuessChanges(now model.Time) {
	for i, g := range l.guesses {
		l.guesses[i] = guessChange{}
		q := g.queue
		if g.client.queues[q.id.Index] != q {
			continue
		}
		if g.stop {
			q.guess.stop(now, l.engine.WaitsSince(q.id, q.guess.since), l.guessTimes())
		} else {
			q.guess.resume(now)
		}
		l.applyGuess(now, g.client, q)
		l.accountSuspension(now, g.client, q, !g.stop)
		l.updateWorkers(g.client)
	}
	l.guesses = l.guesses[:0]
}

// applyGuess reports the estimated state of a queue to the engine; the caller updates the workers.
func (l *Loop) applyGuess(now model.Time, c *Client, q *queue) {
	if q.guess.busy() == q.busy {
		return
	}
	q.transitions++ // setBusy marks the client as changed
	l.setBusy(now, c, q, !q.busy, feed{})
	if q.busy && q.guess.stopped {
		q.suspendedAt = now
	}
}
