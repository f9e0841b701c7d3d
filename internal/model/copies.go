// SPDX-License-Identifier: Apache-2.0

package model

import "time"

const (
	// copiesFirst is how long a program must not launch a kernel before it counts as one that only
	// copies. Each time that it launches one after all doubles it, up to copiesLast.
	copiesFirst = time.Second
	copiesLast  = time.Minute
	// copiesAlone is the same for a program without any kernel so far whose device is never idle.
	copiesAlone = 20 * time.Millisecond
)

// Copies recognises a program that copies and launches no kernels. Copies run on engines of their own,
// so nothing is gained by stopping it. The zero value is that of a new program.
//
// The hard case is a program that copies first and then computes. It must report its next launch at once
// (Ask) before it counts, because its count of launches is otherwise known only while its device is idle.
// A program that has launched kernels counts only after a time without any, so that a training loop, which
// copies in every iteration, never does.
type Copies struct {
	Only bool // the program only copies
	Ask  bool // ask it to report its launches

	launches, copies uint64 // when it last launched
	since            Time   // then, or when it was first asked
	need             time.Duration
}

// Launched reports that the program is known to have launched kernels.
func (c *Copies) Launched() bool { return c.need > 0 }

// See reports what the program has submitted so far, and whether its device has work. The number of launches
// must be exact if it has none, or since the program was asked.
func (c *Copies) See(now Time, launches, copies uint64, busy bool) {
	switch {
	case launches != c.launches:
		if c.Only {
			c.need *= 2
		}
		*c = Copies{launches: launches, copies: copies, since: now, need: min(max(c.need, copiesFirst), copiesLast)}
	case c.Only || copies == c.copies:
	case c.need == 0 && !busy:
		c.Only, c.Ask = true, true
	case c.need == 0 && !c.Ask:
		c.Ask, c.since = true, now
	case c.need == 0:
		c.Only = now.Sub(c.since) >= copiesAlone
	case !c.Ask:
		c.Ask = !busy && now.Sub(c.since) >= c.need/2
	default:
		c.Only = now.Sub(c.since) >= c.need
	}
}
