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

	"github.com/chromedp/chromedp"

	"xsched/internal/bench/demo"
)

var record = flag.String("record", "", "measure the named `recordings` of the reports anew on the virtual GPU: demo, bench")

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

func analysed(t *testing.T) []byte {
	t.Helper()
	page := filepath.Join(t.TempDir(), "report.html")
	command := exec.Command(product(t, "bin/xsched"), "amdlog", "--html", page, "mi308x-16-streams.amdlog.gz")
	command.Dir = filepath.Join(root, "internal", "amdlog", "testdata")
	if text, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return text
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

// TestLongReportScreens shows the reports of recorded runs as a desktop and as a phone do, and compares them with
// the screens in docs. `make screens` writes those.
func TestLongReportScreens(t *testing.T) {
	pages := map[string][]byte{
		"demo":   comparison(t, "demo", demo.CompareOptions{Lows: []int{1, 3}}),
		"bench":  comparison(t, "bench", demo.CompareOptions{Lows: []int{2}}),
		"amdlog": analysed(t),
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if page := pages[strings.TrimPrefix(r.URL.Path, "/")]; page != nil {
			_, _ = w.Write(page)
			return
		}
		http.NotFound(w, r)
	}))
	defer server.Close()
	b := newBrowser(t, 0)
	for _, name := range []string{"demo", "bench", "amdlog"} {
		for _, view := range []struct {
			name          string
			width, height int64
			phone         bool
		}{{"desktop", 1100, 1210, false}, {"phone", 390, 1380, true}} {
			b.appearance("light", view.width, view.height, view.phone)
			b.do(chromedp.Navigate(server.URL + "/" + name))
			b.until("the report is there", `document.readyState === "complete" && document.querySelector("h1")`)
			if wrong := eval[string](b, inspect); wrong != "" {
				t.Errorf("%s, %s: %s", name, view.name, wrong)
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
			checkPicture(t, filepath.Join(root, "docs", "images", "report-"+name+"-"+view.name+".png"), got)
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
