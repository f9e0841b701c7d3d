// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"xsched/internal/identity"
	"xsched/internal/meter"
	"xsched/internal/model"
)

// This file applies estimates of which programs without hooks have work.

func (l *Loop) guessTimes() meter.GuessTimes {
	cfg := l.engine.Config()
	return meter.NewGuessTimes(cfg.Quantum, cfg.StarvationBound)
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
				q.guess.Observe(now, worked, meter.Standing{Kept: l.engine.Kept(q.id), Starved: l.engine.WaitsSince(q.id, q.guess.Since())}, times)
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
			q.guess.Stop(now, l.engine.WaitsSince(q.id, q.guess.Since()), l.guessTimes())
		} else {
			q.guess.Resume(now)
		}
		l.applyGuess(now, g.client, q)
		l.accountSuspension(now, g.client, q, !g.stop)
		l.updateWorkers(g.client)
	}
	l.guesses = l.guesses[:0]
}

// applyGuess reports the estimated state of a queue to the engine; the caller updates the workers.
func (l *Loop) applyGuess(now model.Time, c *Client, q *queue) {
	if q.guess.Busy() == q.busy {
		return
	}
	q.transitions++ // setBusy marks the client as changed
	l.setBusy(now, c, q, !q.busy, feed{})
	if q.busy && q.guess.Stopped() {
		q.stops.Suspended(now)
	}
}
