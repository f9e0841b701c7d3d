// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"time"

	"xsched/internal/health"
	"xsched/internal/model"
)

// watchBare observes connected programs whose work no hook sees.
func (d *Daemon) watchBare(ctx context.Context, part *health.Part) {
	t := time.NewTicker(pollPeriod)
	defer t.Stop()
	meters := map[model.SessionID]*cpuMeter{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		part.Beat()
		bare, err := d.loop.Bare(ctx)
		if err != nil {
			continue
		}
		now := map[model.SessionID]*cpuMeter{}
		for _, s := range bare {
			if now[s.ID] = meters[s.ID]; now[s.ID] == nil {
				now[s.ID] = &cpuMeter{}
			}
			d.observe(now[s.ID], s.User, s.ID, s.PID)
		}
		meters = now
	}
}
