// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"time"

	"xsched/internal/model"
)

// This file estimates when programs without hooks have work. CPU time is the only evidence. A
// program that sleeps until its kernel ends uses none while it is suspended. Treating it as busy
// would give an idle program every second turn; treating it as idle would starve one with a long
// kernel. So its last observed state counts, and a program that seems idle gets a short probing
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

// Guess is the estimated state of a queue.
type Guess struct {
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

// Standing is the engine's view of a queue. Besides a suspension, tiny timeslices and a
// latency-critical queue with short gaps keep a queue from making progress.
type Standing struct {
	Kept    bool // the queue cannot make progress now
	Starved bool // it waits, and has made no progress since it last worked or began to wait
}

// NewGuess begins to estimate a queue. One that may have work gets a probing turn: whoever attaches to idle
// programs again and again must not take turns of idleAfter from others.
func NewGuess(now model.Time, busy bool) Guess {
	return Guess{idle: true, waits: busy, counted: now, since: now}
}

// GuessTimes are the limits that depend on the configuration.
type GuessTimes struct {
	probe, pause time.Duration
	probing      *Probing // pays for probing turns; nil: nobody does
}

// NewGuessTimes returns the limits for the engine's quantum and starvation bound; 0: it has none.
func NewGuessTimes(quantum, bound time.Duration) GuessTimes {
	t := GuessTimes{probe: min(probeTime, quantum), pause: bound}
	if t.pause == 0 {
		t.pause = longestPause
	}
	return t
}

// Busy reports whether the queue counts as busy.
func (g *Guess) Busy() bool { return !g.idle || g.waits }

// Idle reports whether the queue used no CPU time while it could run.
func (g *Guess) Idle() bool { return g.idle }

// Stopped reports whether the queue is suspended.
func (g *Guess) Stopped() bool { return g.stopped }

// Since is the last time that the queue worked or began to wait.
func (g *Guess) Since() model.Time { return g.since }

func (g *Guess) count(now model.Time) {
	if !g.stopped {
		g.ran += now.Sub(g.counted)
	}
	g.counted = now
}

// Observe updates the estimate: worked reports whether the program used CPU time since the last
// observation.
func (g *Guess) Observe(now model.Time, worked bool, at Standing, t GuessTimes) {
	g.count(now)
	if g.starved {
		g.ran = 0 // a turn since the last observation did not last all that time
	}
	g.starved = at.Starved && !g.stopped
	switch {
	case worked:
		*g = Guess{stopped: g.stopped, counted: now, since: now}
	case !g.idle:
		if g.idle = g.ran >= idleAfter && !at.Starved; g.idle && g.stopped {
			g.backOff(now, t)
		}
	case g.waits:
		if g.waits = g.stopped || at.Starved || g.ran < t.probe; !g.waits {
			t.charge(g.ran)
			if at.Kept {
				g.backOff(now, t) // it keeps its small share of the GPU
			}
		}
	case (g.stopped || at.Kept) && now >= g.retry && t.mayProbe(now):
		g.waits, g.ran, g.since = true, 0, now
	}
}

// Stop ends a turn. A probe that was cut short continues with the next turn, and so does one in
// which the queue made no progress.
func (g *Guess) Stop(now model.Time, starved bool, t GuessTimes) {
	g.count(now)
	g.stopped, g.starved = true, false
	if g.idle && g.ran >= t.probe && !starved {
		if g.waits {
			t.charge(g.ran)
		}
		g.backOff(now, t)
	}
}

// leave ends the estimate for a while. A queue that worked may still run for what it has left of
// idleAfter. A probing turn ends.
func (g *Guess) leave(now model.Time, t GuessTimes) {
	g.count(now)
	g.stopped, g.starved = false, false
	if g.waits {
		t.charge(g.ran)
	}
	if g.waits || !g.idle && g.ran >= idleAfter {
		g.idle = true
		g.backOff(now, t)
	}
}

// Resume begins a turn.
func (g *Guess) Resume(now model.Time) {
	g.count(now)
	g.stopped = false
}

func (g *Guess) backOff(now model.Time, t GuessTimes) {
	g.waits, g.ran = false, 0
	g.pause = max(min(max(2*g.pause, firstPause), t.pause), t.turns())
	g.retry = now.Add(g.pause)
}
