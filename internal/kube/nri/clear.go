// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"log/slog"
	"time"

	"xsched/internal/control"
)

// Clear removes the plugin's grants at the daemon, which keeps them across restarts: without the plugin
// labels do not count. It tries until the daemon answers or the context ends.
func Clear(ctx context.Context, d Daemon, log *slog.Logger) { clearEvery(ctx, d, log, time.Second) }

func clearEvery(ctx context.Context, d Daemon, log *slog.Logger, retry time.Duration) {
	said := false
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, sendTimeout)
		_, err := d.SetGrants(limited, control.GrantsRequest{Source: Source, Grants: []control.Grant{}})
		cancel()
		if err == nil {
			return
		}
		if !said {
			log.Warn("grants of labels not removed; trying again", "err", err)
			said = true
		}
		pause(ctx, retry)
	}
}
