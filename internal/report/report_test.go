// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestQuantileIsNearestRank(t *testing.T) {
	var d []time.Duration
	for i := 1; i <= 100; i++ {
		d = append(d, time.Duration(i)*time.Millisecond)
	}
	for _, c := range []struct {
		q    float64
		want int
	}{{0, 1}, {0.001, 1}, {0.5, 50}, {0.95, 95}, {0.99, 99}, {0.995, 100}, {1, 100}} {
		if got := Quantile(d, c.q); got != time.Duration(c.want)*time.Millisecond {
			t.Errorf("quantile %g = %v, want %d ms", c.q, got, c.want)
		}
	}
	if got := Quantile(d[:1], 0.99); got != time.Millisecond {
		t.Errorf("quantile of one sample = %v", got)
	}
	if Quantile([]int(nil), 0.99) != 0 || Summarize(nil) != nil {
		t.Error("no samples have a quantile")
	}
	if l := Summarize([]time.Duration{3e6, 1e6, 2e6}); l.N != 3 || l.P50 != 2 || l.P99 != 3 || l.Max != 3 || l.Mean != 2 {
		t.Errorf("summary = %+v", l)
	}
}

func TestHistogram(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var h, a, b Histogram
	var all []uint64
	for i := range 20_000 {
		v := uint64(math.Exp(r.Float64()*20 + 2))
		all = append(all, v)
		h.Add(v)
		if i%2 == 0 {
			a.Add(v)
		} else {
			b.Add(v)
		}
	}
	slices.Sort(all)
	a.Merge(&b)
	for _, q := range []float64{0.001, 0.5, 0.9, 0.99, 0.999, 1} {
		if got, want := h.Quantile(q), float64(Quantile(all, q)); math.Abs(got/want-1) > 0.005 || a.Quantile(q) != got {
			t.Errorf("P%g is %v, of the merged halves %v, want %v", 100*q, got, a.Quantile(q), want)
		}
	}
	if h.N() != 20_000 || h.Latency().N != 20_000 || new(Histogram).Latency() != nil {
		t.Error("wrong count")
	}
}

// TestBuckets checks that buckets cover every value exactly once, also the largest.
func TestBuckets(t *testing.T) {
	var h Histogram
	var n uint64
	values := []uint64{math.MaxUint64, math.MaxUint64 - 1, 1 << 63}
	for v := range uint64(3000) {
		values = append(values, v)
	}
	for _, v := range values {
		h.Add(v)
	}
	d := h.Distribution()
	for i, b := range d.Buckets {
		n += b.Count
		if b.To <= b.From || i > 0 && b.From < d.Buckets[i-1].To || i > 0 && b.From > 16 && float64(b.To-b.From) > float64(b.From)/7 {
			t.Errorf("bucket %d: %+v after %+v", i, b, d.Buckets[max(i, 1)-1])
		}
	}
	if n != h.N() || d.Min != 0 || d.Max != math.MaxUint64 {
		t.Errorf("%d of %d values in buckets, %d to %d", n, h.N(), d.Min, d.Max)
	}
	powers := d.PerPower()
	if len(powers) != 14 || powers[0] != (Bucket{0, 1, 1}) || powers[3] != (Bucket{4, 8, 4}) || powers[13] != (Bucket{1 << 63, math.MaxUint64, 3}) {
		t.Errorf("powers of two: %+v", powers)
	}
}

func TestTable(t *testing.T) {
	table := Table{Left: 1, Head: []string{"mode", "ms", "note"}}
	table.Add("alone", "0.3", "")
	table.Add("é", "12.5", "x")
	var b bytes.Buffer
	if err := table.WriteText(&b, "> "); err != nil {
		t.Fatal(err)
	}
	if want := "> mode     ms  note\n> alone   0.3\n> é      12.5     x\n"; b.String() != want {
		t.Errorf("got\n%s want\n%s", b.String(), want)
	}
	if Count(1234567.4) != "1,234,567" || Count(12) != "12" || Short(0.1234) != "0.123" || Micros(12345) != "12.3 ms" || Clean("a\x1b") != "a?" {
		t.Error("a number is formatted wrongly")
	}
}

// everything is one of each chart, with texts that need escaping.
func everything() []*Chart {
	var h Histogram
	for _, v := range []uint64{1, 5, 900, 70_000} {
		h.Add(v)
	}
	return []*Chart{
		CDF("a <b> & c", "ms", []Curve{{"x<y", "c0", []float64{0.2, 0.3, 4}}, {"none", "c1", nil}}),
		Distributions("distributions", "us", Micros, []Row{{Name: "all", Class: "c0", Dist: h.Distribution()}, {Name: "none"}}),
		Ranges("ranges", "ms", []Row{{Group: "g", Name: "r", Class: "c1", Low: 0.1, High: 3, Most: 9}, {Name: "none"}}),
		Bars("bars", "", 0, 1, false, Percent, []Row{{Name: "b", Parts: []Part{{0.2, "c0", "high"}, {0.8, "low", "low"}}}}),
		Scatter("scatter", "P99", "kept", WholePercent, []Series{{"live", "c0", []Point{{0.7, 0.96, "a <b>", "1"}}}, {"native", "c1", []Point{{12, 0.8, "b", "1"}}}}),
		Areas("areas", "time", Plain, []Row{{Name: "a", Class: "c0", Start: 1000, Step: 100, Values: []float64{1, 0, 3}}}),
		Lines("lines", "load", "GPUs", 0, Plain, Count, []Series{{"a <b>", "c0", []Point{{X: 0.25, Y: 1200}, {X: 1, Y: 8000}}}}),
		Timeline("timeline", 100*time.Millisecond, []Lane{
			{Name: "high", Class: "c0", Requests: []Request{{2e6, 10e6}}, Pieces: []Piece{{2e6, 3e6, Waiting}, {3e6, 4e6, Switching}, {4e6, 9e6, Running}}},
			{Name: "low", Note: "nice 3", Class: "low", Pieces: []Piece{{0, 3e6, Running}, {3e6, 9e6, Suspended}}},
		}),
	}
}

func wellFormed(t *testing.T, text string) {
	t.Helper()
	dec := xml.NewDecoder(strings.NewReader(strings.Replace(text, "<!DOCTYPE html>", "", 1)))
	dec.Entity = xml.HTMLEntity
	for {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("not well-formed: %v", err)
		}
		if e, ok := tok.(xml.StartElement); ok {
			for _, a := range e.Attr {
				if a.Name.Local == "href" || a.Name.Local == "src" {
					t.Errorf("the page refers to %q", a.Value)
				}
			}
		}
	}
	text = strings.ReplaceAll(text, `xmlns="http://www.w3.org/2000/svg"`, "")
	for _, bad := range []string{"http://", "https://", "ZgotmplZ", "NaN", "Inf", "url(h", "<script"} {
		if strings.Contains(text, bad) {
			t.Errorf("the page contains %q", bad)
		}
	}
}

func TestPageIsSelfContained(t *testing.T) {
	p := Page{Title: "Test & <Co>"}
	p.Add(Block{Section: "S", Text: "t", Soft: "s", Notice: "n", Cards: []Card{{"1 ms", "P99"}}, List: []string{"l"}},
		Block{Table: &Table{Left: 1, Head: []string{"a", "b"}, Rows: [][]string{{"<x>", "1"}}}})
	for _, c := range everything() {
		p.AddChart(c, "caption")
	}
	p.AddChart(nil, "not there")
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	wellFormed(t, b.String())
	for _, want := range []string{"Test &amp; &lt;Co&gt;", "x&lt;y, P99 4.00", `class="wait"`, `class="stop"`, `class="arrival"`, "waiting for the GPU", "&lt;x&gt;", "prefers-color-scheme: dark"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(b.String(), "not there") {
		t.Error("a missing chart has a caption")
	}
}

func TestStandaloneSVG(t *testing.T) {
	for _, c := range append(everything(), Areas("", "", nil, nil), Distributions("", "", nil, nil)) {
		if c == nil {
			continue
		}
		var b bytes.Buffer
		if err := WriteSVG(&b, c.Title, "sub", c); err != nil {
			t.Fatal(err)
		}
		wellFormed(t, b.String())
	}
}

// TestRatioBars: bars of ratios begin at 1, so that their length is what a service gains or loses.
func TestRatioBars(t *testing.T) {
	var out strings.Builder
	rows := []Row{{Name: "half", Parts: []Part{{0.5, "c0", "half"}}}, {Name: "double", Parts: []Part{{2, "c1", "double"}}}}
	if err := WriteSVG(&out, "title", "note", Bars("ratios", "", 0.25, 4, true, Plain, rows)); err != nil {
		t.Fatal(err)
	}
	var spans [][2]float64
	for _, m := range regexp.MustCompile(`<rect x="([0-9.]+)" y="[0-9.]+" width="([0-9.]+)"`).FindAllStringSubmatch(out.String(), -1) {
		x, _ := strconv.ParseFloat(m[1], 64)
		wide, _ := strconv.ParseFloat(m[2], 64)
		spans = append(spans, [2]float64{x, x + wide})
	}
	if len(spans) != 2 {
		t.Fatalf("%d bars in %s", len(spans), out.String())
	}
	half, double := spans[0], spans[1]
	if math.Abs(half[1]-double[0]) > 0.2 || math.Abs((half[1]-half[0])-(double[1]-double[0])) > 0.2 {
		t.Errorf("bars of 0.5 and 2 cover %v and %v; they should meet at 1 and be equally long", half, double)
	}
}

func TestScatter(t *testing.T) {
	c := Scatter("strategies", "P99 / alone", "kept", WholePercent, []Series{
		{Name: "first <a>", Class: "c0", Points: []Point{{X: 1, Y: 0.9, Name: "short"}, {X: 1.21, Y: 0.7, Name: "long"}}},
		{Name: "no points", Class: "c1"},
	})
	var b bytes.Buffer
	if err := WriteSVG(&b, "strategies", "", c); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"first &lt;a&gt;, short: 1.00x, 90 %", "first &lt;a&gt;, mean: 1.10x, 80 %", ">70 %</text>", ">1.1x</text>"} {
		if !strings.Contains(b.String(), part) {
			t.Errorf("no %q in the picture", part)
		}
	}
	if strings.Contains(b.String(), "no points") {
		t.Error("a series without points is in the legend")
	}
	if Scatter("", "", "", WholePercent, nil) != nil {
		t.Error("drew nothing")
	}
}

func TestLines(t *testing.T) {
	if Lines("none", "", "", 0, Plain, Count, []Series{{Name: "empty"}}) != nil {
		t.Error("a chart without points")
	}
	c := Lines("needs", "load", "GPUs", 0, Plain, Count, []Series{{"XSched", "c0", []Point{{X: 0.5, Y: 100}, {X: 1, Y: 1900}}}})
	if want := "XSched: 0.5 100, 1 1,900."; c.Alt != want {
		t.Errorf("alternative %q, want %q", c.Alt, want)
	}
	// Equal distances on both axes, from 0 to the last point and the next round value.
	body := c.layout(false).body.String()
	for _, want := range []string{">2,000</text>", `d="M455 `, "L846 "} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in %s", want, body)
		}
	}
}

// TestFileColours checks that a picture has its colours in viewers without CSS variables: each use of one follows a
// plain light colour of the same property.
func TestFileColours(t *testing.T) {
	style := fileStyle()
	uses := strings.Count(style, "var(--")
	if plain := regexp.MustCompile(`([a-z-]+): #[0-9a-f]{6}; ([a-z-]+): var\(--`).FindAllStringSubmatch(style, -1); uses < 20 || len(plain) != uses {
		t.Errorf("%d uses of variables, %d with a colour before", uses, len(plain))
	} else {
		for _, p := range plain {
			if p[1] != p[2] {
				t.Errorf("%s has the colour of %s", p[2], p[1])
			}
		}
	}
	if !strings.Contains(style, ".paper { fill: #fcfcfa; fill: var(--paper); }") {
		t.Error("the paper is not the light one")
	}
}
