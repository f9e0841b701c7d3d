// SPDX-License-Identifier: Apache-2.0

package engine

import "xsched/internal/model"

// rank gives the queues of a process, or of all of them (0), the rank that the
// policy sees. Only where other queues of the process matter is anybody but the
// ones that changed looked at.
func (e *Engine) rank(pid int) {
	if e.processes == nil {
		e.processes = make(map[int]model.Priority)
	}
	clear(e.processes)
	for _, d := range e.devices {
		for i := range d.view.Queues {
			if q := &d.view.Queues[i]; pid == 0 || q.PID == pid {
				top, known := e.processes[q.PID]
				if !known || q.Hint.Priority > top {
					e.processes[q.PID] = q.Hint.Priority
				}
			}
		}
	}
	for _, d := range e.devices {
		for i := range d.view.Queues {
			q := &d.view.Queues[i]
			if pid != 0 && q.PID != pid {
				continue
			}
			if rank := e.policy.Rank(q, e.processes[q.PID]); rank != q.Rank {
				q.Rank = rank
				d.restructure()
				d.unsorted = true
			}
		}
	}
}
