// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"net/http"

	"xsched/internal/control"
)

// healthz answers 200 only while every vital part of the daemon works. It waits for none of them. After
// "ok" it names the parts that no restart helps. It reveals nothing else, so it needs no permission.
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
		if dead := stats.Dead(); dead != "" {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, dead)
			return
		}
		fmt.Fprintln(w, "ok")
		for _, line := range stats.Impaired() {
			fmt.Fprintln(w, line)
		}
	}
}
