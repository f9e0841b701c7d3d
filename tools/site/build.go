// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed page.html
var pageText string

//go:embed site.css
var style []byte

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// group is a part of the navigation: single pages, or all other pages of a folder.
type group struct {
	title string
	pages []string
}

// A page that is in no group is still rendered: other pages link to it.
var groups = []group{
	{"Start", []string{"README.md", "docs/quickstart.md", "docs/concepts.md", "docs/faq.md", "README.zh-CN.md", "docs/quickstart.zh-CN.md"}},
	{"Guides", []string{"docs/guides", "docs/containers.md", "docs/windows.md"}},
	{"Kubernetes", []string{
		"docs/kubernetes/README.md", "docs/kubernetes/start.md", "docs/kubernetes/concepts.md", "docs/kubernetes/install.md",
		"docs/kubernetes/classes.md", "docs/kubernetes/labels.md", "docs/kubernetes/security.md", "docs/kubernetes/troubleshooting.md",
		"docs/kubernetes",
	}},
	{"Operate", []string{
		"docs/operations.md", "docs/configuration.md", "docs/dashboard.md", "docs/monitoring.md", "docs/troubleshooting.md",
		"docs/rollback.md", "docs/migration.md", "SECURITY.md", "docs/threat-model.md",
	}},
	{"Reference", []string{"docs/cli.md", "docs/programming.md", "docs/http-api.md", "docs/simulator.md", "docs/glossary.md", "docs/platforms"}},
	{"Policies", []string{"docs/policies"}},
	{"Results", []string{"docs/results", "docs/strategies.md", "docs/chaos.md"}},
	{"Contribute", []string{"CONTRIBUTING.md", "SCOPE.md", "docs/architecture.md", "docs/decisions", "CHANGELOG.md"}},
}

// sources lists the Markdown files of the documentation, relative to root.
func sources(root string) ([]string, error) {
	var found []string
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err = filepath.Rel(root, name)
		if err != nil {
			return err
		}
		top, _, nested := strings.Cut(filepath.ToSlash(name), "/")
		documented := slices.Contains([]string{".", "docs", "examples", "python", "test"}, top)
		switch {
		case d.IsDir() && (!documented || d.Name() == "node_modules" || d.Name() == "testdata"):
			return filepath.SkipDir
		case !d.IsDir() && path.Ext(name) == ".md" && (!nested || documented):
			found = append(found, filepath.ToSlash(name))
		}
		return nil
	})
	return found, err
}

// address is where the page of a source is, relative to the site.
func address(source string) string {
	if path.Base(source) == "README.md" {
		return path.Join(path.Dir(source), "index.html")
	}
	return strings.TrimSuffix(source, ".md") + ".html"
}

// relative is the link from one address to another.
func relative(from, to string) string {
	link, err := filepath.Rel(filepath.FromSlash(path.Dir(from)), filepath.FromSlash(to))
	if err != nil { // both are below the site
		panic(err)
	}
	return filepath.ToSlash(link)
}

// order sorts the pages of a folder by name, its overview first.
func order(source string) string {
	if path.Base(source) == "README.md" {
		return ""
	}
	return source
}

type entry struct {
	Title, Link string
	Current     bool
}

type section struct {
	Title   string
	Entries []entry
}

// navigation returns the groups as seen from one page.
func navigation(pages map[string]*page, from string) []section {
	var sections []section
	for _, g := range groups {
		s := section{Title: g.title}
		for _, name := range g.pages {
			members := []string{name}
			if path.Ext(name) == "" {
				members = members[:0]
				for source := range pages {
					if path.Dir(source) == name && !slices.Contains(g.pages, source) {
						members = append(members, source)
					}
				}
				slices.SortFunc(members, func(a, b string) int { return cmp.Compare(order(a), order(b)) })
			}
			for _, source := range members {
				if p := pages[source]; p != nil {
					title := p.title
					if p.language() != "en" {
						title += " (" + p.language() + ")"
					}
					s.Entries = append(s.Entries, entry{title, relative(address(from), address(source)), source == from})
				}
			}
		}
		if len(s.Entries) > 0 {
			sections = append(sections, s)
		}
	}
	return sections
}

// build writes the site and returns the number of pages.
func build(root, out string) (int, error) {
	names, err := sources(root)
	if err != nil {
		return 0, err
	}
	pages := map[string]*page{}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return 0, err
		}
		pages[name] = parse(name, text)
	}
	files := map[string]bool{}
	var problems []error
	for _, name := range names {
		problems = append(problems, pages[name].resolve(root, pages, files)...)
	}
	if err := errors.Join(problems...); err != nil {
		return 0, fmt.Errorf("broken links:\n%w", err)
	}
	if err := os.RemoveAll(out); err != nil {
		return 0, err
	}
	for _, name := range names {
		p := pages[name]
		body, err := p.render()
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		var html bytes.Buffer
		err = pageTemplate.Execute(&html, map[string]any{
			"Title": p.title, "Lang": p.language(), "Body": template.HTML(body), "Home": relative(address(name), "index.html"),
			"Style": relative(address(name), "site.css"), "Sections": navigation(pages, name), "Contents": p.contents,
		})
		if err == nil {
			err = write(filepath.Join(out, address(name)), html.Bytes())
		}
		if err != nil {
			return 0, err
		}
	}
	for name := range files {
		content, err := os.ReadFile(filepath.Join(root, name))
		if err == nil {
			err = write(filepath.Join(out, name), content)
		}
		if err != nil {
			return 0, err
		}
	}
	return len(names), write(filepath.Join(out, "site.css"), style)
}

func write(name string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, content, 0o644)
}
