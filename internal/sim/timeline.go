// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"html"
	"io"
	"strings"
	"time"

	"xsched/internal/model"
)

// The timeline is one lane a program: when it has the GPU, when it waits, when it is stopped. It is SVG
// without script, for light and dark pages. All places are whole tenths of a pixel, computed
// in integers: the same scenario gives the same bytes on every machine.

const (
	laneHeight = 34
	barHeight  = 20
	thinHeight = 8
	laneLeft   = 190
	laneRight  = 860
	timeWidth  = 900
)

// laneColors are for light and dark pages; people with common colour blindness tell them apart.
func laneColors() [][2]string {
	return [][2]string{
		{"#0969a8", "#58a6e0"},
		{"#c2570c", "#f0883e"},
		{"#0b7a5c", "#3fb992"},
		{"#a0457c", "#d58bb8"},
		{"#8a6d00", "#d9b23a"},
		{"#5b4bb2", "#a596f0"},
	}
}

// WriteTimeline writes the timeline of the first run. The run must have been drawn.
func (r *Result) WriteTimeline(w io.Writer) error {
	run := &r.Runs[0]
	if len(run.tracks) == 0 || run.draw <= 0 {
		return errors.New("draw timeline: nothing was drawn")
	}
	var b strings.Builder
	tracks := run.tracks[:min(len(run.tracks), maxLanes)]
	y := 62
	b.WriteString(timelineHead(r.Scenario, r.About, run))
	from := epoch.Add(time.Duration(r.WarmupS * float64(time.Second)))
	top, several := y, tracks[len(tracks)-1].gpu != tracks[0].gpu
	var bars strings.Builder
	for i, l := range tracks {
		if several && (i == 0 || l.gpu != tracks[i-1].gpu) {
			fmt.Fprintf(&bars, "<text x=\"14\" y=\"%d\" class=\"s\">GPU %d</text>\n", y+laneHeight/2+4, l.gpu)
		}
		l.draw(&bars, y, from, run.draw)
		y += laneHeight
		if several && i+1 < len(tracks) && tracks[i+1].gpu != l.gpu {
			y += 14
		}
	}
	axis(&b, top, y, run.draw) // below the bars
	b.WriteString(bars.String())
	y += 46
	legend(&b, y)
	y += 16
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">
%s%s</svg>
`, timeWidth, y, timeWidth, y, html.EscapeString(timelineTitle(r.Scenario, run)), timelineStyle(), b.String())
	if err != nil {
		return fmt.Errorf("write timeline: %w", err)
	}
	return nil
}

func timelineTitle(name string, run *RunResult) string {
	if run.Name == name {
		return name
	}
	return run.Name + ": " + name
}

func timelineHead(name, about string, run *RunResult) string {
	return fmt.Sprintf("<text x=\"14\" y=\"26\" class=\"h\">%s</text>\n<text x=\"14\" y=\"45\" class=\"s\">%s</text>\n",
		html.EscapeString(timelineTitle(name, run)), html.EscapeString(about))
}

// timelineStyle has the colours of light and dark pages.
func timelineStyle() string {
	var light, dark strings.Builder
	for i, c := range laneColors() {
		fmt.Fprintf(&light, ".c%d{--c:%s}", i, c[0])
		fmt.Fprintf(&dark, ".c%d{--c:%s}", i, c[1])
	}
	return `<style>
svg{--bg:#fff;--fg:#1f2328;--dim:#59636e;--grid:#e3e6ea;--switch:#9aa4af;--stop:#d1242f}
text{font:13px system-ui,-apple-system,"Segoe UI",sans-serif;fill:var(--fg)}
.h{font-weight:600;font-size:16px}.s{font-size:12px;fill:var(--dim)}.e{text-anchor:end}.m{text-anchor:middle}
.bg{fill:var(--bg)}.g{stroke:var(--grid)}.r{fill:var(--c)}.w{fill:var(--c);opacity:.3}.x{fill:var(--switch)}.t{fill:url(#stop)}.hatch{stroke:var(--stop)}.a{fill:var(--dim)}
` + light.String() + `
@media (prefers-color-scheme:dark){
svg{--bg:#0d1117;--fg:#e6edf3;--dim:#9198a1;--grid:#2a3038;--switch:#6e7781;--stop:#ff7b72}.w{opacity:.45}
` + dark.String() + `
}
</style>
<defs><pattern id="stop" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><line x1="0" y1="0" x2="0" y2="6" class="hatch" stroke-width="3"/></pattern></defs>
<rect width="100%" height="100%" class="bg"/>
`
}

// tenths is a place on the time axis, in tenths of a pixel.
func tenths(at, draw time.Duration) int64 {
	return laneLeft*10 + (laneRight-laneLeft)*10*int64(min(max(at, 0), draw))/int64(draw)
}

func pixels(tenth int64) string { return fmt.Sprintf("%d.%d", tenth/10, tenth%10) }

// draw draws a lane. Times that are too short to be seen are drawn as the smallest that are.
func (l *lane) draw(b *strings.Builder, y int, from model.Time, draw time.Duration) {
	middle := y + laneHeight/2
	color := l.class % len(laneColors())
	if l.note == "" {
		fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\" class=\"e\">%s</text>\n", laneLeft-12, middle+4, html.EscapeString(shorten(l.name, 24)))
	} else {
		fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\" class=\"e\">%s</text>\n", laneLeft-12, middle-2, html.EscapeString(shorten(l.name, 24)))
		fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\" class=\"s e\">%s</text>\n", laneLeft-12, middle+13, html.EscapeString(shorten(l.note, 28)))
	}
	fmt.Fprintf(b, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" class=\"g\"/>\n", laneLeft, middle, laneRight, middle)
	for _, p := range l.pieces {
		x1, x2 := tenths(p.from.Sub(from), draw), tenths(p.to.Sub(from), draw)
		class, height := "", thinHeight
		switch p.state {
		case laneRun:
			class, height = fmt.Sprintf("r c%d", color), barHeight
			x2 = max(x2, x1+8)
		case laneSwitch:
			class, height = "x", barHeight
			x2 = max(x2, x1+5)
		case laneWait:
			class = fmt.Sprintf("w c%d", color)
		case laneStopped:
			class = "t"
		case laneIdle:
			continue
		}
		if x2 > x1 {
			fmt.Fprintf(b, "<rect x=\"%s\" y=\"%d\" width=\"%s\" height=\"%d\" class=\"%s\"/>\n", pixels(x1), middle-height/2, pixels(x2-x1), height, class)
		}
	}
	for _, at := range l.arrivals {
		x := tenths(at.Sub(from), draw)
		fmt.Fprintf(b, "<path d=\"M%s %dl-4 -6h8z\" class=\"a\"/>\n", pixels(x), middle-barHeight/2)
	}
}

// axis draws the time, in round steps.
func axis(b *strings.Builder, top, bottom int, draw time.Duration) {
	step := time.Millisecond
	for _, s := range []time.Duration{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000} {
		if step = s * time.Millisecond; draw/step <= 12 {
			break
		}
	}
	for at := time.Duration(0); at <= draw; at += step {
		x := pixels(tenths(at, draw))
		fmt.Fprintf(b, "<line x1=\"%s\" y1=\"%d\" x2=\"%s\" y2=\"%d\" class=\"g\" stroke-dasharray=\"2 3\"/>\n", x, top, x, bottom+4)
		text := fmt.Sprint(at.Milliseconds())
		if at+step > draw {
			text += " ms"
		}
		fmt.Fprintf(b, "<text x=\"%s\" y=\"%d\" class=\"s m\">%s</text>\n", x, bottom+18, text)
	}
}

// legend says what the bars mean.
func legend(b *strings.Builder, y int) {
	x := laneLeft
	entry := func(class string, height, width int, text string) {
		fmt.Fprintf(b, "<rect x=\"%d\" y=\"%d\" width=\"22\" height=\"%d\" class=\"%s\"/>\n", x, y-height/2-4, height, class)
		fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\" class=\"s\">%s</text>\n", x+28, y, text)
		x += width
	}
	entry("r c0", 14, 112, "has the GPU")
	entry("x", 14, 100, "switching")
	entry("w c0", thinHeight, 160, "waits for its turn")
	entry("t", thinHeight, 160, "stopped by XSched")
	fmt.Fprintf(b, "<path d=\"M%d %dl-4 -6h8z\" class=\"a\"/>\n<text x=\"%d\" y=\"%d\" class=\"s\">request comes</text>\n", x+10, y-1, x+22, y)
}
