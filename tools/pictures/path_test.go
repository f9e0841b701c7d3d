// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPathTextStaysInItsBox checks docs/path.svg, which is drawn by hand: a text that begins in a box
// ends in it, and no text leaves the picture. A character of 14 pixels takes at most 7.6 on average,
// which holds for the widest of the fonts that the picture names.
func TestPathTextStaysInItsBox(t *testing.T) {
	const perChar = 7.6
	raw, err := os.ReadFile(filepath.Join(root, "docs/path.svg"))
	if err != nil {
		t.Fatal(err)
	}
	var svg struct {
		Rects []struct {
			X      float64 `xml:"x,attr"`
			Y      float64 `xml:"y,attr"`
			Width  float64 `xml:"width,attr"`
			Height float64 `xml:"height,attr"`
		} `xml:"rect"`
		Texts []struct {
			X     float64 `xml:"x,attr"`
			Y     float64 `xml:"y,attr"`
			Class string  `xml:"class,attr"`
			Body  string  `xml:",chardata"`
		} `xml:"text"`
	}
	if err := xml.Unmarshal(raw, &svg); err != nil {
		t.Fatal(err)
	}
	if len(svg.Rects) < 5 || len(svg.Texts) < 15 {
		t.Fatalf("%d boxes and %d texts", len(svg.Rects), len(svg.Texts))
	}
	for _, text := range svg.Texts {
		size := 1.0
		if strings.ContainsAny(text.Class, "nr") {
			size = 12.5 / 14
		}
		end := text.X + size*perChar*float64(len([]rune(text.Body)))
		for _, r := range svg.Rects {
			if text.X >= r.X && text.X < r.X+r.Width && text.Y >= r.Y && text.Y <= r.Y+r.Height && end > r.X+r.Width {
				t.Errorf("%q ends at %.0f, its box at %.0f", text.Body, end, r.X+r.Width)
			}
		}
	}
}
