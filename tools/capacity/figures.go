// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"xsched/internal/report"
	"xsched/internal/sim/fleet"
)

// The studied fleet: the search goes up to this size, and a mix fills this part of it if each replica
// has a GPU.
const (
	nodes   = 48
	perNode = 8
	size    = 0.75
	swept   = "mixed"
)

// figures are the results that the page shows.
type figures struct {
	Mixes []mixFigures  `json:"mixes"`
	Sweep []fleet.Point `json:"sweep"`
}

// mixFigures are those of one mix.
type mixFigures struct {
	Name  string          `json:"name"`
	About string          `json:"about"`
	Needs map[string]need `json:"needs"`
	// Others are needs of exclusive use and of XSched if something else is different.
	Others []variant `json:"others"`
}

type need struct {
	GPUs    int     `json:"gpus"`
	Rule    string  `json:"rule"`
	Busy    float64 `json:"busy"`
	Worst   float64 `json:"worst_p99_of_target"`
	WaitP95 float64 `json:"wait_p95_s"`
	Stretch float64 `json:"stretch"`
	Cost    float64 `json:"cost_of_sharing"`
}

type variant struct {
	Name      string `json:"name"`
	Exclusive int    `json:"exclusive"`
	XSched    int    `json:"xsched"`
}

func options(m *fleet.Mix) fleet.Options {
	return fleet.Options{
		Config: fleet.Config{Nodes: nodes, GPUs: perNode, Cost: 1}, Sharings: fleet.Sharings(), Mix: m, Load: size, Seed: 1,
	}
}

// needs compares all modes on a mix.
func needs(ctx context.Context, m *fleet.Mix) (map[string]need, error) {
	s, err := fleet.Compare(ctx, options(m))
	if err != nil {
		return nil, err
	}
	out := map[string]need{}
	for i := range s.Needs {
		n := &s.Needs[i]
		one := need{GPUs: n.GPUs, Rule: n.Rule}
		if r := n.Result; r != nil {
			one.Busy, one.Worst, one.WaitP95, one.Stretch, one.Cost = r.Busy, r.WorstP99, r.WaitP95, r.Stretch, r.Cost
		}
		out[string(n.Sharing)] = one
	}
	return out, nil
}

// changes are the variants of the sensitivity.
var changes = []struct {
	name   string
	change func(*fleet.Options)
}{
	{"switching costs -50 %", func(o *fleet.Options) { o.Config.Cost = 0.5 }},
	{"switching costs +50 %", func(o *fleet.Options) { o.Config.Cost = 1.5 }},
	{"seed 2", func(o *fleet.Options) { o.Seed = 2 }},
	{"seed 3", func(o *fleet.Options) { o.Seed = 3 }},
	{"emptiest node first", func(o *fleet.Options) { o.Config.Score = fleet.LeastAllocated }},
	{"services evict jobs", func(o *fleet.Options) { o.Config.Preempt = true }},
}

// simulate makes all figures.
func simulate(ctx context.Context) (*figures, error) {
	f := &figures{}
	for _, m := range fleet.Mixes() {
		fmt.Fprintln(os.Stderr, m.Name)
		all, err := needs(ctx, &m)
		if err != nil {
			return nil, err
		}
		one := mixFigures{Name: m.Name, About: m.About, Needs: all}
		for _, c := range changes {
			o := options(&m)
			o.Sharings = []fleet.Sharing{fleet.Exclusive, fleet.XSched}
			c.change(&o)
			s, err := fleet.Compare(ctx, o)
			if err != nil {
				return nil, err
			}
			one.Others = append(one.Others, variant{c.name, s.Of(fleet.Exclusive).GPUs, s.Of(fleet.XSched).GPUs})
		}
		f.Mixes = append(f.Mixes, one)
		if m.Name == swept {
			o := options(&m)
			o.Loads = []float64{0.25, 0.5, 0.75, 1}
			s, err := fleet.Compare(ctx, o)
			if err != nil {
				return nil, err
			}
			f.Sweep = s.Sweep
		}
	}
	return f, nil
}

const (
	page    = "docs/kubernetes/capacity.md"
	picture = "docs/kubernetes/capacity.svg"
)

// draw returns the page with its tables, and the picture.
func (f *figures) draw(root string) (map[string][]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		return nil, fmt.Errorf("read page: %w", err)
	}
	for name, block := range map[string]string{"needs": f.needsTable(), "rules": f.rulesTable(), "sensitivity": f.sensitivityTable()} {
		begin := "<!-- by make capacity: " + name + " -->\n"
		head, rest, found := strings.Cut(string(text), begin)
		_, tail, ends := strings.Cut(rest, "<!-- end -->\n")
		if !found || !ends {
			return nil, fmt.Errorf("%s has no block %q", page, name)
		}
		text = []byte(head + begin + block + "<!-- end -->\n" + tail)
	}
	var b bytes.Buffer
	if err := report.WriteSVG(&b, "GPUs that a day needs, with every service within its target", "Simulated; shorter is better. The mixes are explained in the text.", f.charts()...); err != nil {
		return nil, err
	}
	return map[string][]byte{page: text, picture: b.Bytes()}, nil
}

func count(gpus int) string {
	if gpus == 0 {
		return fmt.Sprintf("> %d", nodes*perNode)
	}
	return strconv.Itoa(gpus)
}

func (f *figures) needsTable() string {
	var b strings.Builder
	b.WriteString("| mix | load | exclusive | time-slicing | MPS | XSched | XSched of exclusive | GPU busy: exclusive, XSched |\n|---|---|---|---|---|---|---|---|\n")
	for _, m := range f.Mixes {
		alone, ours := m.Needs[string(fleet.Exclusive)], m.Needs[string(fleet.XSched)]
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | **%s** | %s | %s, %s |\n", m.Name, m.About, count(alone.GPUs), count(m.Needs[string(fleet.TimeSlicing)].GPUs),
			count(m.Needs[string(fleet.MPS)].GPUs), count(ours.GPUs), part(ours.GPUs, alone.GPUs), report.RoundPercent(alone.Busy), report.RoundPercent(ours.Busy))
	}
	return b.String()
}

// rulesTable has the rule with which each mode needs the fewest GPUs.
func (f *figures) rulesTable() string {
	shared := []fleet.Sharing{fleet.TimeSlicing, fleet.MPS, fleet.XSched}
	var b strings.Builder
	b.WriteString("| mix |")
	for _, how := range shared {
		b.WriteString(" " + string(how) + " |")
	}
	b.WriteString("\n" + strings.Repeat("|---", len(shared)+1) + "|\n")
	for _, m := range f.Mixes {
		b.WriteString("| " + m.Name + " |")
		for _, how := range shared {
			b.WriteString(" " + cmp.Or(m.Needs[string(how)].Rule, "-") + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func part(gpus, of int) string {
	if gpus == 0 || of == 0 {
		return "-"
	}
	return report.RoundPercent(float64(gpus) / float64(of))
}

func (f *figures) sensitivityTable() string {
	var b strings.Builder
	b.WriteString("| mix | as above |")
	for _, c := range changes {
		b.WriteString(" " + c.name + " |")
	}
	b.WriteString("\n" + strings.Repeat("|---", len(changes)+2) + "|\n")
	for _, m := range f.Mixes {
		fmt.Fprintf(&b, "| %s | %s |", m.Name, part(m.Needs[string(fleet.XSched)].GPUs, m.Needs[string(fleet.Exclusive)].GPUs))
		for _, v := range m.Others {
			fmt.Fprintf(&b, " %s |", part(v.XSched, v.Exclusive))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// colour is that of the other reports.
func colour(how fleet.Sharing) string {
	return report.ModeClass(map[fleet.Sharing]string{fleet.Exclusive: "alone", fleet.TimeSlicing: "native", fleet.MPS: "mps", fleet.XSched: "xsched"}[how], 0)
}

func (f *figures) charts() []*report.Chart {
	var rows []report.Row
	most := 1.0
	for _, m := range f.Mixes {
		for _, how := range fleet.Sharings() {
			v := float64(m.Needs[string(how)].GPUs)
			most = max(most, v)
			rows = append(rows, report.Row{Group: m.Name, Name: string(how), Parts: []report.Part{{Value: v, Class: colour(how), Name: string(how)}}})
		}
	}
	var lines []report.Series
	for _, how := range fleet.Sharings() {
		s := report.Series{Name: string(how), Class: colour(how)}
		for _, p := range f.Sweep {
			if p.GPUs[how] > 0 {
				s.Points = append(s.Points, report.Point{X: p.Load, Y: float64(p.GPUs[how])})
			}
		}
		lines = append(lines, s)
	}
	return slices.DeleteFunc([]*report.Chart{
		report.Bars("GPUs needed, by mix", "GPUs", 0, most*1.15, false, report.Count, rows),
		report.Lines("GPUs needed against load, mix "+swept, "load, relative to the mix above", "GPUs", 0, report.Plain, report.Count, lines),
	}, func(c *report.Chart) bool { return c == nil })
}
