// SPDX-License-Identifier: Apache-2.0

package internal

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	maxColumns     = 100
	maxReadmeLines = 120
)

var (
	markdownLink = regexp.MustCompile(`\[[^\]]*\]\(([^()\s]+)\)`)
	onlyLink     = regexp.MustCompile(`^\s*(?:[-*]\s+)?\(?!?\[[^\]]*\]\([^()\s]+\)[).,;]*$`)
	inlineCode   = regexp.MustCompile("`[^`]*`")
	heading      = regexp.MustCompile(`^#+\s+(.*)$`)
	anchorDrop   = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// markdownFiles lists the project's documents, relative to the root.
func markdownFiles(t *testing.T) []string {
	t.Helper()
	files := []string{"README.md", "README.zh-CN.md", "CONTRIBUTING.md", "SCOPE.md", "SECURITY.md", "CHANGELOG.md"}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(name) == ".md" {
			name, err = filepath.Rel(root, name)
			files = append(files, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// prose calls visit for each line of a document outside code blocks and HTML comments. Generated
// blocks, from "<!-- ... make ... -->" to "<!-- end ... -->", are skipped too.
func prose(t *testing.T, name string, visit func(number int, line string)) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	fence, comment, generated := false, false, false
	for i, line := range strings.Split(string(text), "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, "```"):
			fence = !fence
			continue
		case fence || strings.HasPrefix(line, "    "):
			continue
		case comment || strings.HasPrefix(trimmed, "<!--"):
			comment = !strings.Contains(line, "-->")
			generated = strings.Contains(line, "make ") || generated && !strings.HasPrefix(trimmed, "<!-- end")
			continue
		case generated:
			continue
		}
		visit(i+1, line)
	}
	if fence || comment || generated {
		t.Errorf("%s: unterminated code, comment or generated block", name)
	}
}

func TestMarkdownWraps(t *testing.T) {
	for _, name := range markdownFiles(t) {
		prose(t, name, func(number int, line string) {
			switch {
			case utf8.RuneCountInString(line) <= maxColumns, strings.HasPrefix(line, "|"), strings.HasPrefix(line, "#"),
				strings.HasPrefix(line, "<"), strings.HasPrefix(line, "!["), onlyLink.MatchString(line):
			default:
				t.Errorf("%s:%d: %d columns; wrap at %d", name, number, utf8.RuneCountInString(line), maxColumns)
			}
		})
	}
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n > maxReadmeLines {
		t.Errorf("README.md has %d lines; at most %d", n, maxReadmeLines)
	}
}

// TestMarkdownLinks resolves relative links and their anchors.
func TestMarkdownLinks(t *testing.T) {
	anchors := map[string]map[string]bool{}
	links := 0
	for _, name := range markdownFiles(t) {
		prose(t, name, func(number int, line string) {
			for _, m := range markdownLink.FindAllStringSubmatch(inlineCode.ReplaceAllString(line, "code"), -1) {
				if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
					continue
				}
				links++
				file, anchor, _ := strings.Cut(m[1], "#")
				target := name
				if file != "" {
					target = filepath.Join(filepath.Dir(name), file)
				}
				if _, err := os.Stat(filepath.Join(root, target)); err != nil {
					t.Errorf("%s:%d: link to missing file %s", name, number, target)
					continue
				}
				if anchor == "" || filepath.Ext(target) != ".md" {
					continue
				}
				if anchors[target] == nil {
					anchors[target] = headingAnchors(t, target)
				}
				if !anchors[target][anchor] {
					t.Errorf("%s:%d: %s has no heading #%s", name, number, target, anchor)
				}
			}
		})
	}
	if links < 50 {
		t.Errorf("found only %d relative links; the pattern no longer matches", links)
	}
}

// TestTranslationsHaveTheSameCommands compares the commands of pages and their translations.
func TestTranslationsHaveTheSameCommands(t *testing.T) {
	commands := func(name string) (found []string) {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			line, _, _ = strings.Cut(line, " #")
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "$ ") || regexp.MustCompile(`^(sudo |make |xsched )`).MatchString(line) {
				found = append(found, line)
			}
		}
		return found
	}
	for name, translation := range map[string]string{"README.md": "README.zh-CN.md", "docs/quickstart.md": "docs/quickstart.zh-CN.md"} {
		a, b := commands(name), commands(translation)
		if len(a) < 5 || !slices.Equal(a, b) {
			t.Errorf("%s has the commands %q, %s has %q", name, a, translation, b)
		}
	}
}

// TestTranslatedResults: the Chinese README has the figures of the English one.
func TestTranslatedResults(t *testing.T) {
	figure := regexp.MustCompile(`[0-9.,]+ (?:ms|ns|%)`)
	figures := func(name string) (found []string) {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "|") {
				_, line, _ = strings.Cut(line[1:], "|") // the first column is prose
				found = append(found, figure.FindAllString(line, -1)...)
			}
		}
		return found
	}
	a, b := figures("README.md"), figures("README.zh-CN.md")
	if len(a) < 20 || !slices.Equal(a, b) {
		t.Errorf("README.md has the figures %q, README.zh-CN.md has %q", a, b)
	}
}

// headingAnchors returns the anchors that GitHub derives from the headings of a document.
func headingAnchors(t *testing.T, name string) map[string]bool {
	t.Helper()
	anchors, count := map[string]bool{}, map[string]int{}
	prose(t, name, func(_ int, line string) {
		m := heading.FindStringSubmatch(line)
		if m == nil {
			return
		}
		title := markdownLink.ReplaceAllStringFunc(m[1], func(link string) string { return link[1:strings.Index(link, "]")] })
		anchor := strings.ReplaceAll(anchorDrop.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
		if n := count[anchor]; n > 0 {
			anchors[anchor+"-"+strconv.Itoa(n)] = true
		}
		count[anchor]++
		anchors[anchor] = true
	})
	return anchors
}

var (
	endToEnd   = regexp.MustCompile("`e2e '?([A-Za-z0-9|\\\\]+)'?`")
	unitTest   = regexp.MustCompile("`go test (?:-count=1 )?(\\./[a-z/]+) -run ([A-Za-z0-9]+)`")
	gpuSuites  = regexp.MustCompile("`gpu ([a-z0-9 ]+)`")
	gpuSuite   = regexp.MustCompile(`(?m)^    "([a-z0-9]+)": \(`)
	makeTarget = regexp.MustCompile("`make ([a-z -]+)`")
	testOfFile = regexp.MustCompile(`(?m)^func Test(\w+)\(t \*testing\.T\)`)
)

// TestReportsNameTests checks that every test, suite and target of make which docs/reports.md names exists.
func TestReportsNameTests(t *testing.T) {
	data, err := os.ReadFile("../docs/reports.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := func(dir string) []string {
		files, err := filepath.Glob(filepath.Join("..", dir, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no tests: %v", dir, err)
		}
		var out []string
		for _, f := range files {
			source, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range testOfFile.FindAllStringSubmatch(string(source), -1) {
				out = append(out, m[1])
			}
		}
		return out
	}
	check := func(dir, pattern string) {
		known := tests(dir)
		for name := range strings.SplitSeq(strings.ReplaceAll(pattern, `\`, ""), "|") {
			if !slices.ContainsFunc(known, func(k string) bool { return strings.Contains(k, name) }) {
				t.Errorf("%s has no test %s", dir, name)
			}
		}
	}
	named := endToEnd.FindAllStringSubmatch(string(data), -1)
	for _, m := range named {
		check("test/e2e", m[1])
	}
	units := unitTest.FindAllStringSubmatch(string(data), -1)
	for _, m := range units {
		check(m[1], m[2])
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	known := gpuSuite.FindAllStringSubmatch(read("test/gpu/suite.py")+read("test/gpu/pairs.py"), -1)
	suites := gpuSuites.FindAllStringSubmatch(string(data), -1)
	for _, m := range suites {
		for suite := range strings.FieldsSeq(m[1]) {
			if !slices.ContainsFunc(known, func(k []string) bool { return k[1] == suite }) {
				t.Errorf("test/gpu has no suite %s", suite)
			}
		}
	}
	rules := read("Makefile")
	targets := makeTarget.FindAllStringSubmatch(string(data), -1)
	for _, m := range targets {
		for target := range strings.FieldsSeq(m[1]) {
			if !strings.Contains(rules, "\n"+target+":") {
				t.Errorf("the Makefile has no target %s", target)
			}
		}
	}
	if len(named) < 20 || len(units) < 4 || len(suites) < 15 || len(targets) < 4 {
		t.Errorf("%d end-to-end tests, %d unit tests, %d suites and %d targets named: the page or the pattern changed", len(named), len(units), len(suites), len(targets))
	}
}
