// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"xsched/internal/bench"
	"xsched/internal/report"
)

// rawMode is what the charts need of a mode; it is in recordings, not in the JSON.
type rawMode struct {
	Latencies []time.Duration // ascending
	Lanes     []report.Lane   // of a short window
	Span      time.Duration
}

// recording is a result with what its charts need.
type recording struct {
	Result *Result
	Raw    []map[string]*rawMode // by scenario
}

// WriteRecording writes the result so that its report can be drawn again.
func (r *Result) WriteRecording(w io.Writer) error {
	out := recording{Result: r}
	for i := range r.Scenarios {
		out.Raw = append(out.Raw, r.Scenarios[i].raw)
	}
	return json.NewEncoder(w).Encode(out)
}

// ReadRecording reads what WriteRecording wrote.
func ReadRecording(from io.Reader) (*Result, error) {
	in := recording{Result: &Result{}}
	if err := json.NewDecoder(from).Decode(&in); err != nil {
		return nil, fmt.Errorf("read recording: %w", err)
	}
	if len(in.Raw) != len(in.Result.Scenarios) {
		return nil, fmt.Errorf("read recording: %d of %d scenarios have charts", len(in.Raw), len(in.Result.Scenarios))
	}
	for i := range in.Raw {
		in.Result.Scenarios[i].raw = in.Raw[i]
	}
	return in.Result, nil
}

// WriteReport writes the self-contained HTML page.
func (r *Result) WriteReport(w io.Writer) error {
	p := &report.Page{Title: "One GPU, a latency-critical service and best-effort tenants"}
	var outcomes []report.Outcome
	for i := range r.Scenarios {
		if o, ok := r.Scenarios[i].outcome(); ok {
			outcomes = append(outcomes, o)
		}
	}
	p.Headline = report.Headline("", ModeNative, outcomes...)
	p.Add(report.Block{
		Text: fmt.Sprintf("The high-priority tenant submits one %s kernel %g times a second. Low-priority tenants run %s kernels back to back. "+
			"The report shows the latency of a request and the throughput that the low tenants keep.",
			bench.Micros(r.Workload.HighUS), r.Workload.HighRate, bench.Micros(r.Workload.LowUS)),
		Soft: fmt.Sprintf("%s · %s · order seed %d", r.deviceText(), r.machineText(), r.Seed),
	})
	if r.Device == bench.VirtualDevice {
		p.Add(report.Block{Notice: "Measured on XSched's virtual GPU: shim, daemon, policies and driver calls are the real ones; the device is a process whose " +
			"kernels take a stated device time. The figures show scheduling, not the speed of any chip."})
	}
	for i := range r.Scenarios {
		r.addScenario(p, &r.Scenarios[i])
	}
	if r.Memory != nil {
		r.Memory.addTo(p)
	}
	p.Add(report.Block{Section: "How to read this report", List: []string{
		"Modes. alone: the low tenants are paused. native: XSched is off; the hardware shares the GPU in timeslices of 2 ms. xsched-lv1: further launches of the low " +
			"tenants are held; running kernels continue. xsched-lv2 and xsched-lv3: low tenants are preempted in mid-kernel.",
		"The headline compares the deepest level with native. With several scenarios it states the worst of them.",
		"Each scenario starts its tenants once and switches the modes live, in short blocks in random order. Drift of the machine affects all modes alike. The edges of a block are dropped.",
		"Latency counts from the time a request was due, so queueing is included. Percentiles are exact samples (nearest rank).",
		"GPU wait is the time from submitting a kernel to its first instruction, from the device's own record. It excludes CPU noise.",
		"Low kept is the number of iterations of all low tenants in the measured time, relative to one low tenant alone. The high tenant's own GPU time limits it.",
		"A context switch between processes costs the device about 0.2 ms.",
	}})
	return p.Write(w)
}

// outcome compares the deepest level with native; false if one of them was not measured.
func (s *Scenario) outcome() (report.Outcome, bool) {
	native, deep := s.high(ModeNative), s.high(s.deep())
	if native == nil || deep == nil {
		return report.Outcome{}, false
	}
	o := report.Outcome{Before: native.P99, After: deep.P99, Kept: -1}
	if low := s.Modes[s.deep()].Low; low != nil {
		o.Kept = low.Kept
	}
	return o, true
}

func (r *Result) addScenario(p *report.Page, s *Scenario) {
	block := report.Block{Section: s.Name}
	if o, ok := s.outcome(); ok {
		block.Lead = report.Headline("", ModeNative, o) + "."
	}
	alone, native, deep := s.high(ModeAlone), s.high(ModeNative), s.high(s.deep())
	if alone != nil && native != nil && deep != nil {
		ms := func(l *report.Latency) string { return report.Short(l.P99) + " ms" }
		block.Cards = []report.Card{{Value: ms(alone), Name: "P99 alone"}, {Value: ms(native), Name: "P99 native"}, {Value: ms(deep), Name: "P99 with XSched " + levelText(s.deep())}}
		if m := s.Modes[s.deep()]; m.Low != nil && m.GPU != nil {
			block.Cards = append(block.Cards, report.Card{Value: report.Percent(m.Low.Kept), Name: "kept by the low tenants, of at most " + report.Percent(1-m.GPU.High)})
		}
	}
	p.Add(block)
	var curves []report.Curve
	var dists, split []report.Row
	var pareto []report.Series
	for i, name := range s.modes() {
		class := report.ModeClass(name, i)
		row := report.Row{Name: name, Class: class}
		if raw := s.raw[name]; raw != nil {
			var h report.Histogram
			for _, d := range raw.Latencies {
				h.Add(uint64(d / time.Microsecond))
			}
			curves = append(curves, bench.Curve(name, class, raw.Latencies))
			row.Dist = h.Distribution()
			dists = append(dists, row)
		}
		m := s.Modes[name]
		if m.High != nil && m.Low != nil && alone != nil && alone.P99 > 0 {
			pareto = append(pareto, report.Series{Name: name, Class: class, Points: []report.Point{{X: m.High.P99 / alone.P99, Y: m.Low.Kept, Name: s.Name}}})
		}
		if g := m.GPU; g != nil {
			row.Parts = []report.Part{
				{Value: g.High, Class: "c0", Name: "high"},
				{Value: g.Low, Class: "low", Name: "low"},
				{Value: g.Switching, Class: "switch", Name: "context switches"},
				{Value: g.Idle, Class: "idle", Name: "idle"},
			}
			split = append(split, row)
		}
	}
	p.AddChart(report.CDF("Latency distribution", "latency of a request, ms (log)", curves),
		"All requests. Further left is faster. The vertical axis is stretched towards 100 % to show the tail.")
	for _, name := range s.modes() {
		if raw := s.raw[name]; raw != nil && raw.Span > 0 {
			p.AddChart(report.Timeline("Who has the GPU: "+name, raw.Span, raw.Lanes), "")
		}
	}
	p.AddChart(report.Scatter("Latency against throughput", "P99 of a request, relative to alone (log)", "throughput that the low tenants keep", report.WholePercent, pareto),
		"The upper left is best: low latency and no lost throughput.")
	p.Add(report.Block{Heading: "All modes", Table: s.table()}, report.Block{List: r.remarks(s)})
	p.AddChart(report.Distributions("Latency histogram", "latency of a request (log)", report.Micros, dists),
		"The same requests, one row per mode, each scaled to its highest bar. The vertical line is the P99.")
	p.AddChart(report.Bars("GPU time", "", 0, 1, false, report.WholePercent, split), "From the device's own record.")
	addProof(p, s.Proof.Checks)
}

func addProof(p *report.Page, checks []bench.Check) {
	proof := &report.Table{Left: 3, Head: []string{"check", "", "evidence"}}
	for _, c := range checks {
		mark := "✗"
		if c.OK {
			mark = "✓"
		}
		proof.Add(c.Name, mark, c.Detail)
	}
	p.Add(report.Block{Heading: "Proof", Table: proof, Soft: "A failed check suppresses the report."})
}

// lanesOf turns the device's record of a window into lanes: running, and ready but waiting. A low
// tenant is loaded all the time in every mode but alone. The high tenant waits from a kernel's
// submission to its start; requests last from their arrival to their end, as the tenant sees them.
func lanesOf(tenants []*bench.Tenant, segs []bench.Segment, waits []bench.Wait, requests []bench.Sample, w bench.Window, alone bool) []report.Lane {
	var lanes []report.Lane
	for i, t := range tenants {
		mine := func(pid int) bool { return pid == t.PID() }
		l := report.Lane{Name: t.Name, Class: "low"}
		switch {
		case i == 0:
			l.Class, l.Requests = "c0", w.Requests(bench.Spans(requests))
			for _, k := range waits {
				if mine(k.PID) {
					l.Pieces = append(l.Pieces, w.Pieces([]bench.Window{{From: k.Submitted, To: k.Started}}, report.Waiting)...)
				}
			}
		case !alone: // drawn below what follows
			l.Pieces = w.Pieces([]bench.Window{w}, report.Waiting)
		}
		l.Pieces = append(l.Pieces, w.OnDevice(segs, mine)...)
		lanes = append(lanes, l)
	}
	return lanes
}
