// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
	"time"

	"xsched/internal/report"
)

// TestHeadlineEqualsTheTables computes the headline from the cells of the tables.
func TestHeadlineEqualsTheTables(t *testing.T) {
	res := run(t, parse(t, handOvers), Options{Policies: []string{"native", "FIFO", "HPF"}, Draw: 50 * time.Millisecond})
	tables := res.tables()
	cell := func(table int, policy, column string) float64 {
		for _, row := range tables[table].Rows {
			for i, head := range tables[table].Head {
				if row[0] == policy && head == column {
					v, err := strconv.ParseFloat(strings.TrimSuffix(row[i], " %"), 64)
					if err != nil {
						t.Fatal(err)
					}
					return v
				}
			}
		}
		t.Fatalf("no %s of %s", column, policy)
		return 0
	}
	want := report.Headline("HPF", "native", report.Outcome{
		Before: cell(0, "native", "P99 ms"), After: cell(0, "HPF", "P99 ms"), Kept: cell(len(tables)-1, "HPF", "lows kept") / 100,
	})
	var page bytes.Buffer
	if err := res.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(page.String(), "<h1>"+want+"</h1>") || !strings.Contains(want, "lower P99") {
		t.Errorf("the tables say %q, the page %q", want, res.headline())
	}
	parts := []string{">Latency distribution of high<", ">Who has the GPU under native", ">Who has the GPU under HPF", ">Latency against throughput<", ">All policies and tenants<", ">Throughput kept"}
	at := 0
	for _, part := range parts { // in this order
		i := strings.Index(page.String()[at:], part)
		if i < 0 {
			t.Errorf("no %q after %q", part, page.String()[max(at-40, 0):at])
			continue
		}
		at += i
	}
	for _, no := range []string{"<pre", "<script"} {
		if strings.Contains(page.String(), no) {
			t.Errorf("the page contains %q", no)
		}
	}
}

// TestHeadlines checks the headline where there is nothing to compare with native.
func TestHeadlines(t *testing.T) {
	for _, c := range []struct {
		name, text string
		policies   []string
		want       string
	}{
		{"one policy", handOvers, []string{"HPF"}, " higher P99 than alone; background keeps "},
		{"only native", handOvers, []string{"native"}, "native: "},
		{"no requests", "duration: 1s\ntenants: [{name: a, count: 2, arrivals: closed, kernel: 5ms}]", []string{"FIFO"}, "FIFO: every tenant keeps at least "},
	} {
		res := run(t, parse(t, c.text), Options{Policies: c.policies})
		if got := res.headline(); !strings.Contains(got, c.want) || strings.Contains(got, "Inf") || strings.Contains(got, "NaN") {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestRequestsOfTimeline checks the requests in a lane: as many as arrive, and each at least as long as
// its kernel.
func TestRequestsOfTimeline(t *testing.T) {
	const draw = 500 * time.Millisecond
	lanes := run(t, parse(t, handOvers), Options{Draw: draw}).Runs[0].tracks
	if n := len(lanes[0].Requests); n < 9 || n > 11 { // 20 a second
		t.Errorf("%d requests", n)
	}
	for _, r := range lanes[0].Requests {
		if r.To-r.From < 90*time.Microsecond {
			t.Errorf("request %+v is shorter than its kernel", r)
		}
	}
	if n := len(lanes[1].Requests); n != 0 {
		t.Errorf("%d requests of a closed loop", n)
	}
}
