// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"fmt"
	"html"
	"html/template"
	"io"
	"math"
	"strings"

	gpumodel "xsched/internal/virtual/model"
)

// The picture is written as plain SVG: no script, nothing to load. It has the
// latencies and the throughput of every tenant under every policy, and who had the first
// GPU in a short window.

const (
	chartWidth = 960.0
	plotLeft   = 190.0
	plotRight  = 930.0
	rowHeight  = 16.0
)

// palette are colours that people with common colour blindness tell apart.
func palette(i int) string {
	return []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#a6761d"}[i%8]
}

// canvas collects SVG elements and how far down they go.
type canvas struct {
	strings.Builder
	y float64
}

func (c *canvas) text(x, y float64, anchor, class, text string) {
	fmt.Fprintf(c, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">%s</text>\n", x, y, anchor, class, html.EscapeString(text))
}

func (c *canvas) rect(x, y, w, h float64, fill, tip string) {
	fmt.Fprintf(c, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\">", x, y, max(w, 0.4), h, fill)
	if tip != "" {
		fmt.Fprintf(c, "<title>%s</title>", html.EscapeString(tip))
	}
	c.WriteString("</rect>\n")
}

func (c *canvas) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(c, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1, y1, x2, y2, class)
}

// WriteSVG writes the picture.
func (r *Result) WriteSVG(w io.Writer) error {
	c := &canvas{y: 28}
	c.text(14, c.y, "start", "h", r.head())
	c.y += 32
	r.drawLatency(c)
	r.drawKept(c)
	r.drawTimelines(c)
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" role="img" aria-label="%s">
<style>
svg{--bg:#fff;--fg:#1f2328;--dim:#59636e;--grid:#e3e6ea}
text{font:12px system-ui,sans-serif;fill:var(--fg)}.h{font-weight:600;font-size:14px}.s{font-size:11px;fill:var(--dim)}.g{stroke:var(--grid)}.bg{fill:var(--bg)}
@media (prefers-color-scheme:dark){svg{--bg:#0d1117;--fg:#e6edf3;--dim:#9198a1;--grid:#2a3038}}
</style>
<rect width="100%%" height="100%%" class="bg"/>
%s</svg>
`, chartWidth, c.y+10, chartWidth, c.y+10, html.EscapeString(r.head()), c.String())
	if err != nil {
		return fmt.Errorf("write picture: %w", err)
	}
	return nil
}

// drawLatency draws a line from P50 to P99 and a tick at the maximum, on a log axis.
func (r *Result) drawLatency(c *canvas) {
	lo, hi := math.Inf(1), 0.0
	for i := range r.Runs {
		for _, cl := range r.Runs[i].Classes {
			if cl.Latency != nil && cl.Latency.P50 > 0 {
				lo, hi = min(lo, cl.Latency.P50), max(hi, cl.Latency.Max)
			}
		}
	}
	if hi == 0 {
		return
	}
	lo, hi = math.Pow(10, math.Floor(math.Log10(lo))), math.Pow(10, math.Ceil(math.Log10(hi)))
	if hi <= lo {
		hi = 10 * lo
	}
	x := func(v float64) float64 {
		return plotLeft + (plotRight-plotLeft)*math.Log10(min(max(v, lo), hi)/lo)/math.Log10(hi/lo)
	}
	c.text(14, c.y, "start", "h", "Latency of a request: P50 to P99, tick at the maximum (ms, log)")
	c.y += 14
	top := c.y
	for class := range r.Runs[0].Classes {
		for i := range r.Runs {
			cl := &r.Runs[i].Classes[class]
			c.rowLabel(r, class, i)
			if l := cl.Latency; l != nil {
				tip := fmt.Sprintf("%s, %s: P50 %.3f, P99 %.3f, max %.3f ms", cl.Name, r.Runs[i].Name, l.P50, l.P99, l.Max)
				c.rect(x(l.P50), c.y+4, max(2, x(l.P99)-x(l.P50)), rowHeight-8, palette(i), tip)
				c.rect(x(l.Max)-1, c.y+2, 2, rowHeight-4, palette(i), tip)
			}
			c.y += rowHeight
		}
		c.y += 8
	}
	for v := lo; v <= hi*1.001; v *= 10 {
		c.line(x(v), top, x(v), c.y, "g")
		c.text(x(v), c.y+12, "middle", "s", fmt.Sprintf("%g", v))
	}
	c.y += 40
}

func (c *canvas) rowLabel(r *Result, class, i int) {
	if i == 0 {
		c.text(14, c.y+12, "start", "", shorten(r.Runs[i].Classes[class].Name, 14))
	}
	c.text(plotLeft-8, c.y+12, "end", "s", shorten(r.Runs[i].Name, 14))
}

func shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// drawKept draws the throughput as a part of what a tenant has alone.
func (r *Result) drawKept(c *canvas) {
	c.text(14, c.y, "start", "h", "Throughput kept, against each tenant alone on a GPU")
	c.y += 14
	top := c.y
	x := func(v float64) float64 { return plotLeft + (plotRight-plotLeft)*min(max(v, 0), 1.05)/1.05 }
	for class := range r.Runs[0].Classes {
		for i := range r.Runs {
			cl := &r.Runs[i].Classes[class]
			c.rowLabel(r, class, i)
			c.rect(plotLeft, c.y+3, x(cl.Kept)-plotLeft, rowHeight-6, palette(i), fmt.Sprintf("%s, %s: %.1f %%", cl.Name, r.Runs[i].Name, 100*cl.Kept))
			c.text(x(cl.Kept)+4, c.y+12, "start", "s", fmt.Sprintf("%.1f %%", 100*cl.Kept))
			c.y += rowHeight
		}
		c.y += 8
	}
	for v := 0.0; v <= 1.001; v += 0.25 {
		c.line(x(v), top, x(v), c.y, "g")
		c.text(x(v), c.y+12, "middle", "s", fmt.Sprintf("%.0f %%", 100*v))
	}
	c.y += 40
}

// maxLanes is how many programs a timeline shows.
const maxLanes = 12

// drawTimelines draws who had the first GPU, one lane a program.
func (r *Result) drawTimelines(c *canvas) {
	for i := range r.Runs {
		run := &r.Runs[i]
		if len(run.spans) == 0 || run.draw <= 0 {
			continue
		}
		lanes := map[int]int{}
		var names []string
		for i, name := range run.lanes {
			if name != "" && len(names) < maxLanes {
				lanes[i+1] = len(names)
				names = append(names, name)
			}
		}
		c.text(14, c.y, "start", "h", fmt.Sprintf("Who had the first GPU under %s, %v after the warm-up (grey: switching)", run.Name, run.draw))
		c.y += 10
		from := int64(epoch) + int64(r.WarmupS*1e9)
		x := func(t int64) float64 {
			return plotLeft + (plotRight-plotLeft)*float64(min(max(t-from, 0), int64(run.draw)))/float64(run.draw)
		}
		for k, name := range names {
			y := c.y + float64(k)*rowHeight
			c.text(plotLeft-8, y+12, "end", "s", shorten(name, 22))
			c.line(plotLeft, y+rowHeight-2, plotRight, y+rowHeight-2, "g")
		}
		for _, s := range run.spans {
			lane, ok := lanes[s.PID]
			if !ok || s.Kind == gpumodel.KindIdle {
				continue
			}
			fill := palette(laneClass(run, names[lane]))
			if s.Kind == gpumodel.KindSwitch {
				fill = "#bbb"
			}
			c.rect(x(s.T0), c.y+float64(lane)*rowHeight+3, x(s.T1)-x(s.T0), rowHeight-6, fill, "")
		}
		c.y += float64(len(names))*rowHeight + 4
		for k := 0; k <= 6; k++ {
			at := plotLeft + (plotRight-plotLeft)*float64(k)/6
			c.text(at, c.y+10, "middle", "s", fmt.Sprintf("%.3g ms", ms(run.draw)*float64(k)/6))
		}
		c.y += 40
	}
}

func laneClass(run *RunResult, name string) int {
	for i := range run.Classes {
		if run.Classes[i].Name == name {
			return i
		}
	}
	return 0
}

var page = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{.Title}}</title>
<style>body{font:14px system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
pre{overflow-x:auto;font-size:12px;line-height:1.5}svg{max-width:100%;height:auto}</style>
<h1>{{.Title}}</h1>
<p>Simulated: the engine and the policies are XSched's own, the GPU is a model with the costs measured on an H200.</p>
<pre>{{.Table}}</pre>
{{.SVG}}
</html>
`))

// WriteHTML writes the table and the picture as one page.
func (r *Result) WriteHTML(w io.Writer) error {
	var table, svg bytes.Buffer
	if err := r.WriteTable(&table); err != nil {
		return err
	}
	if err := r.WriteSVG(&svg); err != nil {
		return err
	}
	err := page.Execute(w, struct {
		Title, Table string
		SVG          template.HTML
	}{r.Scenario, table.String(), template.HTML(svg.String())}) // ours, and its texts are escaped
	if err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}
