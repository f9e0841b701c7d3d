// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"compress/gzip"
	"flag"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"xsched/internal/bench/demo"
	"xsched/internal/bench/pair"
)

var record = flag.String("record", "", "measure the named `recordings` of the reports anew on the virtual GPU: demo, bench, pair")

// recorded passes a recording in testdata to read. With -record it measures first.
func recorded(t *testing.T, name string, measure func(w io.Writer) error, read func(r io.Reader) error) {
	t.Helper()
	path := filepath.Join("testdata", name+".json.gz")
	if slices.Contains(strings.Split(*record, ","), name) {
		var out bytes.Buffer
		packed, _ := gzip.NewWriterLevel(&out, gzip.BestCompression)
		if err := measure(packed); err != nil {
			t.Fatal(err)
		}
		if err := packed.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	packed, err := gzip.NewReader(f)
	if err == nil {
		err = read(packed)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func comparison(t *testing.T, name string, o demo.CompareOptions) []byte {
	t.Helper()
	var page bytes.Buffer
	recorded(t, name, func(w io.Writer) error {
		o.Virtual, o.Exe, o.Seed = true, product(t, "bin/xsched"), 1
		r, err := demo.Compare(t.Context(), o)
		if err != nil {
			return err
		}
		return r.WriteRecording(w)
	}, func(from io.Reader) error {
		r, err := demo.ReadRecording(from)
		if err != nil {
			return err
		}
		return r.WriteReport(&page)
	})
	return page.Bytes()
}

// written returns the page that a command of xsched writes to the file after --html.
func written(t *testing.T, dir string, args ...string) []byte {
	t.Helper()
	page := filepath.Join(t.TempDir(), "report.html")
	command := exec.Command(product(t, "bin/xsched"), append(args, "--html", page)...)
	command.Dir = filepath.Join(root, dir)
	if text, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func colocated(t *testing.T) []byte {
	t.Helper()
	var page bytes.Buffer
	recorded(t, "pair", func(w io.Writer) error {
		o := pair.Options{Virtual: true, Platform: "amd", Exe: product(t, "bin/xsched"), Together: 20 * time.Second}
		r, err := pair.Run(t.Context(), o)
		if err != nil {
			return err
		}
		return r.WriteRecording(w)
	}, func(from io.Reader) error {
		r, err := pair.ReadRecording(from)
		if err != nil {
			return err
		}
		return r.WriteHTML(&page)
	})
	return page.Bytes()
}

// inspect finds what is wrong with a page: parts that are wider than the screen, and text in charts that is cut
// off or too small to read.
const inspect = `(() => {
	const wrong = [];
	if (document.documentElement.scrollWidth > innerWidth) wrong.push("the page is " + document.documentElement.scrollWidth + " pixels wide");
	const shown = [...document.querySelectorAll("figure svg")].filter((s) => getComputedStyle(s).display !== "none");
	if (shown.length === 0 || shown.length !== document.querySelectorAll("figure").length) wrong.push(shown.length + " charts are shown");
	for (const s of shown) {
		const box = s.getBoundingClientRect();
		for (const t of s.querySelectorAll("text")) {
			const b = t.getBoundingClientRect();
			if (b.left < box.left - 2 || b.right > box.right + 2) wrong.push("cut off: " + t.textContent);
			if (b.height < 9) wrong.push("too small: " + t.textContent);
		}
	}
	for (const t of document.querySelectorAll("h1, h2, h3, p, li, td, th"))
		if (parseFloat(getComputedStyle(t).fontSize) < 11) wrong.push("too small: " + t.textContent);
	return wrong.join("; ");
})()`

// TestLongReportScreens shows the reports as a desktop, a phone and a printer do, and compares them with the
// screens in docs. `make screens` writes those.
func TestLongReportScreens(t *testing.T) {
	reports := []struct {
		name   string
		page   []byte
		charts []string // which the page must have
	}{
		{"demo", comparison(t, "demo", demo.CompareOptions{Lows: []int{1, 3}}), measured},
		{"bench", comparison(t, "bench", demo.CompareOptions{Lows: []int{2}}), measured},
		{"sim", written(t, ".", "sim", "examples/scenarios/inference.yaml", "--compare", "native,HPF:suspend,HPF"), measured},
		{"pair", colocated(t), measured},
		{"amdlog", written(t, "internal/amdlog/testdata", "amdlog", "mi308x-16-streams.amdlog.gz"), []string{"Kernels per second", "Time between kernels"}},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for i := range reports {
			if r.URL.Path == "/"+reports[i].name {
				_, _ = w.Write(reports[i].page)
				return
			}
		}
		http.NotFound(w, r)
	}))
	defer server.Close()
	b := newBrowser(t, 0)
	for _, report := range reports {
		for _, view := range []struct {
			name, theme   string
			width, height int64
			phone         bool
		}{{"dark", "dark", 1100, 1210, false}, {"desktop", "light", 1100, 1210, false}, {"phone", "light", 390, 1380, true}} {
			b.appearance(view.theme, view.width, view.height, view.phone)
			b.do(chromedp.Navigate(server.URL + "/" + report.name))
			b.until("the report is there", `document.readyState === "complete" && document.querySelector("h1")`)
			if wrong := eval[string](b, inspect); wrong != "" {
				t.Errorf("%s, %s: %s", report.name, view.name, wrong)
			}
			if dark := eval[string](b, `getComputedStyle(document.body).backgroundColor`) != "rgb(252, 252, 250)"; dark != (view.theme == "dark") {
				t.Errorf("%s, %s: the wrong background", report.name, view.name)
			}
			text := eval[string](b, `document.body.textContent`)
			for _, chart := range report.charts {
				if !strings.Contains(text, chart) {
					t.Errorf("%s has no chart %q", report.name, chart)
				}
			}
			if view.name == "desktop" {
				checkText(t, "report-"+report.name, eval[string](b, `document.body.innerText`))
			}
			b.next0()
			shot, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
			if err != nil {
				t.Fatal(err)
			}
			got, err := png.Decode(bytes.NewReader(shot))
			if err != nil {
				t.Fatal(err)
			}
			if view.theme == "light" || report.name == "sim" {
				checkPicture(t, filepath.Join(root, "docs", "images", "report-"+report.name+"-"+view.name+".png"), got)
			}
		}
		paper, err := chromedp.Call(b.ctx, page.PrintToPDF, page.PrintToPDFParams{})
		if err != nil || !bytes.HasPrefix(paper.Data, []byte("%PDF-")) {
			t.Errorf("%s on paper: %v", report.name, err)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, url := range b.requests {
		if !strings.HasPrefix(url, server.URL) {
			t.Errorf("a report asked for %s", url)
		}
	}
}

// measured are the charts of every report with latencies.
var measured = []string{"Latency distribution", "Who has the GPU", "request, arrival to end", "Latency against throughput"}
