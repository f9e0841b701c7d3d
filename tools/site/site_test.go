// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// loaded matches what a browser requests by itself.
var loaded = regexp.MustCompile(`<(?:img|link|script|iframe|source|object|embed)\b[^>]*\b(?:src|href|data)="([^"]*)"`)

func TestSite(t *testing.T) {
	out := t.TempDir()
	n, err := build("../..", out)
	if err != nil {
		t.Fatal(err)
	}
	if n < 50 {
		t.Errorf("only %d pages", n)
	}
	requests := 0
	err = filepath.WalkDir(out, func(name string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".html" {
			return err
		}
		html, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if strings.Count(string(html), `aria-current="page"`) > 1 {
			t.Errorf("%s is in the navigation twice", name)
		}
		for _, m := range loaded.FindAllStringSubmatch(string(html), -1) {
			requests++
			if m[1] == "data:," {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s loads %s, which is not in the site", name, m[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if requests < 2*n {
		t.Errorf("found only %d requests in %d pages; the pattern no longer matches", requests, n)
	}
	for _, g := range groups {
		for _, name := range g.pages {
			if _, err := os.Stat(filepath.Join("../..", name)); err != nil {
				t.Errorf("the navigation names a missing page: %v", err)
			}
		}
	}
}

// TestLineBreaks checks that the end of a line separates English words and no Chinese ones.
func TestLineBreaks(t *testing.T) {
	for name, want := range map[string]string{"a.md": "One.\n<a", "a.zh-CN.md": "一二"} {
		html, err := parse(name, []byte("One.\n[link](x)\n\n一\n二\n")).render()
		if err != nil || !strings.Contains(html, want) {
			t.Errorf("%s: %v, %q, want %q in it", name, err, html, want)
		}
	}
}

func TestBrokenLinks(t *testing.T) {
	for text, want := range map[string]string{
		"[a](none.md)":                       "missing file: docs/none.md",
		"[a](#none)":                         "docs/a.md has no heading #none",
		"[a](../README.md#none)":             "README.md has no heading #none",
		"![a](https://example.org/a.png)":    "nothing from other hosts",
		"[a](../../outside.md)":              "outside of the repository",
		"[a](../README.md#two--words-1)\n":   "",
		"[a](https://example.org/x.md#none)": "",
		"[a](.)":                             "",
	} {
		root := t.TempDir()
		for name, content := range map[string]string{"README.md": "# A\n\n## Two & words\n\n## Two & words\n", "docs/a.md": "# B\n\n" + text} {
			if err := write(filepath.Join(root, name), []byte(content)); err != nil {
				t.Fatal(err)
			}
		}
		_, err := build(root, filepath.Join(t.TempDir(), "out"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}
