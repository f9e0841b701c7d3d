// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"sync/atomic"
	"time"
)

const (
	// refusePause is how many times as long as the refusals a pause lasts, so that they use a fifth of a
	// core: at 15 us each, 13,000 connections a second are refused. One core opens 20,000.
	refusePause = 4
	// In the shortest pause a few connections come together, which saves a wake-up for each: 20 us. The
	// longest one is what others wait at most.
	shortestPause = time.Millisecond
	longestPause  = 5 * time.Millisecond
)

// refusals is until when all sockets together pause for what they refused, as a time since started:
// floods on several of them share what one may use.
var (
	refusals atomic.Int64
	started  = time.Now()
)

// Pause returns how long a socket that has refused connections for this time does not look for others.
func Pause(took time.Duration) time.Duration {
	now := int64(time.Since(started))
	for {
		was := refusals.Load()
		until := min(max(was, now)+int64(refusePause*took), now+int64(longestPause))
		if refusals.CompareAndSwap(was, until) {
			return max(shortestPause, time.Duration(until-now))
		}
	}
}
