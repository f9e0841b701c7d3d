// SPDX-License-Identifier: Apache-2.0

package api

import (
	"log/slog"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"xsched/internal/control"
	"xsched/internal/identity"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func scrape(t *testing.T, w *world) string {
	t.Helper()
	return scrapeAs(t, w, 0, "")
}

// scrapeAs is a scrape of a user that accepts a format.
func scrapeAs(t *testing.T, w *world, uid int, format string) string {
	t.Helper()
	a := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/metrics", nil)
	r.Header.Set("Accept", format)
	Handler(w, as(uid)).ServeHTTP(a, r)
	if a.Code != 200 {
		t.Fatalf("%d %s", a.Code, a.Body)
	}
	return a.Body.String()
}

// registry of a world for root.
func registry(w *world) *prometheus.Registry {
	return metricsRegistry(w, control.Caller{User: identity.OnHost(0)}, func() (connections, reads uint64) { return 0, 0 })
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
	if err := testutil.GatherAndCompare(registry(newWorld()), text); err != nil {
		t.Error(err)
	}
	problems, err := testutil.GatherAndLint(registry(newWorld()))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// Programs in a pod have its names on all their series, the others none.
func TestMetricsOfPods(t *testing.T) {
	w := newWorld()
	p := &w.list.Processes[0]
	p.Namespace, p.Pod, p.PodContainer, p.Class = "ml", "serve-0", "main", "gpu-latency"
	const labels = `{class="gpu-latency",container="main",`
	text, of := scrape(t, w), `pid="`+strconv.Itoa(p.PID)+`"`
	seen := 0
	for line := range strings.Lines(text) {
		named := strings.Contains(line, labels) && strings.Contains(line, `namespace="ml"`) && strings.Contains(line, `pod="serve-0"`)
		if !strings.HasPrefix(line, "#") && strings.Contains(line, of) != named {
			t.Errorf("named %v: %s", named, line)
		}
		if named {
			seen++
		}
	}
	if seen < 20 || strings.Count(text, `pod=""`) != len(w.list.Processes)-1 {
		t.Errorf("%d series of the pod in\n%s", seen, text)
	}
	if _, err := testutil.GatherAndLint(registry(w)); err != nil {
		t.Error(err)
	}
}

// While the engine hangs, /metrics omits only the engine's metrics.
func TestMetricsOfASilentEngine(t *testing.T) {
	w := newWorld()
	w.silent, w.stats.HeartbeatAgeNS = true, 3e9
	w.stats.Parts = []control.Part{{Name: "engine loop", AgeNS: 3e9, LimitNS: 1e9, Vital: true, Late: true}}
	text := scrape(t, w)
	if !strings.Contains(text, "\nxs_up 0\n") || !strings.Contains(text, "xs_decisions_total 25") || strings.Contains(text, "xs_priority{") {
		t.Error(text)
	}
}

// A scrape has at most maxMetricTenants programs: those with a target, then by priority, then the busiest.
func TestMetricsAreBounded(t *testing.T) {
	w := newWorld()
	for i := range 3 * maxMetricTenants {
		p := control.Process{PID: 1000 + i, Latency: &control.Latency{}, Queues: []control.Queue{{Device: "0000:01:00.0", RanNS: int64(i)}}}
		switch i {
		case 3:
			p.SLO = &control.SLO{TargetUS: 1}
		case 4:
			p.Priority = 5
		}
		w.list.Processes = append(w.list.Processes, p)
	}
	// Two sessions of one process must not produce a duplicate.
	w.list.Processes = append(w.list.Processes, w.list.Processes[0])
	text := scrape(t, w)
	for name, limit := range map[string]int{"xs_priority": maxMetricTenants, "xs_queue_busy": maxMetricQueues, "xs_request_seconds_count": maxMetricHistograms} {
		if n := strings.Count(text, "\n"+name+"{"); n > limit || n < maxMetricHistograms-10 {
			t.Errorf("%d series of %s", n, name)
		}
	}
	for pid, shown := range map[string]bool{"1003": true, "1004": true, "1005": false, "2499": true, "1000": false} {
		if strings.Contains(text, `xs_priority{pid="`+pid+`"`) != shown {
			t.Errorf("pid %s: shown is not %v", pid, shown)
		}
	}
	if !strings.Contains(text, "\nxs_tenants_not_shown 1002\n") {
		t.Error("the omitted programs are not counted")
	}
	if n := strings.Count(text, "\n"); n > 20_000 {
		t.Errorf("%d lines", n)
	}
	// Programs with many queues are bounded, too.
	w = newWorld()
	for i := range 10 {
		p := control.Process{PID: 1000 + i}
		for q := range uint32(maxMetricQueues / 4) {
			p.Queues = append(p.Queues, control.Queue{Index: q, Device: "0000:01:00.0"})
		}
		w.list.Processes = append(w.list.Processes, p)
	}
	text = scrape(t, w)
	if n := strings.Count(text, "\nxs_queue_busy{"); n > maxMetricQueues || strings.Contains(text, "\nxs_queues_not_shown 0") {
		t.Errorf("%d queues", n)
	}
}

// TestMetricsOfOneUser: one user has a program with a latency target and all queues that a page has, and then as
// many such programs as it may start. The programs of two others keep their series.
func TestMetricsOfOneUser(t *testing.T) {
	for name, programs := range map[string]int{"one program": 1, "many programs": 2 * maxMetricTenants} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.list.Processes = nil
			for i := range programs {
				p := control.Process{PID: 10_000 + i, SLO: &control.SLO{TargetUS: 1}, Priority: 10, Owner: identity.OnHost(1000), Latency: &control.Latency{}}
				for q := range uint32(1024 / min(programs, 100)) {
					p.Queues = append(p.Queues, control.Queue{Index: q, Device: "0000:01:00.0"})
				}
				w.list.Processes = append(w.list.Processes, p)
			}
			for i := range 2 {
				w.list.Processes = append(w.list.Processes, control.Process{
					PID: 101 + i, Owner: identity.OnHost(2000 + i), Latency: &control.Latency{}, Queues: []control.Queue{{Device: "0000:02:00.0"}},
				})
			}
			text := scrape(t, w)
			for _, pid := range []string{"101", "102", "10000"} {
				for _, series := range []string{"xs_priority", "xs_queue_busy", "xs_request_seconds_count"} {
					if !regexp.MustCompile(`\n` + series + `\{[^}]*pid="` + pid + `"`).MatchString(text) {
						t.Errorf("%s of program %s is missing", series, pid)
					}
				}
			}
			for name, most := range map[string]int{"xs_priority": maxMetricTenants, "xs_queue_busy": maxMetricQueues, "xs_request_seconds_count": maxMetricHistograms} {
				if n := strings.Count(text, "\n"+name+"{"); n > most {
					t.Errorf("%d series of %s", n, name)
				}
			}
		})
	}
}

// Names of programs are for callers that may see the command: root, and each user its own.
func TestMetricNames(t *testing.T) {
	w := newWorld()
	for i := range w.list.Processes {
		w.list.Processes[i].Owner = identity.OnHost(w.list.Processes[i].UID)
	}
	w.list.Processes[0].User, w.list.Processes[0].Container = "al\xffice\n\"", strings.Repeat("c", 300)
	for uid, names := range map[int][]string{0: {"serve.py", "train"}, 1000: {"serve.py", ""}, 2000: {"", "train"}, 3000: {"", ""}} {
		text := scrapeAs(t, w, uid, "")
		for i, pid := range []string{"101", "202"} {
			user := []string{`al_ice\n\"`, "2000"}[i]
			if want := `xs_priority{pid="` + pid + `",tenant="` + names[i] + `",user="` + user + `"}`; !strings.Contains(text, want) {
				t.Errorf("uid %d: %s is not in\n%s", uid, want, text)
			}
		}
		if strings.Contains(text, "python") || strings.Contains(text, strings.Repeat("c", maxLabel+1)) {
			t.Errorf("uid %d sees more than a name", uid)
		}
	}
}

// Series of ended programs disappear.
func TestMetricsOfEndedPrograms(t *testing.T) {
	w := newWorld()
	if !strings.Contains(scrape(t, w), `pid="202"`) {
		t.Fatal("no series of a running program")
	}
	w.list.Processes = w.list.Processes[:1]
	if strings.Contains(scrape(t, w), `pid="202"`) {
		t.Error("an ended program has series")
	}
}

// A scraper that accepts OpenMetrics gets it, with all series of the text format.
func TestOpenMetrics(t *testing.T) {
	plain := scrape(t, newWorld())
	open := scrapeAs(t, newWorld(), 0, "application/openmetrics-text;version=1.0.0")
	if !strings.HasSuffix(open, "\n# EOF\n") {
		t.Errorf("the end is %q", open[max(0, len(open)-40):])
	}
	names := func(text string) (out []string) {
		for _, m := range regexp.MustCompile(`(?m)^xs_\w+(\{[^}]*\})?`).FindAllString(text, -1) {
			if !strings.Contains(m, "_bucket") { // OpenMetrics writes bounds as floats
				out = append(out, m)
			}
		}
		slices.Sort(out)
		return out
	}
	if a, b := names(plain), names(open); !slices.Equal(a, b) {
		t.Errorf("%d series in the text format, %d in OpenMetrics", len(a), len(b))
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
	w.stats.Parts = []control.Part{{Name: "log", AgeNS: 7e9, LimitNS: 5e9, Late: true}}
	if code, body := ask(); code != 200 || body != "ok\nlog: the last sign of life was 7s ago, the limit is 5s\n" {
		t.Errorf("%d %s", code, body)
	}
	w.stats.Parts = []control.Part{{Name: "log", Late: true}, {Name: "engine loop", AgeNS: 2_500_000_000, LimitNS: 1e9, Vital: true, Late: true}}
	if code, body := ask(); code != 503 || body != "engine loop: the last sign of life was 2.5s ago, the limit is 1s\n" {
		t.Errorf("%d %s", code, body)
	}
	if w.statsRead > 0 {
		t.Errorf("/healthz read all statistics %d times; they cost a millisecond of CPU time", w.statsRead)
	}
}
