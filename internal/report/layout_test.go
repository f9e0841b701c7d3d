// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/xml"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestTextStaysOnTheCanvas checks both layouts of every chart, also with long names: no text crosses
// an edge of its picture.
func TestTextStaysOnTheCanvas(t *testing.T) {
	long := strings.Repeat("long name ", 4)
	charts := append(everything(),
		Scatter("right edge", "P99", "kept", WholePercent, []Series{{"xsched-lv1 at the edge", "c0", []Point{{40, 0.9, "", ""}}}, {"b", "c1", []Point{{1, 0.2, "", ""}}}}),
		Bars("full", "", 0, 1.1, false, WholePercent, []Row{{Name: "HPF", Group: "service", Parts: []Part{{1, "c0", "kept"}}}}),
		Timeline("lanes", time.Second, []Lane{{Name: long, Note: long, Group: "GPU 0", Requests: []Request{{-5, 2e9}}}}))
	for _, c := range charts {
		for _, narrow := range []bool{false, true} {
			l := c.layout(narrow)
			for _, m := range textElement.FindAllStringSubmatch(l.body.String(), -1) {
				x, _ := strconv.ParseFloat(m[1], 64)
				from, to := x, x+width(unescape(t, m[3]))
				switch classes := strings.Fields(m[2]); {
				case slices.Contains(classes, "e"):
					from, to = 2*x-to, x
				case slices.Contains(classes, "m"):
					from, to = x-(to-x)/2, x+(to-x)/2
				}
				if from < -1 || to > l.width+1 {
					t.Errorf("%s (narrow %v): %q from %.0f to %.0f of %.0f", c.Title, narrow, m[3], from, to, l.width)
				}
			}
		}
	}
}

var textElement = regexp.MustCompile(`<text x="([-0-9.]+)" y="[-0-9.]+"(?: class="([^"]*)")?>([^<]*)</text>`)

func unescape(t *testing.T, s string) string {
	t.Helper()
	var out string
	dec := xml.NewDecoder(strings.NewReader("<t>" + s + "</t>"))
	if err := dec.Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestHeadline(t *testing.T) {
	for _, c := range []struct {
		name, who string
		outcomes  []Outcome
		want      string
	}{
		{"better", "", []Outcome{{13, 1, 0.95}}, "13x lower P99 than native; background keeps 95 %"},
		{"worse", "", []Outcome{{1, 1.2, 0.5}}, "1.2x higher P99 than native; background keeps 50 %"},
		{"equal", "", []Outcome{{1, 1.01, 1}}, "Same P99 as native; background keeps 100 %"},
		{"named", "HPF", []Outcome{{1, 1, 1}}, "HPF: same P99 as native; background keeps 100 %"},
		{"unknown throughput", "", []Outcome{{4.4, 2, -1}}, "2.2x lower P99 than native"},
		{"the worst of several", "", []Outcome{{13, 1, 0.95}, {9, 1, 0.97}}, "At least 9.0x lower P99 than native; background keeps at least 95 %"},
		{"one of several is worse", "", []Outcome{{13, 1, 0.95}, {1, 3, 0.9}}, "Up to 3.0x higher P99 than native; background keeps at least 90 %"},
		{"nothing", "", []Outcome{{0, 1, 1}}, ""},
	} {
		if got := Headline(c.who, "native", c.outcomes...); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestPageIsAccessible: the result is the only first-level heading, each picture has its data in
// words, the hidden layout is not read twice, and tables have headers and can be scrolled by keys.
func TestPageIsAccessible(t *testing.T) {
	p := Page{Title: "Title", Headline: "2x <lower> P99"}
	p.Add(Block{Section: "S", Lead: "Lead.", Table: &Table{Left: 1, Head: []string{"mode", "", "P99"}, Rows: [][]string{{"native", "", "1"}}}})
	for _, c := range everything() {
		p.AddChart(c, "a caption")
	}
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	wellFormed(t, text)
	for part, want := range map[string]int{
		"<h1>2x &lt;lower&gt; P99</h1>": 1, "<h1": 1, "<title>2x &lt;lower&gt; P99 – Title</title>": 1, `<p class="kicker">Title</p>`: 1,
		`<svg class="wide"`: len(everything()), `<svg class="narrow"`: len(everything()), `role="img" aria-label="`: 2 * len(everything()),
		"<figcaption>a caption</figcaption>": len(everything()), `<pattern id="hatch"`: 1, `aria-hidden="true"`: 1,
		`<th scope="col"`: 3, `<th scope="row" class="left">native</th>`: 1, `tabindex="0" role="region" aria-label="Table: mode, P99"`: 1,
		`<p class="lead">Lead.</p>`: 1, "@media print": 1, "@media screen and (prefers-color-scheme: dark)": 1, "@media screen and (max-width: 600px)": 1,
	} {
		if got := strings.Count(text, part); got != want {
			t.Errorf("%d times %q, want %d", got, part, want)
		}
	}
	for _, alt := range []string{
		"timeline. high: on the GPU 5 ms, 1 request, the longest 8 ms; low: on the GPU 3 ms, suspended 6 ms.",
		"a &lt;b&gt; &amp; c. x&lt;y: P50 0.300, P99 4.00.", "scatter. live: 0.70x, 96 %; native: 12.00x, 80 %.", "bars. b: high 20.0 %, low 80.0 %.",
	} {
		if !strings.Contains(text, `aria-label="`+alt+`"`) && !strings.Contains(text, alt) {
			t.Errorf("no text alternative %q", alt)
		}
	}
}
