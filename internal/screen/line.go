// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"strings"

	"charm.land/lipgloss/v2"
)

// Style is the meaning of a text. It has one of the terminal's 16 colours, so that the user's theme
// applies, and no information is in the colour alone.
type Style int

// The styles.
const (
	Plain Style = iota
	Faint
	Bold
	Good
	Warn
	Bad
	Accent
	Selected // the row with the cursor
)

// Span is text with a style.
type Span struct {
	Text  string
	Style Style
}

// Line is one line of a screen.
type Line []Span

// Text returns a line with one style.
func Text(text string, style Style) Line { return Line{{text, style}} }

// String returns the text alone, without trailing blanks.
func (l Line) String() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.Text)
	}
	return strings.TrimRight(b.String(), " ")
}

// Fit cuts a line to a width, or fills it up. Width 0 leaves it as it is.
func (l Line) Fit(width int) Line {
	if width <= 0 {
		return l
	}
	var out Line
	left, last := width, Plain
	for _, s := range l {
		last = s.Style
		n := Width(s.Text)
		if n > left {
			if left > 0 {
				out = append(out, Span{Pad(s.Text, left, false), s.Style})
			}
			return out
		}
		out, left = append(out, s), left-n
	}
	if last != Selected {
		last = Plain
	}
	return append(out, Span{strings.Repeat(" ", left), last})
}

// In returns the line with one style for all.
func (l Line) In(style Style) Line {
	out := make(Line, len(l))
	for i, s := range l {
		out[i] = Span{s.Text, style}
	}
	return out
}

var styles = [...]lipgloss.Style{
	Plain:    lipgloss.NewStyle(),
	Faint:    lipgloss.NewStyle().Faint(true),
	Bold:     lipgloss.NewStyle().Bold(true),
	Good:     lipgloss.NewStyle().Foreground(lipgloss.Green),
	Warn:     lipgloss.NewStyle().Foreground(lipgloss.Yellow),
	Bad:      lipgloss.NewStyle().Foreground(lipgloss.Red).Bold(true),
	Accent:   lipgloss.NewStyle().Foreground(lipgloss.Cyan),
	Selected: lipgloss.NewStyle().Reverse(true),
}

// Styled returns lines with escape sequences. The writer reduces the colours to those of the terminal.
func Styled(lines []Line) string {
	var b strings.Builder
	for i, line := range lines {
		if i > 0 {
			b.WriteByte('\n')
		}
		// Neighbours of one style share their sequences.
		for j := 0; j < len(line); {
			text, style := "", line[j].Style
			for ; j < len(line) && line[j].Style == style; j++ {
				text += line[j].Text
			}
			if style == Plain || text == "" {
				b.WriteString(text)
			} else {
				b.WriteString(styles[style].Render(text))
			}
		}
	}
	return b.String()
}

// PlainText returns lines without styles.
func PlainText(lines []Line) string {
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(line.String())
		b.WriteByte('\n')
	}
	return b.String()
}
