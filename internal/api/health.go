// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"xsched/internal/control"
)

// freshHeartbeat is how old the engine's last heartbeat may be. Applications
// stop trusting it after a tenth of this; whoever restarts a daemon for being
// ill should have seen more than one bad moment.
const freshHeartbeat = time.Second

// healthz answers 200 only while the engine decides. It asks the engine
// nothing, so that it also answers when that hangs, and tells nobody anything
// else, so that it needs no rights.
func healthz(c control.Control) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), control.CallTimeout)
		defer cancel()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		stats, err := c.Stats(ctx, control.Caller{UID: -1})
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
