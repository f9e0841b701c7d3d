// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"maps"

	"xsched/internal/clock"
	"xsched/internal/model"
)

// turned applies a change of what a worker can do. While scheduling is off, the gate is open, too.
func (l *Loop) turned(c *Client, gpu model.DeviceID, why string, loose bool) {
	if l.registry.clients[c.ID] == nil {
		return
	}
	l.unmanaged.lose(clock.Now(), c, gpu, loose)
	if c.workers.off[gpu] == why {
		return
	}
	off := maps.Clone(c.workers.off) // snapshots have the old one
	if off == nil {
		off = map[model.DeviceID]string{}
	}
	if off[gpu] = why; why == "" {
		delete(off, gpu)
	}
	c.workers.off = off
	l.hints.updateLevels(c)
	for _, q := range c.queues {
		switch {
		case q.device != gpu || q.gate == nil:
		case q.merge.primary != nil:
			l.dispatch.applyMerged(c, q) // its primary queue has the desired state
		default:
			_ = q.gate.Apply(context.Background(), l.dispatch.gateState(c, q))
		}
	}
}
