// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"time"

	"xsched/internal/model"
)

// This file estimates when programs without hooks have work: attached ones, and those of bare.go.
// CPU time is the only evidence. A program that sleeps until its kernel ends shows none while it is
// suspended. Counting it as busy would give an idle program every second turn; counting it as idle
// would starve one with a long kernel. So its last observed state counts, and a program that looks
// idle gets a short probing turn now and then.

const (
	// idleAfter is how long a program must have been able to run without using CPU time to be
	// taken for idle. Time in which it is stopped does not count.
	idleAfter = time.Second
	// showTime is how long a turn in which it can show that it has work may be, and firstPause the
	// time until the first of them. Each one in vain doubles the pause, up to the
	// starvation bound, or longestPause where there is none.
	showTime     = 50 * time.Millisecond
	firstPause   = 50 * time.Millisecond
	longestPause = 2 * time.Second
)

// guess is the estimated state of a queue.
type guess struct {
	idle    bool          // it showed no work when it could have
	waits   bool          // it counts as waiting all the same, for a turn to show some
	stopped bool          // it can't run
	ran     time.Duration // how long it could, since it last worked or began to wait
	counted model.Time    // up to when ran is counted
	pause   time.Duration // before the last turn in vain
	retry   model.Time    // when it waits again, while it is stopped or kept
	since   model.Time    // when it last worked or began to wait
	starved bool          // from then till the last look
}

// standing is what the engine knows of a queue: not only a stop keeps it from the GPU, slices do as well, and a high
// that comes back too soon.
type standing struct {
	kept    bool // it would get nothing done now
	starved bool // it waits, and got nothing done since it last worked or began to wait
}

// guessTimes depend on the configuration.
type guessTimes struct{ show, pause time.Duration }

func (l *Loop) guessTimes() guessTimes {
	cfg := l.engine.Config()
	t := guessTimes{show: min(showTime, cfg.Quantum), pause: cfg.StarvationBound}
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

// look takes over whether the program has worked since the last look.
func (g *guess) look(now model.Time, worked bool, at standing, t guessTimes) {
	g.count(now)
	if g.starved {
		g.ran = 0 // if it had its turn since the last look, then not for all of that time
	}
	g.starved = at.starved && !g.stopped
	switch {
	case worked:
		*g = guess{stopped: g.stopped, counted: now, since: now}
	case !g.idle:
		if g.idle = g.ran >= idleAfter && !at.starved; g.idle && g.stopped {
			g.rest(now, t)
		}
	case g.waits:
		if g.waits = g.stopped || at.starved || g.ran < t.show; !g.waits && at.kept {
			g.rest(now, t) // it is not stopped for that
		}
	case (g.stopped || at.kept) && now >= g.retry:
		g.waits, g.ran, g.since = true, 0, now
	}
}

// stop is the end of a turn. One that was too short to show anything goes on later, and many that were too short
// to get anything done are none.
func (g *guess) stop(now model.Time, starved bool, t guessTimes) {
	g.count(now)
	g.stopped, g.starved = true, false
	if g.idle && g.ran >= t.show && !starved {
		g.rest(now, t)
	}
}

func (g *guess) resume(now model.Time) {
	g.count(now)
	g.stopped = false
}

func (g *guess) rest(now model.Time, t guessTimes) {
	g.waits, g.ran = false, 0
	g.pause = min(max(2*g.pause, firstPause), t.pause)
	g.retry = now.Add(g.pause)
}

// Observe says whether a program used CPU time since the last call, of which there shall
// be one every 50 ms or so.
func (l *Loop) Observe(ctx context.Context, id model.SessionID, worked bool) error {
	return l.post(ctx, func() {
		c := l.clients[id]
		if c == nil {
			return
		}
		now, times := l.now(), l.guessTimes()
		for _, q := range c.queues {
			if q.guessed() {
				q.guess.look(now, worked, standing{l.engine.Kept(q.id), l.engine.WaitsSince(q.id, q.guess.since)}, times)
				l.takeGuess(now, c, q)
			}
		}
		l.settle(c)
	})
}

// guessChange is a queue that a decision suspends or resumes, and whose work is a guess.
type guessChange struct {
	session *Client
	queue   *queue
	stop    bool
}

// guessStops tells the engine what a decision changes about guessed queues. It
// runs after the decision was carried out, which must not re-enter the engine.
func (l *Loop) guessStops(now model.Time) {
	for i, g := range l.guesses {
		l.guesses[i] = guessChange{}
		q := g.queue
		if g.session.queues[q.id.Index] != q {
			continue
		}
		if g.stop {
			q.guess.stop(now, l.engine.WaitsSince(q.id, q.guess.since), l.guessTimes())
		} else {
			q.guess.resume(now)
		}
		l.takeGuess(now, g.session, q)
		l.countStop(now, g.session, q, !g.stop)
		l.settle(g.session)
	}
	l.guesses = l.guesses[:0]
}

// takeGuess has the engine know what a queue is taken for; the caller settles.
func (l *Loop) takeGuess(now model.Time, c *Client, q *queue) {
	if q.guess.busy() == q.busy {
		return
	}
	q.transitions++
	l.setBusy(now, c, q, !q.busy, 0)
	if q.busy && q.guess.stopped {
		q.suspendedAt = now
	}
}
