// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Table is a table for a terminal or a page. The first Left columns are aligned left, the others
// right.
type Table struct {
	Head []string   `json:"head"`
	Rows [][]string `json:"rows"`
	Left int        `json:"left"`
}

// Label names the table for readers who do not see it.
func (t *Table) Label() string {
	names := slices.DeleteFunc(slices.Clone(t.Head), func(s string) bool { return s == "" })
	return "Table: " + strings.Join(names[:min(len(names), 4)], ", ")
}

// Add appends a row.
func (t *Table) Add(cells ...string) { t.Rows = append(t.Rows, cells) }

// WriteText writes the table with every line indented by the given string.
func (t *Table) WriteText(w io.Writer, indent string) error {
	widths := make([]int, len(t.Head))
	all := append([][]string{t.Head}, t.Rows...)
	for _, row := range all {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range all {
		cells := make([]string, len(row))
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if cells[i] = pad + cell; i < t.Left {
				cells[i] = cell + pad
			}
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(indent+strings.Join(cells, "  "), " ")); err != nil {
			return fmt.Errorf("write table: %w", err)
		}
	}
	return nil
}

// Short formats v with three significant digits, at most three decimals.
func Short(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v >= 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}

// Percent formats a fraction.
func Percent(part float64) string { return strconv.FormatFloat(100*part, 'f', 1, 64) + " %" }

// WholePercent formats a fraction for an axis.
func WholePercent(part float64) string { return Plain(100*part) + " %" }

// Micros formats microseconds in a suitable unit, with three significant digits.
func Micros(us float64) string {
	switch {
	case us >= 1e6:
		return trimmed(us/1e6) + " s"
	case us >= 1e3:
		return trimmed(us/1e3) + " ms"
	}
	return fmt.Sprintf("%.0f us", us)
}

func trimmed(v float64) string {
	s := Short(v)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// Count formats v, rounded, with thousands separators.
func Count(v float64) string {
	s := strconv.FormatUint(uint64(math.Round(max(v, 0))), 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Plural formats a number of things.
func Plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if strings.HasSuffix(what, "s") {
		what += "e"
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// Shorten cuts s to n characters.
func Shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// Clean replaces unprintable characters, so that foreign text is safe on a terminal.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
