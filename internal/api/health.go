// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"xsched/internal/control"
)

// freshHeartbeat is the largest healthy age of the engine's last heartbeat. Applications resume
// themselves after a tenth of this; a restart should need more than one late heartbeat.
const freshHeartbeat = time.Second

// healthz answers 200 only while the engine runs. It does not wait for the engine, so it answers
// when the engine hangs. It reveals nothing else, so it needs no permission.
func healthz(c control.Control) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), control.CallTimeout)
		defer cancel()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		stats, err := c.Stats(ctx, control.Nobody)
		if err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, "the daemon does not answer")
			return
		}
		if age := time.Duration(stats.HeartbeatAgeNS); age > freshHeartbeat {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintf(w, "the engine's last heartbeat was %s ago\n", age.Round(time.Millisecond))
			return
		}
		fmt.Fprintln(w, "ok")
	}
}
