// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// mostPictureBytes bounds a picture in docs.
const mostPictureBytes = 150 << 10

// TestLongDashboardPictures takes the pictures of docs/dashboard.md from a fixed scene, and compares
// them with those in docs. `make pictures-web` writes them.
func TestLongDashboardPictures(t *testing.T) {
	addr := serveScene(t, &scene{})
	b := newBrowser(t, 0)
	for _, p := range []struct {
		name, theme   string
		width, height int64
		phone         bool
		details       string // of this program
	}{
		{"light", "light", 1280, 1640, false, ""},
		{"dark", "dark", 1280, 1640, false, ""},
		{"phone", "light", 390, 1100, true, ""},
		{"details", "light", 1280, 640, false, "serve.py, process 4711"},
	} {
		b.appearance(p.theme, p.width, p.height, p.phone)
		b.open(addr)
		b.until("the preference decides", fmt.Sprintf(`document.documentElement.dataset.theme === %q`, p.theme))
		b.until("charts", `document.querySelectorAll(".plot canvas").length === 3 && document.querySelectorAll(".timeline canvas").length === 2`)
		if over := eval[int](b, `document.documentElement.scrollWidth - innerWidth`); over > 0 {
			t.Errorf("%s: the page is %d pixels wider than the screen", p.name, over)
		}
		if over := eval[int](b, `document.querySelector(".view").scrollWidth - document.querySelector(".view").clientWidth`); over > 0 {
			t.Errorf("%s: %d pixels of the table are cut", p.name, over)
		}
		b.press("Pause")
		if p.details != "" {
			b.press("Details of " + p.details)
			b.until("details", `document.querySelector(".detail")`)
			b.do(chromedp.Evaluate[chromedp.Void](`document.querySelector(".detail").scrollIntoView()`))
		}
		b.next0()
		checkText(t, "dashboard-"+p.name, eval[string](b, `document.body.innerText`))
		shot, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
		if err != nil {
			t.Fatal(err)
		}
		got, err := png.Decode(bytes.NewReader(shot))
		if err != nil {
			t.Fatal(err)
		}
		checkPicture(t, filepath.Join(root, "docs", "images", "dashboard-"+p.name+".png"), got)
	}
	b.clean(addr)
}

// next0 waits for two frames, after which what was rendered is painted.
func (b *browser) next0() {
	b.do(chromedp.Evaluate[chromedp.Void](`new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))`, chromedp.EvalAwaitPromise))
}

// checkText compares the text of a page with its file. A picture alone does not show a changed word,
// because fonts differ between machines. The time zone is that of the machine.
func checkText(t *testing.T, name, got string) {
	t.Helper()
	var lines []string
	for line := range strings.Lines(clockTime.ReplaceAllString(got, "hh:mm:ss")) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			lines = append(lines, line)
		}
	}
	got = strings.Join(lines, "\n") + "\n"
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the text of %s is not current; run with -update if it is right, and look at the picture\ngot\n%s\nwant\n%s", name, got, want)
	}
}

var clockTime = regexp.MustCompile(`\b\d\d?:\d\d:\d\d\b`)

func checkPicture(t *testing.T, path string, got image.Image) {
	t.Helper()
	small := reduce(got)
	if *update {
		var out bytes.Buffer
		encoder := png.Encoder{CompressionLevel: png.BestCompression}
		if err := encoder.Encode(&out, small); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; run `make pictures-web`", err)
	}
	if len(text) > mostPictureBytes {
		t.Errorf("%s has %d bytes, at most %d are allowed", path, len(text), mostPictureBytes)
	}
	want, err := png.Decode(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if want.Bounds() != got.Bounds() {
		t.Fatalf("%s has the size %v, now it is %v; run `make pictures-web`", path, want.Bounds(), got.Bounds())
	}
	// Fonts and smoothing differ between machines, so only a large difference counts.
	different, all := 0, 0
	for y := got.Bounds().Min.Y; y < got.Bounds().Max.Y; y++ {
		for x := got.Bounds().Min.X; x < got.Bounds().Max.X; x++ {
			all++
			if far(got.At(x, y), want.At(x, y)) > 3*64 {
				different++
			}
		}
	}
	if part := float64(different) / float64(all); part > 0.15 {
		t.Errorf("%s is not current: %.0f %% of its pixels differ; run `make pictures-web`", path, 100*part)
	}
}

// far is the distance of two colours, 0 to 765.
func far(a, b color.Color) int {
	r, g, c, _ := a.RGBA()
	x, y, z, _ := b.RGBA()
	abs := func(p, q uint32) int { return max(int(p>>8)-int(q>>8), int(q>>8)-int(p>>8)) }
	return abs(r, x) + abs(g, y) + abs(c, z)
}

// reduce limits a picture to 256 colours, which keeps the file small: the most frequent ones that differ, so that
// the shades of text do not displace the colours of a thin line.
func reduce(from image.Image) *image.Paletted {
	counts := map[color.RGBA]int{}
	bounds := from.Bounds()
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(from.At(x, y)).(color.RGBA) }
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[at(x, y)]++
		}
	}
	all := make([]color.RGBA, 0, len(counts))
	for c := range counts {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b color.RGBA) int {
		if d := counts[b] - counts[a]; d != 0 {
			return d
		}
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
	})
	var palette color.Palette
	for _, c := range all {
		alike := func(other color.Color) bool { return far(c, other) < 12 }
		if len(palette) < 256 && !slices.ContainsFunc(palette, alike) {
			palette = append(palette, c)
		}
	}
	index := map[color.RGBA]uint8{}
	for _, c := range all {
		index[c] = uint8(palette.Index(c))
	}
	out := image.NewPaletted(bounds, palette)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			out.SetColorIndex(x, y, index[at(x, y)])
		}
	}
	return out
}
