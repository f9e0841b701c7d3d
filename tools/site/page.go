// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

// converter returns GitHub's Markdown. In Chinese text, the end of a line is no space.
func converter(language string) goldmark.Markdown {
	extensions := []goldmark.Extender{extension.GFM}
	if language == "zh-CN" {
		extensions = append(extensions, extension.NewCJK(extension.WithEastAsianLineBreaks()))
	}
	return goldmark.New(goldmark.WithExtensions(extensions...), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
}

// page is one document.
type page struct {
	source   string
	text     []byte
	root     ast.Node
	title    string
	contents []entry // headings of the second level
	anchors  map[string]bool
}

var anchorDrop = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

// githubIDs derives anchors from headings as GitHub does, so that links work in both places.
type githubIDs struct{ used map[string]bool }

func (g *githubIDs) Generate(value []byte, _ ast.NodeKind) []byte {
	id := strings.ReplaceAll(anchorDrop.ReplaceAllString(strings.ToLower(string(value)), ""), " ", "-")
	unique := id
	for n := 1; g.used[unique]; n++ {
		unique = id + "-" + strconv.Itoa(n)
	}
	g.used[unique] = true
	return []byte(unique)
}

func (g *githubIDs) Put(value []byte) { g.used[string(value)] = true }

// parse reads a document with its headings.
func parse(source string, content []byte) *page {
	ids := &githubIDs{map[string]bool{}}
	p := &page{source: source, text: content, title: path.Base(source), anchors: ids.used}
	p.root = converter(p.language()).Parser().Parse(text.NewReader(content), parser.WithContext(parser.NewContext(parser.WithIDs(ids))))
	first := true
	for n := p.root.FirstChild(); n != nil; n = n.NextSibling() {
		h, ok := n.(*ast.Heading)
		if !ok {
			continue
		}
		id, _ := h.AttributeString("id")
		switch {
		case h.Level == 1 && first:
			p.title, first = p.plain(h), false
		case h.Level == 2:
			p.contents = append(p.contents, entry{Title: p.plain(h), Link: "#" + string(id.([]byte))})
		}
	}
	return p
}

// plain is the text of a node without markup.
func (p *page) plain(n ast.Node) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if t, ok := n.(*ast.Text); ok && entering {
			b.Write(t.Value(p.text))
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

func (p *page) language() string {
	if strings.HasSuffix(p.source, ".zh-CN.md") {
		return "zh-CN"
	}
	return "en"
}

// resolve turns links to documents into links to pages, notes the files that they need, and returns
// what leads nowhere. A link to a folder without a page becomes plain text.
func (p *page) resolve(root string, pages map[string]*page, files map[string]bool) []error {
	var problems []error
	problem := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf(p.source+": "+format, args...))
	}
	var folders []*ast.Link
	_ = ast.Walk(p.root, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Image:
			name, _, err := p.target(root, string(n.Destination))
			if err != nil {
				problem("image %w", err)
				break
			}
			files[name] = true
		case *ast.Link:
			destination := string(n.Destination)
			if external(destination) {
				break
			}
			name, anchor, err := p.target(root, destination)
			if err != nil {
				problem("link %w", err)
				break
			}
			if pages[name] == nil && pages[path.Join(name, "README.md")] != nil {
				name = path.Join(name, "README.md")
			}
			switch info, err := os.Stat(filepath.Join(root, name)); {
			case err != nil:
				problem("link %w", err)
			case pages[name] != nil && anchor != "" && !pages[name].anchors[anchor]:
				problem("%s has no heading #%s", name, anchor)
			case pages[name] != nil:
				n.Destination = []byte(relative(address(p.source), address(name)))
				if anchor != "" {
					n.Destination = []byte(string(n.Destination) + "#" + anchor)
				}
			case info.IsDir():
				folders = append(folders, n)
			default:
				files[name] = true
			}
		}
		return ast.WalkContinue, nil
	})
	for _, link := range folders {
		for child := link.FirstChild(); child != nil; child = link.FirstChild() {
			link.Parent().InsertBefore(link.Parent(), link, child)
		}
		link.Parent().RemoveChild(link.Parent(), link)
	}
	return problems
}

func external(destination string) bool {
	return strings.Contains(destination, "://") || strings.HasPrefix(destination, "mailto:") || strings.HasPrefix(destination, "//")
}

// target returns the file in the repository that a link names, and its anchor.
func (p *page) target(root, destination string) (name, anchor string, err error) {
	if external(destination) {
		return "", "", fmt.Errorf("to %s: pages load nothing from other hosts", destination)
	}
	name, anchor, _ = strings.Cut(destination, "#")
	if name == "" {
		return p.source, anchor, nil
	}
	name = path.Join(path.Dir(p.source), name)
	if strings.HasPrefix(name, "..") {
		return "", "", fmt.Errorf("to %s: outside of the repository", destination)
	}
	if _, err := os.Stat(filepath.Join(root, name)); err != nil {
		return "", "", fmt.Errorf("to a missing file: %s", name)
	}
	return name, anchor, nil
}

// render returns the document as HTML.
func (p *page) render() (string, error) {
	var b bytes.Buffer
	err := converter(p.language()).Renderer().Render(&b, p.text, p.root)
	return b.String(), err
}
