// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"xsched/internal/engine"
	"xsched/internal/model"
)

// input is the engine, and whether it has something new to decide on.
type input struct {
	*engine.Engine
	dirty bool
}

// registry finds clients and their queues.
type registry struct {
	clients map[model.SessionID]*Client
	byPID   map[int][]*Client
	bells   map[int32]*Client
}

// queue returns a queue; nil: it has left.
func (r *registry) queue(id model.QueueID) *queue {
	if c := r.clients[id.Session]; c != nil {
		return c.queues[id.Index]
	}
	return nil
}

// programOf returns the command line of a client, for the recording.
func (r *registry) programOf(id model.SessionID) string {
	if c := r.clients[id]; c != nil {
		return c.Command
	}
	return ""
}

// heldBy returns why a process is suspended whatever the policy says: any of its clients is. 0: it is not.
func (r *registry) heldBy(pid int) int {
	by := 0
	for _, c := range r.byPID[pid] {
		switch {
		case c.hold.byHand:
			return ByHand
		case c.hold.byGroup:
			by = ByGroup
		}
	}
	return by
}
