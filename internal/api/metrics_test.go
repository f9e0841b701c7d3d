// SPDX-License-Identifier: Apache-2.0

package api

import (
	"log/slog"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"xsched/internal/control"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func scrape(t *testing.T, w *world) string {
	t.Helper()
	a := httptest.NewRecorder()
	Handler(w, as(0)).ServeHTTP(a, httptest.NewRequest("GET", "/metrics", nil))
	if a.Code != 200 {
		t.Fatalf("%d %s", a.Code, a.Body)
	}
	return a.Body.String()
}

func TestMetrics(t *testing.T) {
	// Other tests of this process use the limits, too.
	counts := regexp.MustCompile(`(xs_control_refused_total\{.*\}) \d+`)
	golden(t, "metrics.txt", counts.ReplaceAllString(scrape(t, newWorld()), "$1 0"))
	// Prometheus's own parser reads the same values.
	text, err := os.Open("testdata/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	if err := testutil.GatherAndCompare(metricsRegistry(newWorld(), func() (connections, reads uint64) { return 0, 0 }), text); err != nil {
		t.Error(err)
	}
	problems, err := testutil.GatherAndLint(metricsRegistry(newWorld(), func() (connections, reads uint64) { return 0, 0 }))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// While the engine hangs, /metrics omits only the engine's metrics.
func TestMetricsOfASilentEngine(t *testing.T) {
	w := newWorld()
	w.silent, w.stats.HeartbeatAgeNS = true, 3e9
	text := scrape(t, w)
	if !strings.Contains(text, "\nxs_up 0\n") || !strings.Contains(text, "xs_decisions_total 25") || strings.Contains(text, "xs_priority{") {
		t.Error(text)
	}
}

func TestMetricsAreBounded(t *testing.T) {
	w := newWorld()
	for i := range 3 * maxMetricQueues {
		w.list.Processes = append(w.list.Processes, control.Process{PID: 1000 + i, Queues: []control.Queue{{Device: "0000:01:00.0", RanNS: int64(i)}}})
	}
	// Two sessions of one process must not produce a duplicate.
	w.list.Processes = append(w.list.Processes, w.list.Processes[0])
	text := scrape(t, w)
	if n := strings.Count(text, "\nxs_queue_busy{"); n > maxMetricQueues || n < maxMetricQueues-10 {
		t.Errorf("%d queues are told", n)
	}
	if !strings.Contains(text, `xs_priority{pid="3999"}`) || strings.Contains(text, `xs_priority{pid="1000"}`) {
		t.Error("not the busiest are told")
	}
	if !strings.Contains(text, "\nxs_queues_not_shown 2") {
		t.Error("what is left out is not told")
	}
}

func TestHealth(t *testing.T) {
	w := newWorld()
	ask := func() (int, string) {
		a := httptest.NewRecorder()
		Handler(w, as(0)).ServeHTTP(a, httptest.NewRequest("GET", "/healthz", nil))
		return a.Code, a.Body.String()
	}
	if code, body := ask(); code != 200 || body != "ok\n" {
		t.Errorf("%d %s", code, body)
	}
	w.stats.HeartbeatAgeNS = 2_500_000_000
	if code, body := ask(); code != 503 || !strings.Contains(body, "2.5s ago") {
		t.Errorf("%d %s", code, body)
	}
}
