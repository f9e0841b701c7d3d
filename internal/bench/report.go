// SPDX-License-Identifier: Apache-2.0

package bench

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"

	"xsched/internal/chart"
)

//go:embed report.gohtml
var reportPage string

// reportView is what the template sees.
type reportView struct {
	*Result
	Machine   string
	Date      string
	Virtual   bool
	Scenarios []scenarioView
}

type scenarioView struct {
	*Scenario
	Rows      []rowView
	Headline  *headline
	CDF, Hist chart.Chart
	GPU       *chart.Chart
	Timelines []timelineView
	Remarks   []string
	Modes     []string
}

type rowView struct {
	Name                             string
	P50, P95, P99, Max, Ratio        string
	N                                int
	Wait                             string
	Kept, High, Low, Switching, Idle string
	Preemptions                      uint64
}

// headline is the scenario in three numbers.
type headline struct{ Alone, Native, Lv3, Kept, Ideal string }

type timelineView struct {
	Mode  string
	Chart chart.Chart
}

// WriteReport writes the self-contained HTML page.
func (r *Result) WriteReport(w io.Writer) error {
	t, err := chart.Templates(template.New("report"))
	if err == nil {
		t, err = t.Funcs(template.FuncMap{"us": usText}).Parse(reportPage)
	}
	if err != nil {
		return fmt.Errorf("parse report template: %w", err)
	}
	v := reportView{Result: r, Machine: r.machineText(), Date: r.Date.Format("2006-01-02 15:04 MST"), Virtual: r.Device == VirtualDevice}
	for i := range r.Scenarios {
		v.Scenarios = append(v.Scenarios, r.scenarioView(&r.Scenarios[i]))
	}
	if err := t.Execute(w, v); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (r *Result) scenarioView(s *Scenario) scenarioView {
	v := scenarioView{Scenario: s, CDF: cdfChart(s), Hist: histogramChart(s), Remarks: r.remarks(s), Modes: s.modes()}
	if c := splitChart(s); len(c.Bars) > 0 {
		v.GPU = &c
	}
	for _, name := range s.modes() {
		v.Rows = append(v.Rows, s.rowView(name))
		if c, ok := timelineChart(s, name, s.lanes); ok {
			v.Timelines = append(v.Timelines, timelineView{name, c})
		}
	}
	alone, native, lv3 := s.high(ModeAlone), s.high(ModeNative), s.high(s.deep())
	if alone != nil && native != nil && lv3 != nil {
		v.Headline = &headline{Alone: short(alone.P99), Native: short(native.P99), Lv3: short(lv3.P99)}
		if m := s.Modes[s.deep()]; m.Low != nil && m.GPU != nil {
			v.Headline.Kept = fmt.Sprintf("%.1f", 100*m.Low.Kept)
			v.Headline.Ideal = fmt.Sprintf("%.1f", 100*(1-m.GPU.High))
		}
	}
	return v
}

func (s *Scenario) rowView(name string) rowView {
	m := s.Modes[name]
	row := rowView{
		Name: name, P50: "–", P95: "–", P99: "–", Max: "–", Ratio: "–", Wait: "–", Kept: "–",
		High: "–", Low: "–", Switching: "–", Idle: "–", Preemptions: m.Preemptions,
	}
	if h := m.High; h != nil {
		row.P50, row.P95, row.P99, row.Max, row.N = fmt.Sprintf("%.3f", h.P50), fmt.Sprintf("%.3f", h.P95),
			fmt.Sprintf("%.3f", h.P99), fmt.Sprintf("%.3f", h.Max), h.N
		if a := s.high(ModeAlone); a != nil && a.P99 > 0 {
			row.Ratio = fmt.Sprintf("%.1f×", h.P99/a.P99)
		}
	}
	if m.Wait != nil {
		row.Wait = fmt.Sprintf("%.3f", m.Wait.P99)
	}
	if m.Low != nil {
		row.Kept = fmt.Sprintf("%.1f %%", 100*m.Low.Kept)
	}
	if g := m.GPU; g != nil {
		pc := func(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }
		row.High, row.Low, row.Switching, row.Idle = pc(g.High), pc(g.Low), pc(g.Switching), pc(g.Idle)
	}
	return row
}
