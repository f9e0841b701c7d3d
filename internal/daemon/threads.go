// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"xsched/internal/clock"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// threads judges the shim's threads in the programs by their signs of life, and whether the programs' calls
// pass the shim. One goroutine owns it; readers use said.
type threads struct {
	late map[model.SessionID]int // consecutive samples with a thread that is late
	said atomic.Pointer[map[model.SessionID]string]
}

const (
	// threadLimit is how old a sign of life may be. Both threads give several a second while they work.
	threadLimit = 5 * time.Second
	// threadSamples in a row, one a second, make a thread dead: after a suspension the watcher's question
	// to the driver takes a moment to return.
	threadSamples = 3
)

// What is wrong, with the remedy. A program runs in each case; what suffers is its scheduling.
const (
	deadWatcher = "the watcher thread in it hangs or has ended, so the end of its work is noticed late; restart the program"
	deadHelper  = "the helper thread in it hangs or has ended, so it obeys no orders and reports nothing new; restart the program"
	stopped     = "its threads give no sign of life: it is stopped or frozen with work on the GPU; continue or end it"
	bypassed    = "it has queues of its own, but no call of its GPU runtime passes the library, so it is not scheduled; start it with `xsched run`"
)

// judge judges the threads of a program, and whether its calls pass the library; empty: nothing is wrong
// or known. Libraries of the previous release give no signs of life, and attached programs have no
// threads of ours.
func judge(p *loop.ClientView, now model.Time) string {
	if p.Signs.Helper == 0 {
		return ""
	}
	if p.Counters.HookedCalls == 0 && slices.ContainsFunc(p.Queues, func(q loop.QueueView) bool { return q.Stream }) {
		return bypassed
	}
	working := false
	for i := range p.Queues {
		q := &p.Queues[i]
		// The driver may not answer the watcher about a suspended queue.
		if p.Held || p.GroupHeld || q.Want.Suspend != 0 {
			return ""
		}
		working = working || q.Busy
	}
	helper, watcher := now.Sub(p.Signs.Helper) > threadLimit, now.Sub(p.Signs.Watcher) > threadLimit
	switch {
	case !working:
		return "" // without work neither matters, and the watcher sleeps
	case helper && watcher:
		return stopped
	case helper:
		return deadHelper
	case watcher:
		return deadWatcher
	}
	return ""
}

// sample judges all programs, and logs each fault once.
func (t *threads) sample(log *slog.Logger, programs []loop.ClientView) {
	now, late, said := clock.Now(), map[model.SessionID]int{}, map[model.SessionID]string{}
	for i := range programs {
		p := &programs[i]
		why := judge(p, now)
		if why == "" {
			continue
		}
		if late[p.ID] = t.late[p.ID] + 1; late[p.ID] >= threadSamples {
			said[p.ID] = why
		}
		if late[p.ID] == threadSamples {
			log.Warn("a program is not scheduled as it should be", "pid", p.PID, "why", why)
		}
	}
	t.late = late
	t.said.Store(&said)
}

// of returns what is wrong with a program's threads; empty: nothing.
func (t *threads) of(id model.SessionID) string {
	if said := t.said.Load(); said != nil {
		return (*said)[id]
	}
	return ""
}
