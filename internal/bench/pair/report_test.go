// SPDX-License-Identifier: Apache-2.0

package pair

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"xsched/internal/bench"
	"xsched/internal/report"
)

// concluded is a report of made-up measurements, with its targets.
func concluded(edit func(*Report)) *Report {
	requests := []time.Duration{5e6, 6e6, 7e6}
	r := &Report{
		Device: "virtual GPU", Route: "channels", Level: 3, Online: "./serve <script>", Offline: "./train",
		Requests: report.Summarize(requests), Suspend: Operation{N: 10, Within: 10, P50: 0.5}, Resume: Operation{N: 10, Within: 10, P50: 0.4}, Suspensions: 10,
	}
	r.raw.Requests = requests
	r.raw.Window = bench.Window{From: 0, To: int64(drawnSpan)}
	r.raw.Busies = []bench.Window{{From: 1e6, To: 7e6}}
	r.raw.Pauses = []bench.Window{{From: 1e6, To: 8e6}}
	c := &colocation{report: r, online: &side{}, offline: &side{}}
	c.alone = progress{from: 0, to: 1e9, ran: time.Second, recorded: true}
	c.together = progress{from: 0, to: 1e9, ran: 900 * time.Millisecond, onlineRan: 80 * time.Millisecond, recorded: true}
	if edit != nil {
		edit(r)
	}
	c.conclude()
	return r
}

// TestPageEqualsTheReport checks that headline, table and text agree, and that hostile names are text.
func TestPageEqualsTheReport(t *testing.T) {
	var page, text bytes.Buffer
	r := concluded(nil)
	if err := r.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		"<h1>All 6 targets met: online P99 7.00 ms; offline keeps 90 %</h1>", "<td class=\"left\">P99 7.00 ms</td>", "gross 10.00 %", "suspended by XSched",
		">Latency distribution<", ">Latency against throughput<", "./serve &lt;script&gt;",
	} {
		if !strings.Contains(page.String(), part) {
			t.Errorf("the page lacks %q", part)
		}
	}
	for _, line := range r.lines() {
		if !strings.Contains(text.String(), line+"\n") {
			t.Errorf("the text lacks %q", line)
		}
	}
	if strings.Contains(text.String(), "missed") {
		t.Errorf("advice without a missed target:\n%s", text.String())
	}
}

// TestMissedTargetsHaveAdvice: every target that is missed is in the headline, the text and the page,
// with advice.
func TestMissedTargetsHaveAdvice(t *testing.T) {
	r := concluded(func(r *Report) {
		r.Suspend.Within, r.Resume.Within = 1, 1
		r.Requests.P99 = 80
		r.Usage = []Usage{{Name: "daemon", Files: [2]int{10, 60}, Threads: [2]int{3, 30}}}
		r.Lost = []string{"a suspension was not resumed"}
	})
	missed := 0
	for _, target := range r.Targets {
		if !target.Met {
			missed++
		}
	}
	if got := r.Advice(); len(got) != missed || missed < 4 || !strings.HasPrefix(got[0], "missed: suspend; ") {
		t.Errorf("%d targets missed: %q", missed, got)
	}
	for _, target := range r.Targets {
		if advice[target.Name] == "" {
			t.Errorf("no advice for %q", target.Name)
		}
	}
	var page, text bytes.Buffer
	if err := r.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(page.String(), "<h1>5 of 6 targets missed: online P99 80.00 ms") || !strings.Contains(page.String(), "<li>missed: suspend; ") ||
		strings.Count(text.String(), "\nmissed: ") != missed {
		t.Errorf("%s\n%s", page.String()[:200], text.String())
	}
}

// TestRecording: a page drawn from a recording equals the page of the run.
func TestRecording(t *testing.T) {
	r := concluded(func(r *Report) {
		r.raw.Online, r.raw.Offline = map[int]bool{11: true}, map[int]bool{12: true}
		r.raw.Segments = []bench.Segment{{From: 0, To: 1e6, PID: 12}, {From: 1e6, To: 2e6, PID: 11, Switch: true}, {From: 2e6, To: 7e6, PID: 11}}
	})
	var file, want, got bytes.Buffer
	if err := r.WriteRecording(&file); err != nil {
		t.Fatal(err)
	}
	again, err := ReadRecording(&file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.WriteHTML(&want), again.WriteHTML(&got)); err != nil || got.String() != want.String() {
		t.Errorf("the page of a recording differs: %v", err)
	}
	for _, text := range []string{`{}`, `{"Report": {"online_requests": {"n": 1}}}`, `{"Raw": {}}`} {
		if _, err := ReadRecording(strings.NewReader(text)); err == nil {
			t.Errorf("%s is read as a recording", text)
		}
	}
}
