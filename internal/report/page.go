// SPDX-License-Identifier: Apache-2.0

package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
)

//go:embed page.gohtml
var pageSource string

var pageTemplate = template.Must(template.New("page").Parse(pageSource))

// Page is a self-contained HTML report: blocks below each other. The headline states the result in one
// sentence; without one, the title stands in its place.
type Page struct {
	Title    string  `json:"title"`
	Headline string  `json:"headline,omitempty"`
	Blocks   []Block `json:"blocks"`
}

// Block is a piece of a page. Every field may be empty; the page shows them in this order.
type Block struct {
	Section string   `json:"section,omitempty"`
	Heading string   `json:"heading,omitempty"`
	Lead    string   `json:"lead,omitempty"` // the result of a section in one sentence
	Text    string   `json:"text,omitempty"`
	Soft    string   `json:"soft,omitempty"` // text in a softer colour
	Notice  string   `json:"notice,omitempty"`
	Cards   []Card   `json:"cards,omitempty"`
	List    []string `json:"list,omitempty"`
	Table   *Table   `json:"table,omitempty"`
	Curves  []Curve  `json:"curves,omitempty"` // becomes Chart by Draw
	Series  []Series `json:"series,omitempty"` // becomes Chart by Draw
	XUnit   string   `json:"x_unit,omitempty"` // of Series
	YUnit   string   `json:"y_unit,omitempty"` // of Series
	Chart   *Chart   `json:"-"`
	Caption string   `json:"caption,omitempty"`
}

// Card is a figure that stands out.
type Card struct {
	Value string `json:"value"`
	Name  string `json:"name"`
}

// Add appends blocks.
func (p *Page) Add(blocks ...Block) { p.Blocks = append(p.Blocks, blocks...) }

// AddChart appends a chart under its title, unless there is none.
func (p *Page) AddChart(c *Chart, caption string) {
	if c != nil {
		p.Add(Block{Heading: c.Title, Chart: c, Caption: caption})
	}
}

// Draw turns the curves and series of every block into a chart and returns the charts. unit is that
// of the curves.
func (p *Page) Draw(unit string) (charts []*Chart) {
	for i := range p.Blocks {
		b := &p.Blocks[i]
		switch {
		case len(b.Curves) > 0:
			for k := range b.Curves {
				slices.Sort(b.Curves[k].Values)
				if b.Curves[k].Class == "" {
					b.Curves[k].Class = ModeClass(b.Curves[k].Name, k)
				}
			}
			b.Chart = CDF(b.Heading, unit, b.Curves)
		case len(b.Series) > 0:
			for k := range b.Series {
				if b.Series[k].Class == "" {
					b.Series[k].Class = ModeClass(b.Series[k].Name, k)
				}
			}
			b.Chart = Scatter(b.Heading, b.XUnit, b.YUnit, WholePercent, b.Series)
		}
		if b.Chart != nil && len(b.Curves)+len(b.Series) > 0 {
			charts = append(charts, b.Chart)
		}
	}
	return charts
}

// Write writes the page.
func (p *Page) Write(w io.Writer) error {
	err := pageTemplate.Execute(w, struct {
		*Page
		Style template.CSS
		Hatch template.HTML
	}{p, template.CSS(style), template.HTML(hatch)})
	if err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}
