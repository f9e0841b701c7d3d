// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// frame shows a report in a frame of a given width, as a phone or a desktop would, and measures it.
// Headless Chromium's own window can't be narrower than 500 pixels.
const frame = `<!DOCTYPE html><meta charset="utf-8"><style>body{margin:0}iframe{border:0;display:block}</style>
<iframe id="f" src="/report.html" width="%d" height="%d"></iframe><pre id="out" hidden></pre><script>
document.getElementById("f").onload = () => {
  const d = document.getElementById("f").contentDocument, root = d.documentElement;
  const charts = [...d.querySelectorAll("figure svg")].filter(s => getComputedStyle(s).display != "none");
  const outside = [], small = [];
  for (const s of charts) {
    const box = s.getBoundingClientRect();
    for (const t of s.querySelectorAll("text")) {
      const b = t.getBoundingClientRect();
      if (b.left < box.left - 2 || b.right > box.right + 2) outside.push(t.textContent);
      if (b.height < 9) small.push(t.textContent);
    }
  }
  document.getElementById("out").textContent = JSON.stringify({
    headline: d.querySelector("h1").textContent, title: d.title, charts: charts.length, figures: d.querySelectorAll("figure").length,
    width: root.scrollWidth, window: root.clientWidth, outside, small, paper: getComputedStyle(d.body).backgroundColor,
    hatched: [...d.querySelectorAll("figure svg .stop")].length,
  });
};
</script>`

// measured is what the frame finds.
type measured struct {
	Headline, Title, Paper string
	Charts, Figures        int
	Width, Window, Hatched int
	Outside, Small         []string
}

// chromium runs headless Chromium on a page, without a profile and without the network.
func chromium(t *testing.T, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "chromium", append([]string{
		"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
		"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--user-data-dir=" + t.TempDir(), "--virtual-time-budget=4000",
	}, args...)...)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("chromium: %v", err)
	}
	return out
}

// TestLongReportInABrowser renders a report at the width of a desktop and of a phone, light and dark,
// and on paper. With -update it writes the screens of the documentation.
func TestLongReportInABrowser(t *testing.T) {
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("no chromium; run `make setup`")
	}
	dir := t.TempDir()
	report := filepath.Join(dir, "report.html")
	text, err := exec.Command(product(t, "bin/xsched"), "sim", filepath.Join(root, "examples/scenarios/inference.yaml"),
		"--compare", "native,HPF:suspend,HPF", "--html", report, "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var result struct {
		Runs []struct {
			Name    string
			Tenants []struct {
				Latency struct {
					P99 float64 `json:"p99_ms"`
				}
			}
		}
	}
	if err := json.Unmarshal(text, &result); err != nil {
		t.Fatal(err)
	}
	lower := result.Runs[0].Tenants[0].Latency.P99 / result.Runs[2].Tenants[0].Latency.P99
	var mu sync.Mutex
	var requests []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		requests = append(requests, r.URL.Path)
		mu.Unlock()
		var width, height int
		switch n, _ := fmt.Sscanf(r.URL.Path, "/frame/%d/%d", &width, &height); {
		case n == 2:
			fmt.Fprintf(w, frame, width, height)
		case r.URL.Path == "/report.html":
			http.ServeFile(w, r, report)
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	for _, view := range []struct {
		name          string
		width, height int
		dark          bool
	}{{"desktop", 1100, 1180, false}, {"phone", 390, 1280, false}, {"dark", 1100, 1180, true}} {
		url := fmt.Sprintf("%s/frame/%d/%d", server.URL, view.width, view.height)
		scheme := "--blink-settings=preferredColorScheme=1"
		if view.dark {
			scheme = "--blink-settings=preferredColorScheme=0"
		}
		window := fmt.Sprintf("--window-size=%d,%d", view.width, view.height)
		dom := chromium(t, scheme, "--window-size=1200,1300", "--dump-dom", url)
		found := regexp.MustCompile(`<pre id="out" hidden="">([^<]*)</pre>`).FindSubmatch(dom)
		var m measured
		if found == nil || json.Unmarshal([]byte(html.UnescapeString(string(found[1]))), &m) != nil {
			t.Fatalf("%s: the page was not measured: %.300s", view.name, dom)
		}
		if want := fmt.Sprintf("HPF: %.0fx lower P99 than native; background keeps ", lower); !strings.HasPrefix(m.Headline, want) || !strings.HasPrefix(m.Title, m.Headline) {
			t.Errorf("%s: headline %q, want %q", view.name, m.Headline, want)
		}
		if m.Figures < 6 || m.Charts != m.Figures || m.Hatched == 0 {
			t.Errorf("%s: %d of %d figures are shown once", view.name, m.Charts, m.Figures)
		}
		if m.Width > m.Window || m.Window != view.width {
			t.Errorf("%s: the page is %d pixels wide in a window of %d", view.name, m.Width, m.Window)
		}
		if len(m.Outside)+len(m.Small) > 0 {
			t.Errorf("%s: text outside its picture %q, too small %q", view.name, m.Outside, m.Small)
		}
		if light := m.Paper == "rgb(252, 252, 250)"; light == view.dark {
			t.Errorf("%s: background %s", view.name, m.Paper)
		}
		screen := filepath.Join(dir, view.name+".png")
		shot := []string{scheme, window, "--screenshot=" + screen, url}
		chromium(t, shot...)
		checkScreen(t, screen, "report-"+view.name+".png")
	}
	pdf := filepath.Join(dir, "report.pdf")
	chromium(t, "--print-to-pdf="+pdf, server.URL+"/report.html")
	if paper, err := os.ReadFile(pdf); err != nil || !bytes.HasPrefix(paper, []byte("%PDF-")) {
		t.Errorf("on paper: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, path := range requests {
		if !strings.HasPrefix(path, "/frame/") && !slices.Contains([]string{"/report.html", "/favicon.ico"}, path) {
			t.Errorf("the report asked for %s", path)
		}
	}
}

// maxScreen is the largest size of a screen in docs/, in bytes.
const maxScreen = 150_000

// checkScreen checks a screenshot, and stores it in docs/ on request. Fonts differ between machines, so
// that the bytes can't be compared.
func checkScreen(t *testing.T, path, name string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := png.Decode(bytes.NewReader(raw)); err != nil || len(raw) > maxScreen {
		t.Errorf("%s: %d bytes, %v", name, len(raw), err)
	}
	if *update {
		if err := os.WriteFile(filepath.Join(root, "docs", name), raw, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
