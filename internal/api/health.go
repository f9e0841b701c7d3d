// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"net/http"

	"xsched/internal/control"
)

// healthz answers 200 only while every vital part of the daemon works. After "ok" it names the parts that
// no restart helps. It reads the heartbeats and nothing else: anybody may ask, as often as they like.
func healthz(parts func() []control.Part) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		now := control.Stats{Parts: parts()}
		if dead := now.Dead(); dead != "" {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, dead)
			return
		}
		fmt.Fprintln(w, "ok")
		for _, line := range now.Impaired() {
			fmt.Fprintln(w, line)
		}
	}
}
