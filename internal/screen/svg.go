// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"fmt"
	"html"
	"strings"
)

// Size of a character cell in a picture.
const (
	cellWidth  = 8.4
	cellHeight = 18
	margin     = 14
)

var classes = [...]string{Plain: "", Faint: "f", Bold: "b", Good: "g", Warn: "w", Bad: "r", Accent: "c", Selected: "s"}

// SVG draws a screen as a picture of a dark terminal. Each text has its width, so that the columns
// stay aligned with any font.
func SVG(lines []Line, title string) []byte {
	columns := 0
	for _, line := range lines {
		n := 0
		for _, s := range line {
			n += Width(s.Text)
		}
		columns = max(columns, n)
	}
	width, height := float64(columns)*cellWidth+2*margin, len(lines)*cellHeight+2*margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" width="%.0f" height="%d" role="img">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, "<title>%s</title>\n", html.EscapeString(title))
	b.WriteString(`<style>
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d8dee9; white-space: pre }
.f { fill: #8a93a5 } .b { font-weight: bold; fill: #ffffff } .g { fill: #8fce7e } .w { fill: #e8c468 }
.r { fill: #ff7b72; font-weight: bold } .c { fill: #79c0ff } .s { fill: #11151c }
</style>
`)
	fmt.Fprintf(&b, `<rect width="%.0f" height="%d" rx="8" fill="#11151c"/>`+"\n", width, height)
	for row, line := range lines {
		column := 0
		if from, n := selected(line); n > 0 {
			fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="#d8dee9"/>`+"\n", margin+float64(from)*cellWidth, margin+row*cellHeight, float64(n)*cellWidth, cellHeight)
		}
		for _, s := range line {
			n := Width(s.Text)
			x, y := margin+float64(column)*cellWidth, margin+row*cellHeight
			column += n
			text := strings.TrimLeft(s.Text, " ")
			x += float64(len(s.Text)-len(text)) * cellWidth
			if text = strings.TrimRight(text, " "); text == "" {
				continue
			}
			class := ""
			if c := classes[s.Style]; c != "" {
				class = fmt.Sprintf(` class="%s"`, c)
			}
			fmt.Fprintf(&b, `<text x="%.1f" y="%d" textLength="%.1f" lengthAdjust="spacingAndGlyphs"%s>%s</text>`+"\n",
				x, y+13, float64(Width(text))*cellWidth, class, html.EscapeString(text))
		}
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

// selected returns where the selected part of a line begins, and its width.
func selected(line Line) (from, width int) {
	column := 0
	for _, s := range line {
		n := Width(s.Text)
		if s.Style == Selected {
			if width == 0 {
				from = column
			}
			width = column + n - from
		}
		column += n
	}
	return from, width
}
