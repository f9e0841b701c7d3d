// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/model"
)

// This file feeds the engine facts that programs do not report: CPU nice values, and unmanaged users
// of a GPU.

// nicePeriod is how soon a changed nice value counts.
const nicePeriod = time.Second

// niceOf is the nice value of a process; 0 if it has gone.
func niceOf(pid int) int {
	got, err := unix.Getpriority(unix.PRIO_PROCESS, pid)
	if err != nil {
		return 0
	}
	return min(max(20-got, model.NiceMin), model.NiceMax) // the call adds 20 and turns it round
}

// watchNice follows renice.
func (h *Hub) watchNice() {
	t := time.NewTicker(nicePeriod)
	defer t.Stop()
	known := map[model.SessionID]int{}
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-t.C:
		}
		seen := make(map[model.SessionID]int, len(known))
		for _, s := range h.all() {
			nice := niceOf(s.PID)
			seen[s.ID] = nice
			if was, ok := known[s.ID]; !ok || was != nice {
				_ = h.post(h.ctx, func(l *loop) { l.setNice(s, nice) })
			}
		}
		known = seen
	}
}

func (l *loop) setNice(s *Session, nice int) {
	if l.sessions[s.ID] == nil || s.hint.Nice == nice {
		return
	}
	s.hint.Nice = nice
	l.rehint(l.now(), s)
}

// SetUnmanaged says whether programs that have no session use a GPU.
func (h *Hub) SetUnmanaged(ctx context.Context, gpu model.DeviceID, unmanaged bool) error {
	return h.call(ctx, func(l *loop) {
		l.engine.SetUnmanaged(l.now(), gpu, unmanaged)
		l.dirty = true
	})
}

// PIDs are the processes that have a session. It asks the loop nothing.
func (h *Hub) PIDs() map[int]bool {
	out := map[int]bool{}
	for _, s := range h.all() {
		out[s.PID] = true
	}
	return out
}
