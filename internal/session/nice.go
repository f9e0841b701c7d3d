// SPDX-License-Identifier: Apache-2.0

package session

import (
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/model"
)

// nicePeriod is the interval at which nice values are read.
const nicePeriod = time.Second

// niceOf returns the nice value of a process; 0 if the process has ended.
func niceOf(pid int) int {
	got, err := unix.Getpriority(unix.PRIO_PROCESS, pid)
	if err != nil {
		return 0
	}
	return min(max(20-got, model.NiceMin), model.NiceMax) // the system call returns 20 - nice
}

// watchNice reports changed nice values to the loop.
func (srv *Server) watchNice() {
	t := time.NewTicker(nicePeriod)
	defer t.Stop()
	known := map[model.SessionID]int{}
	for {
		select {
		case <-srv.ctx.Done():
			return
		case <-t.C:
		}
		srv.parts.nice.Beat()
		seen := make(map[model.SessionID]int, len(known))
		for _, s := range srv.all() {
			nice := srv.cfg.Nice(s.PID)
			if was, ok := known[s.ID]; ok && was == nice || srv.loop.SetNice(s.client, nice) == nil {
				seen[s.ID] = nice // otherwise again at the next reading
			}
		}
		known = seen
	}
}
