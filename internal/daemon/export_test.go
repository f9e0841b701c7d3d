// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"

	"xsched/internal/alert"
)

// StopLoop ends the engine loop, as a failed wait does.
func (d *Daemon) StopLoop() { d.loop.Stop() }

// SLOConditions returns the programs that miss their targets.
func (d *Daemon) SLOConditions(ctx context.Context) ([]alert.Condition, error) {
	programs, err := d.access.sessions(ctx)
	return d.service.alerts.services(programs), err
}
