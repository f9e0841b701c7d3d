// SPDX-License-Identifier: Apache-2.0

package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
)

//go:embed page.gohtml
var pageSource string

var pageTemplate = template.Must(template.New("page").Parse(pageSource))

// Page is a self-contained HTML report: blocks below each other.
type Page struct {
	Title  string
	Blocks []Block
}

// Block is a piece of a page. Every field may be empty; the order is that of the fields.
type Block struct {
	Section, Heading string
	Text             string
	Soft             string // text in a softer colour
	Notice           string
	Cards            []Card
	List             []string
	Table            *Table
	Chart            *Chart
	Caption          string
}

// Card is a figure that stands out.
type Card struct{ Value, Name string }

// Add appends blocks.
func (p *Page) Add(blocks ...Block) { p.Blocks = append(p.Blocks, blocks...) }

// AddChart appends a chart under its title, unless there is none.
func (p *Page) AddChart(c *Chart, caption string) {
	if c != nil {
		p.Add(Block{Heading: c.Title, Chart: c, Caption: caption})
	}
}

// Write writes the page.
func (p *Page) Write(w io.Writer) error {
	err := pageTemplate.Execute(w, struct {
		*Page
		Style template.CSS
	}{p, template.CSS(style)})
	if err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}
