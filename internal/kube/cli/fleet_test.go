// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"xsched/internal/control"
	"xsched/internal/kube/cluster"
	"xsched/internal/kube/fleetview"
	"xsched/internal/top"
)

// TestFleetTable checks the rows of tenants and of nodes that do not answer. A tenant chooses its
// command line, which must not control the terminal.
func TestFleetTable(t *testing.T) {
	fleet := fleetview.Fleet{Nodes: []fleetview.Node{
		{Name: "a", Snapshot: &control.Snapshot{List: control.List{Processes: []control.Process{{
			PID: 7, Namespace: "red", Pod: "web", PodContainer: "main", Class: "gpu-latency", State: control.StateRunning,
			Priority: 10, GPUShare: 0.25, Command: "evil\x1b[2J\nname",
		}, {PID: 8}}}}},
		{Name: "b", Error: "the pod is pending"},
	}}
	var out bytes.Buffer
	writeList(&out, &fleet, byProgram, 0)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d lines, want titles, two tenants and an error:\n%s", len(lines), out.String())
	}
	if got := strings.Join(strings.Fields(lines[2])[:9], " "); got != "a red web main gpu-latency 7 10 running 25%" {
		t.Errorf("tenant: %q", got)
	}
	if got := strings.Join(strings.Fields(lines[1])[:6], " "); got != "a - - - - 8" {
		t.Errorf("tenant outside a pod: %q", got)
	}
	if lines[3] != "error: node b: the pod is pending" || strings.Contains(out.String(), "\x1b") {
		t.Errorf("unexpected output:\n%q", out.String())
	}
	if err := unanswered(&fleet); err == nil || err.Error() != "node b does not answer: the pod is pending" {
		t.Errorf("error %v", err)
	}
}

// TestFleetUsage checks what programs and pods ran, lost and kept, in the tables and in JSON. A pod has the
// sums of its programs and the worst of their requests.
func TestFleetUsage(t *testing.T) {
	program := func(pid int, pod string, ran, lost time.Duration, p99, wait float64) control.Process {
		p := control.Process{
			PID: pid, Namespace: "red", Pod: pod, Class: "gpu-batch", GPUShare: 0.25, Preemptions: 3, LostNS: int64(lost),
			Queues: []control.Queue{{RanNS: int64(ran) / 2}, {RanNS: int64(ran) / 2}},
		}
		if p99 > 0 {
			p.Latency = &control.Latency{Total: control.Histogram{Count: 9, Recent: 9, P99US: p99}, Wait: control.Histogram{Count: 9, Recent: 9, P99US: wait}}
		}
		return p
	}
	fleet := fleetview.Fleet{Nodes: []fleetview.Node{{Name: "a", Snapshot: &control.Snapshot{List: control.List{Processes: []control.Process{
		program(1, "web", 3*time.Second, time.Second, 2500, 40), program(2, "web", time.Second, 0, 900, 80),
		program(3, "idle", 0, 0, 0, 0), program(4, "", time.Second, 0, 0, 0),
	}}}}}}
	for by, want := range map[string][]string{
		byProgram: {
			"NODE NAMESPACE POD CONTAINER CLASS PID PRIO STATE GPU P99 WAIT PREEMPTED RAN LOST KEPT COMMAND",
			"a red - - gpu-batch 4 0 - 25% - - 3 1s 0us 100.0% -",
			"a red idle - gpu-batch 3 0 - 25% - - 3 0us 0us - -",
			"a red web - gpu-batch 1 0 - 25% 2.5ms 40us 3 3s 1s 75.0% -",
			"a red web - gpu-batch 2 0 - 25% 900us 80us 3 1s 0us 100.0% -",
		},
		byPod: {
			"NODE NAMESPACE POD CLASS PROGRAMS GPU P99 WAIT PREEMPTED RAN LOST KEPT",
			"a red idle gpu-batch 1 25% - - 3 0us 0us -",
			"a red web gpu-batch 2 50% 2.5ms 80us 6 4s 1s 80.0%",
		},
	} {
		var out bytes.Buffer
		writeList(&out, &fleet, by, 0)
		var got []string
		for line := range strings.Lines(out.String()) {
			got = append(got, strings.Join(strings.Fields(line), " "))
		}
		if !slices.Equal(got, want) {
			t.Errorf("by %s: got\n%s\nwant\n%s", by, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	for by, want := range map[string]string{
		byProgram: `"lost_ns":1000000000`, // of the program itself
		byPod:     `"lost_ns":1000000000,"p99_us":2500,"wait_p99_us":80,"ran_ns":4000000000,"kept":0.8`,
	} {
		text, err := json.Marshal(listed(&fleet, by))
		if err != nil || !strings.Contains(string(text), want) || !strings.Contains(string(text), `"errors":[]`) || !strings.Contains(string(text), `"ran_ns":0`) {
			t.Errorf("by %s: %v: %s", by, err, text)
		}
	}
}

func TestFleetStatus(t *testing.T) {
	all := []nodeStatus{
		{Node: "a", parsed: top.Status{Healthy: true, Policy: "HPF", Mode: "live", Programs: map[string]int{"running": 2, "idle": 1}}},
		{Node: "b", Error: "exec failed"},
		{Node: "c", parsed: top.Status{Problems: []top.Problem{{Cause: "an operation is stuck", Remedy: "see the log"}}}},
		{Node: "d", parsed: top.Status{Healthy: true, Policy: "HPF", Mode: "level", ModeLevel: 2}},
	}
	if n := unhealthy(all); n != 2 {
		t.Errorf("%d nodes with problems, want 2", n)
	}
	var out bytes.Buffer
	writeStatus(&out, all, 0)
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"NODE HEALTH VERSION POLICY MODE GPUS PROGRAMS", "a ok - HPF live 0 3", "b no answer - - - - -", "c problems - - - 0 0", "d ok - HPF level 2 0 0",
		"problem: node b: exec failed", "problem: node c: an operation is stuck; see the log",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestJournal follows a journal whose stream ends: another one continues after the last entry.
func TestJournal(t *testing.T) {
	asked := 0
	views := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		switch got := r.URL.Query().Encode(); asked {
		case 1:
			if got != "follow=true&kind=fault&since_ns=0" {
				t.Errorf("first request %q", got)
			}
			_, _ = io.WriteString(w, `{"time_ns":41,"kind":"fault","text":"a \u001b[31mred\u202e text"}`+"\n")
		case 2:
			if got != "follow=true&kind=fault&max=2048&since_ns=42" {
				t.Errorf("second request %q", got)
			}
			_, _ = io.WriteString(w, `{"error":"not allowed any more"}`+"\n")
		}
	}))
	defer views.Close()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","status":{"token":"t"}}`)
	}))
	defer api.Close()
	client, err := cluster.Connect(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	d := &fleetview.Daemons{Client: client, Namespace: "xsched-system", Dial: func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", views.Listener.Addr().String())
	}}
	var out bytes.Buffer
	a := &app{stdout: &out}
	err = a.journal(t.Context(), d, "p", url.Values{"follow": {"true"}, "kind": {"fault"}, "since_ns": {"0"}}, false)
	if err == nil || err.Error() != "not allowed any more" {
		t.Errorf("error %v", err)
	}
	if text := out.String(); !strings.Contains(text, "fault") || !strings.Contains(text, "text") || strings.ContainsAny(text, "\x1b\u202e") {
		t.Errorf("printed %q", text)
	}
	for text, want := range map[string]int64{"": 0, "10m": 400, "1970-01-01T00:00:01Z": 1, "yesterday": -1} {
		got, err := parseSince(text, time.Unix(1000, 0).UTC())
		if (err != nil) != (want < 0) || err == nil && got != want*int64(time.Second) {
			t.Errorf("since %q: %d, %v", text, got, err)
		}
	}
}

func TestCleanupNeedsFolders(t *testing.T) {
	var stdout, stderr bytes.Buffer
	a := &app{stdout: &stdout, stderr: &stderr}
	if code := a.run(a.root(), []string{"cleanup"}); code != exitFailure || !strings.Contains(stderr.String(), "nothing to remove") {
		t.Errorf("exit code %d, %q", code, stderr.String())
	}
}
