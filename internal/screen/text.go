// SPDX-License-Identifier: Apache-2.0

// Package screen lays out text for a terminal: it removes what could control the terminal, measures
// and cuts text in columns, and renders styled lines as text, with escape sequences, or as a picture.
package screen

import (
	"strings"
	"unicode"

	"github.com/charmbracelet/x/ansi"
)

// maxMarks is the largest number of combining marks on one character. More would overlay other lines.
const maxMarks = 2

// Clean makes foreign text safe for one line of a terminal. Control characters, line breaks, format
// characters such as those that reverse the writing direction, and invalid bytes become question
// marks. Every rune of the result has a fixed width.
func Clean(s string) string {
	marks := 0
	return strings.Map(func(r rune) rune {
		switch {
		case !unicode.IsPrint(r) || r == unicode.ReplacementChar:
			marks = 0
			return '?'
		case unicode.In(r, unicode.Mn, unicode.Me):
			marks++
			// A variation selector changes the width of a character in some terminals only.
			if marks > maxMarks || unicode.Is(unicode.Variation_Selector, r) {
				return -1
			}
		default:
			marks = 0
		}
		return r
	}, s)
}

// ASCII replaces what a terminal without UTF-8 can't show.
func ASCII(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '…':
			return '.'
		case r >= 0x80:
			return '?'
		}
		return r
	}, s)
}

// Width is the number of columns of clean text.
func Width(s string) int {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return ansi.StringWidthWc(s)
		}
	}
	return len(s)
}

// Cut shortens clean text to a width and marks the cut; width 0 means unlimited.
func Cut(s string, width int) string {
	if width <= 0 || Width(s) <= width {
		return s
	}
	return s[:fits(s, width-1)] + "…"
}

// fits is the length in bytes of the longest beginning with at most so many columns. Truncating by grapheme clusters,
// as the library does, exceeds them by a mark that takes a column.
func fits(s string, columns int) int {
	for i, r := range s {
		if columns -= Width(string(r)); columns < 0 {
			return i
		}
	}
	return len(s)
}

// Wrap breaks clean text into lines of at most a width, two or more, between words where possible.
func Wrap(s string, width int) (lines []string) {
	width = max(width, 2) // of the widest character
	for line := range strings.SplitSeq(ansi.WrapWc(s, width, ""), "\n") {
		for Width(line) > width { // by a space at its beginning, or by a mark that takes a column
			n := fits(line, width)
			lines, line = append(lines, line[:n]), line[n:]
		}
		lines = append(lines, line)
	}
	return lines
}

// Pad fills or cuts clean text to exactly a width. With right, the text is at the right edge.
func Pad(s string, width int, right bool) string {
	if width <= 0 {
		return ""
	}
	s = Cut(s, width)
	blank := strings.Repeat(" ", width-Width(s))
	if right {
		return blank + s
	}
	return s + blank
}

// UTF8 reports whether the terminal shows block characters, by the locale and the terminal's type.
// The Linux console has UTF-8, but not these characters.
func UTF8(getenv func(string) string) bool {
	if getenv("TERM") == "linux" || getenv("TERM") == "dumb" {
		return false
	}
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := getenv(name); v != "" {
			v = strings.ToLower(v)
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}

var (
	blocks = []rune("▁▂▃▄▅▆▇█")
	ascii  = []rune("_.-:=+*#")
)

// Spark draws values from 0 to 1, one column each; blank columns precede fewer values than width.
func Spark(values []float64, width int, utf8 bool) string {
	steps := ascii
	if utf8 {
		steps = blocks
	}
	if len(values) > width {
		values = values[len(values)-width:]
	}
	var b strings.Builder
	b.WriteString(strings.Repeat(" ", width-len(values)))
	for _, v := range values {
		b.WriteRune(steps[min(max(int(v*float64(len(steps))), 0), len(steps)-1)])
	}
	return b.String()
}

// Bar draws a value from 0 to 1 in a width.
func Bar(value float64, width int, utf8 bool) (full, rest string) {
	n := min(max(int(value*float64(width)+0.5), 0), width)
	if utf8 {
		return strings.Repeat("█", n), strings.Repeat("░", width-n)
	}
	return strings.Repeat("|", n), strings.Repeat(".", width-n)
}
