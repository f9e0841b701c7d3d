// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"
	"time"

	"xsched/internal/control"
)

func sampleReport() *control.Report {
	return &control.Report{
		FromNS: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC).UnixNano(), ToNS: time.Date(2026, 3, 31, 12, 0, 0, 0, time.UTC).UnixNano(), By: control.ByProgram,
		WatchedNS: 10 * 3600e9, CapacityNS: 20 * 3600e9, Own: true,
		Rows: []control.ReportRow{
			{User: "alice", Program: "=1+1<b>", GPUNS: 5 * 3600e9, Share: 0.25, OpenNS: 8 * 3600e9, WaitedNS: 61e9, Requests: 12345, Judged: 1000, Met: 995},
			{User: "alice", GPUNS: 3600e9, Share: 0.05},
		},
		Total: control.ReportRow{GPUNS: 6 * 3600e9, Share: 0.3, OpenNS: 8 * 3600e9, WaitedNS: 61e9, Requests: 12345, Judged: 1000, Met: 995},
	}
}

// TestReportForms: the forms of a report have the same figures, and a program's name is text in each of them.
func TestReportForms(t *testing.T) {
	var text, csv, page strings.Builder
	r := sampleReport()
	if err := writeReport(&text, r, time.UTC); err != nil {
		t.Fatal(err)
	}
	want := `2026-03-01 00:00 to 2026-03-31 12:00; the daemon ran for 10:00:00 with 2 GPUs; only programs of this user
PROGRAM  USER   GPU TIME   SHARE     OPEN   WAITED  REQUESTS  SLO KEPT
=1+1<b>  alice   5:00:00  25.0 %  8:00:00  0:01:01    12,345    99.5 %
(other)  alice   1:00:00   5.0 %  0:00:00  0:00:00         0         -
total            6:00:00  30.0 %  8:00:00  0:01:01    12,345    99.5 %
`
	if text.String() != want {
		t.Errorf("got\n%swant\n%s", &text, want)
	}
	if err := writeReportCSV(&csv, r); err != nil {
		t.Fatal(err)
	}
	want = `program,user,gpu_seconds,share,open_seconds,waited_seconds,requests,judged,met
'=1+1<b>,alice,18000.000,0.250000,28800.000,61.000,12345,1000,995
,alice,3600.000,0.050000,0.000,0.000,0,0,0
`
	if csv.String() != want {
		t.Errorf("got\n%swant\n%s", &csv, want)
	}
	if err := reportPage(r, time.UTC).Write(&page); err != nil {
		t.Fatal(err)
	}
	got := page.String()
	if !strings.Contains(got, "=1&#43;1&lt;b&gt;") || !strings.Contains(got, "99.5 %") || strings.Contains(got, "<b>") || strings.Contains(got, "http://") || strings.Contains(got, "https://") || strings.Contains(got, "<script src") {
		t.Errorf("%s", got)
	}
}
