// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"fmt"
	"io"
	"time"

	"xsched/internal/bench"
	"xsched/internal/report"
)

// drawnSpan is the length of a timeline.
const drawnSpan = 100 * time.Millisecond

// headline compares the daemon, the usual scheduler, with none.
func (m *Result) headline() string {
	var native, global *Row
	for _, row := range m.Rows {
		switch row.Name {
		case SchedulerNative:
			native = row
		case SchedulerGLB:
			global = row
		}
	}
	if native == nil || global == nil || native.High == nil || global.High == nil {
		return ""
	}
	return report.Headline(SchedulerGLB, SchedulerNative, report.Outcome{Before: native.High.P99, After: global.High.P99, Kept: global.Kept})
}

// WriteReport writes the self-contained HTML page.
func (m *Result) WriteReport(w io.Writer) error {
	p := &report.Page{Title: "Who schedules a program of two processes", Headline: m.headline()}
	p.Add(report.Block{
		Text: m.workload(),
		Soft: fmt.Sprintf("%s · %s%s", m.Device, m.Machine.String(), m.Date.Format(", 2006-01-02 15:04 MST")),
		List: []string{
			"native: no scheduler; the hardware timeslices.",
			"GLB: the daemon. The headline compares it with native.",
			"LCL: a private daemon, as started by xsched run --local.",
			"APP: the program itself, through the API; submitted work runs to completion.",
		},
	})
	var curves []report.Curve
	var pareto []report.Series
	native := m.Rows[0]
	for i, row := range m.Rows {
		class := report.ModeClass(row.Name, 2+i)
		curves = append(curves, bench.Curve(row.Name, class, row.latencies))
		if row.High != nil && native.High != nil && native.High.P99 > 0 {
			pareto = append(pareto, report.Series{Name: row.Name, Class: class, Points: []report.Point{{X: row.High.P99 / native.High.P99, Y: row.Kept, Name: m.Policy}}})
		}
	}
	p.AddChart(report.CDF("Latency distribution", "latency of a request, ms (log)", curves),
		"All requests. Further left is faster. The vertical axis is stretched towards 100 % to show the tail.")
	for _, row := range m.Rows {
		if len(row.lanes) > 0 {
			p.AddChart(report.Timeline("Who has the GPU: "+row.Name, drawnSpan, row.lanes), "")
		}
	}
	p.AddChart(report.Scatter("Latency against throughput", "P99 of a request, relative to native (log)", "throughput that the background keeps", report.WholePercent, pareto),
		"The upper left is best: low latency and no lost throughput.")
	p.Add(report.Block{Heading: "All schedulers", Table: m.table()})
	proof := &report.Table{Left: 3, Head: []string{"scheduler", "check", "evidence"}}
	for _, row := range m.Rows {
		for _, c := range row.Checks {
			proof.Add(row.Name, c.Name, c.Detail)
		}
	}
	p.Add(report.Block{Heading: "Proof", Table: proof})
	return p.Write(w)
}

// picture keeps the lanes of the middle of a turn. The background has work all the time; the service
// has it from the arrival of a request to its end.
func picture(segments []bench.Segment, requests []bench.Sample, turn bench.Window, high, low int) []report.Lane {
	middle := turn.From + (turn.To-turn.From-int64(drawnSpan))/2
	w := bench.Window{From: middle, To: middle + int64(drawnSpan)}
	spans := bench.Spans(requests)
	return []report.Lane{{
		Name: "requests", Class: "c0", Requests: w.Requests(spans),
		Pieces: append(w.Pieces(spans, report.Waiting), w.OnDevice(segments, func(pid int) bool { return pid == high })...),
	}, {
		Name: "background", Class: "low",
		Pieces: append(w.Pieces([]bench.Window{w}, report.Waiting), w.OnDevice(segments, func(pid int) bool { return pid == low })...),
	}}
}
