// SPDX-License-Identifier: Apache-2.0

package top_test

import (
	"strings"
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/top"
	"xsched/internal/top/toptest"
)

func inPods() control.Snapshot {
	s := toptest.Scene(8)
	for i, name := range []string{"serve-0", "train-0", "render-7"} {
		p := &s.List.Processes[i]
		p.Namespace, p.Pod, p.PodContainer, p.Class = "ml", name, "main", "latency"
	}
	return s
}

// TestPods: the table of one node names the pods instead of users, at any width, and the details name the
// container.
func TestPods(t *testing.T) {
	text := func(width int) string {
		m := top.New(t.Context(), nil, top.Options{})
		m.Take(inPods(), nil)
		var out []string
		for _, line := range m.Lines(width, 40) {
			var b strings.Builder
			for _, span := range line {
				b.WriteString(span.Text)
			}
			out = append(out, b.String())
		}
		return strings.Join(out, "\n")
	}
	for _, width := range []int{80, 160} {
		got := text(width)
		for _, want := range []string{"  PID POD ", " 4711 ml/serve-0 ", " 5333 - ", "ml/serve-0/main 4711 python serve.py"} {
			if !strings.Contains(got, want) {
				t.Errorf("%d columns without %q:\n%s", width, want, got)
			}
		}
		if strings.Contains(got, "USER") {
			t.Errorf("%d columns:\n%s", width, got)
		}
	}
}

// TestPodsInStatus: the status names the pods of the programs that it is about.
func TestPodsInStatus(t *testing.T) {
	s := inPods()
	stats := control.Stats{UptimeNS: int64(time.Hour), Targets: []control.TargetStats{{PID: 4890, Device: "0000:01:00.0", StuckForMS: 900}, {PID: 77, Device: "0000:02:00.0", Off: "failed"}}}
	status := top.Examine(&s, &stats, "2.0.0")
	if status.Worst == nil || status.Worst.Pod != "ml/render-7/main" {
		t.Errorf("%+v", status.Worst)
	}
	got := statusText(status, 0)
	for _, want := range []string{
		"(ml/render-7/main) misses", "program 5001 of pod ml/render-7/main misses its SLO",
		"an operation on program 4890 of pod ml/train-0/main on 0000:01:00.0 is stuck", "program 77 on 0000:02:00.0 is not scheduled",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}
