// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"xsched/internal/report"
	"xsched/internal/sim/fleet"
)

// The studied fleets: the search goes up to their size, and a mix fills this part of it if each replica
// has a GPU. Sensitivity and sweep are of one with this number of nodes.
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
	Name   string       `json:"name"`
	About  string       `json:"about"`
	Fleets []fleetNeeds `json:"fleets"` // by size
	// Others are needs of exclusive use, of MPS and of XSched if something else is different.
	Others []variant `json:"others"`
}

// fleetNeeds are those of a mix that fills a fleet.
type fleetNeeds struct {
	Nodes int             `json:"nodes"`
	Pods  int             `json:"pods"`
	Needs map[string]need `json:"needs"`
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
	MPS       int    `json:"mps"`
	XSched    int    `json:"xsched"`
}

// options are those of a mix that fills a fleet of n nodes.
func options(m *fleet.Mix, n int) fleet.Options {
	return fleet.Options{
		Config: fleet.Config{Nodes: n, GPUs: perNode, Cost: 1}, Sharings: fleet.Sharings(), Mix: m, Load: size, Seed: 1,
	}
}

// needs compares all modes on a mix.
func needs(ctx context.Context, m *fleet.Mix, n int) (*fleetNeeds, error) {
	s, err := fleet.Compare(ctx, options(m, n))
	if err != nil {
		return nil, err
	}
	out := &fleetNeeds{Nodes: n, Pods: s.Pods, Needs: map[string]need{}}
	for i := range s.Needs {
		n := &s.Needs[i]
		one := need{GPUs: n.GPUs, Rule: n.Rule}
		if r := n.Result; r != nil {
			one.Busy, one.Worst, one.WaitP95, one.Stretch, one.Cost = r.Busy, r.WorstP99, r.WaitP95, r.Stretch, r.Cost
		}
		out.Needs[string(n.Sharing)] = one
	}
	return out, nil
}

// changes are the variants of the sensitivity.
var changes = []struct {
	name   string
	change func(*fleet.Options)
}{
	{"GPUs with 80 GiB", func(o *fleet.Options) { o.Config.Memory = 80 }},
	{"GPUs with 192 GiB", func(o *fleet.Options) { o.Config.Memory = 192 }},
	{"switching costs -50 %", func(o *fleet.Options) { o.Config.Cost = 0.5 }},
	{"switching costs +50 %", func(o *fleet.Options) { o.Config.Cost = 1.5 }},
	{"seed 2", func(o *fleet.Options) { o.Seed = 2 }},
	{"seed 3", func(o *fleet.Options) { o.Seed = 3 }},
	{"emptiest node first", func(o *fleet.Options) { o.Config.Score = fleet.LeastAllocated }},
	{"services evict jobs", func(o *fleet.Options) { o.Config.Preempt = true }},
}

// simulate makes all figures, the mixes side by side.
func simulate(ctx context.Context) (*figures, error) {
	mixes := fleet.Mixes()
	f := &figures{Mixes: make([]mixFigures, len(mixes))}
	errs := make([]error, len(mixes))
	var wg sync.WaitGroup
	cores := make(chan bool, runtime.GOMAXPROCS(0))
	for i := range mixes {
		wg.Go(func() {
			cores <- true
			defer func() { <-cores }()
			errs[i] = f.Mixes[i].simulate(ctx, &mixes[i])
			fmt.Fprintln(os.Stderr, mixes[i].Name)
		})
	}
	wg.Wait()
	if err := cmp.Or(errs...); err != nil {
		return nil, err
	}
	m, err := fleet.FindMix(swept)
	if err != nil {
		return nil, err
	}
	o := options(m, nodes)
	o.Loads = []float64{0.25, 0.5, 0.75, 1}
	s, err := fleet.Compare(ctx, o)
	if err != nil {
		return nil, err
	}
	f.Sweep = s.Sweep
	return f, nil
}

// simulate makes the figures of one mix.
func (f *mixFigures) simulate(ctx context.Context, m *fleet.Mix) error {
	f.Name, f.About = m.Name, m.About
	for _, n := range sizes {
		one, err := needs(ctx, m, n)
		if err != nil {
			return err
		}
		f.Fleets = append(f.Fleets, *one)
	}
	for _, c := range changes {
		o := options(m, nodes)
		o.Sharings = []fleet.Sharing{fleet.Exclusive, fleet.MPS, fleet.XSched}
		c.change(&o)
		s, err := fleet.Compare(ctx, o)
		if err != nil {
			return err
		}
		f.Others = append(f.Others, variant{c.name, s.Of(fleet.Exclusive).GPUs, s.Of(fleet.MPS).GPUs, s.Of(fleet.XSched).GPUs})
	}
	return nil
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
	for name, block := range map[string]string{
		"needs": f.needsTable(large), "sizes": f.sizesTable(), "rules": f.rulesTable(), "sensitivity": f.sensitivityTable(),
	} {
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

// rulesTable has the rule with which each mode needs the fewest GPUs of a large fleet.
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
			b.WriteString(" " + cmp.Or(m.of(large).Needs[string(how)].Rule, "-") + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func (f *figures) sensitivityTable() string {
	var b strings.Builder
	b.WriteString("| mix | as above |")
	for _, c := range changes {
		b.WriteString(" " + c.name + " |")
	}
	b.WriteString("\n" + strings.Repeat("|---", len(changes)+2) + "|\n")
	for _, m := range f.Mixes {
		base := m.of(nodes).Needs
		all := append([]variant{{"", base[string(fleet.Exclusive)].GPUs, base[string(fleet.MPS)].GPUs, base[string(fleet.XSched)].GPUs}}, m.Others...)
		fmt.Fprintf(&b, "| %s |", m.Name)
		for _, v := range all {
			fmt.Fprintf(&b, " %s, %s |", part(v.XSched, v.Exclusive), part(v.MPS, v.Exclusive))
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
		needs := m.of(large).Needs
		for _, how := range fleet.Sharings() {
			v := float64(needs[string(how)].GPUs)
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
		report.Bars(fmt.Sprintf("GPUs needed, by mix, of %s nodes with %d GPUs", report.Count(large), perNode), "GPUs", 0, most*1.15, false, report.Count, rows),
		report.Lines(fmt.Sprintf("GPUs needed against load, mix %s, of %d nodes", swept, nodes), "load, relative to the mix", "GPUs", 0, report.Plain, report.Count, lines),
	}, func(c *report.Chart) bool { return c == nil })
}
