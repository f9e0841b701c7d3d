// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestClean(t *testing.T) {
	for _, test := range []struct{ in, want string }{
		{"python serve.py", "python serve.py"},
		{"tr\x1b[2Jain\n", "tr?[2Jain?"},
		{"\x9b31m", "?31m"}, // an escape sequence in 8 bits, invalid in UTF-8
		{"\u009b31m", "?31m"},
		{"a\xffb", "a?b"},
		{"a\u202Eb", "a?b"},
		{"漢字 é", "漢字 é"},
		{"e\u0301\u0301\u0301\u0301x", "e\u0301\u0301x"},
		{"☎\uFE0F", "☎"},
	} {
		if got := Clean(test.in); got != test.want {
			t.Errorf("Clean(%q) = %q, want %q", test.in, got, test.want)
		}
	}
}

func TestCut(t *testing.T) {
	for _, test := range []struct {
		in    string
		width int
		want  string
	}{
		{"python", 0, "python"},
		{"python", 6, "python"},
		{"python", 5, "pyth…"},
		{"python", 1, "…"},
		{"漢字漢字", 5, "漢字…"},
		{"漢字漢字", 6, "漢字…"},
		{"漢字漢字", 8, "漢字漢字"},
		{"00000\ua8bc0", 6, "00000…"}, // a mark that takes a column
		{"0e\u0301e\u0301e\u0301", 3, "0e\u0301…"},
	} {
		if got := Cut(test.in, test.width); got != test.want {
			t.Errorf("Cut(%q, %d) = %q, want %q", test.in, test.width, got, test.want)
		}
	}
	for _, line := range Wrap("refused: 漢字漢字漢字漢字漢字 "+strings.Repeat("x", 50)+" one two", 12) {
		if Width(line) > 12 {
			t.Errorf("Wrap gives %q", line)
		}
	}
	if got := Pad("漢字漢字", 4, false); Width(got) != 4 {
		t.Errorf("Pad gives %q", got)
	}
}

func FuzzClean(f *testing.F) {
	f.Add("\x1b[31m漢\n\xff", 5)
	f.Add("00000\ua8bc0", 5) // a mark that takes a column
	f.Fuzz(func(t *testing.T, s string, width int) {
		clean := Clean(s)
		if !utf8.ValidString(clean) {
			t.Fatalf("%q is invalid", clean)
		}
		for _, r := range clean {
			if !unicode.IsPrint(r) {
				t.Fatalf("%q has %q", clean, r)
			}
		}
		width = 1 + (width%200+200)%200
		if got := Pad(clean, width, false); Width(got) != width {
			t.Fatalf("Pad(%q, %d) = %q has %d columns", clean, width, got, Width(got))
		}
		for _, line := range Wrap(clean, width) {
			if Width(line) > max(width, 2) {
				t.Fatalf("Wrap(%q, %d) gives %q of %d columns", clean, width, line, Width(line))
			}
		}
	})
}

func TestLocale(t *testing.T) {
	for _, test := range []struct {
		env  string
		want bool
	}{
		{"", false},
		{"LANG=C", false},
		{"LANG=C.UTF-8", true},
		{"LANG=de_DE.utf8", true},
		{"LC_ALL=C LANG=C.UTF-8", false},
		{"LANG=C.UTF-8 TERM=linux", false},
		{"LANG=C.UTF-8 TERM=xterm", true},
	} {
		env := map[string]string{}
		for word := range strings.FieldsSeq(test.env) {
			name, value, _ := strings.Cut(word, "=")
			env[name] = value
		}
		if got := UTF8(func(name string) string { return env[name] }); got != test.want {
			t.Errorf("%s: %t", test.env, got)
		}
	}
}

func TestSVG(t *testing.T) {
	picture := SVG([]Line{{{"<a> & ", Bold}, {"b", Selected}}, {{"  漢", Plain}}}, "A <picture>")
	d := xml.NewDecoder(bytes.NewReader(picture))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, picture)
		}
	}
	if !strings.Contains(string(picture), "&lt;a&gt; &amp;</text>") {
		t.Errorf("%s", picture)
	}
}
