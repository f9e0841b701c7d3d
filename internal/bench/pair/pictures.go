// SPDX-License-Identifier: Apache-2.0

package pair

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"xsched/internal/bench"
	"xsched/internal/report"
)

// pictures is what the charts need; it is in recordings, not in the JSON.
type pictures struct {
	Requests        []time.Duration
	Window          bench.Window    // of the timeline
	Segments        []bench.Segment // the device's own record; empty on a real GPU
	Pauses, Busies  []bench.Window  // suspensions of the offline program, requests of the online one
	Online, Offline map[int]bool    // processes
}

// recording is a report with what its charts need.
type recording struct {
	Report *Report
	Raw    *pictures
}

// WriteRecording writes the report so that its page can be drawn again.
func (r *Report) WriteRecording(w io.Writer) error {
	return json.NewEncoder(w).Encode(recording{r, &r.raw})
}

// ReadRecording reads what WriteRecording wrote.
func ReadRecording(from io.Reader) (*Report, error) {
	var in recording
	if err := json.NewDecoder(from).Decode(&in); err != nil {
		return nil, fmt.Errorf("read recording: %w", err)
	}
	if in.Report == nil || in.Report.Requests == nil || in.Raw == nil {
		return nil, errors.New("read recording: no report with requests and charts")
	}
	in.Report.raw = *in.Raw
	return in.Report, nil
}

// drawnSpan is the length of the timeline.
const drawnSpan = 300 * time.Millisecond

// draw keeps the device's record of the last moments, which it forgets later.
func (c *colocation) draw(ctx context.Context) error {
	c.drawn = bench.Window{From: max(c.together.from, c.together.to-int64(drawnSpan)), To: c.together.to}
	if c.rig.Device == nil {
		return nil
	}
	var err error
	if c.segments, _, err = c.rig.Device.Record(ctx, c.drawn); err != nil {
		return fmt.Errorf("read the device's record: %w", err)
	}
	return nil
}

// lanes returns both programs. Suspensions and waits lie below what the device recorded.
func (p *pictures) lanes() []report.Lane {
	waiting := report.Waiting
	if len(p.Segments) == 0 { // without a record the time of a request is all that is known
		waiting = report.Running
	}
	return []report.Lane{{
		Name: "online", Class: "c0", Requests: p.Window.Requests(p.Busies),
		Pieces: append(p.Window.Pieces(p.Busies, waiting), p.Window.OnDevice(p.Segments, func(pid int) bool { return p.Online[pid] })...),
	}, {
		Name: "offline", Class: "low",
		Pieces: append(p.Window.Pieces(p.Pauses, report.Suspended), p.Window.OnDevice(p.Segments, func(pid int) bool { return p.Offline[pid] })...),
	}}
}

// headline states whether the targets were met, and the two figures that matter.
func (r *Report) headline() string {
	missed := 0
	for _, t := range r.Targets {
		if !t.Met {
			missed++
		}
	}
	out := fmt.Sprintf("All %d targets met", len(r.Targets))
	if missed > 0 {
		out = fmt.Sprintf("%d of %d targets missed", missed, len(r.Targets))
	}
	if r.Requests != nil {
		out += fmt.Sprintf(": online P99 %.2f ms", r.Requests.P99)
	}
	if r.Throughput.Measured {
		out += "; offline keeps " + report.RoundPercent(1-r.Throughput.Loss)
	}
	return out
}

// WriteHTML writes the self-contained page.
func (r *Report) WriteHTML(w io.Writer) error {
	p := &report.Page{Title: "Online and offline on one GPU", Headline: r.headline()}
	t := r.Throughput
	p.Add(report.Block{
		Text: fmt.Sprintf("Every request of the online program suspends the offline program, here at Lv%d (route: %s).", r.Level, r.Route),
		Soft: fmt.Sprintf("%s · %s · %s", r.where(), r.Machine.String(), r.Date.Format("2006-01-02 15:04 MST")),
		List: []string{"online: " + report.Clean(r.Online), "offline: " + report.Clean(r.Offline)},
	})
	if notice := r.notice(); notice != "" {
		p.Add(report.Block{Notice: notice})
	}
	p.AddChart(report.CDF("Latency distribution", "latency of an online request, ms (log)", []report.Curve{bench.Curve("online", "c0", r.raw.Requests)}),
		"All requests. Further left is faster. The vertical axis is stretched towards 100 % to show the tail.")
	if span := r.raw.Window.Length(); span > 0 {
		p.AddChart(report.Timeline("Who has the GPU: the last moments", span, r.raw.lanes()), "")
	}
	if t.Measured && r.Requests != nil {
		point := report.Point{X: r.Requests.P99 / onlineTarget, Y: 1 - t.Loss, Name: "this run"}
		p.AddChart(report.Scatter("Latency against throughput", fmt.Sprintf("P99 of an online request, relative to the target of %g ms (log)", onlineTarget),
			"throughput that the offline program keeps", report.WholePercent, []report.Series{{Name: "this run", Class: "c0", Points: []report.Point{point}}}),
			"The upper left is best: low latency and no lost throughput.")
	}
	p.Add(report.Block{Heading: "Targets", Table: r.table()}, report.Block{List: r.Advice()}, report.Block{Heading: "Measured", List: r.lines()})
	return p.Write(w)
}
