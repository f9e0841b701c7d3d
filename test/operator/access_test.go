// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// faults lists what a screen reader or a keyboard user would miss: controls without a name, drawings
// without a text, doubled ids, cells without headers, positive tab orders, faint text.
const faults = `(() => {
	const out = [];
	const shown = (e) => e.getClientRects().length > 0;
	const name = (e) => {
		const by = e.getAttribute("aria-labelledby");
		return (e.getAttribute("aria-label") ?? (by && document.getElementById(by)?.textContent) ?? [...(e.labels ?? [])].map((l) => l.textContent).join(" ") ?? "").trim() ||
			(["BUTTON", "A", "SUMMARY", "OPTION"].includes(e.tagName) ? e.textContent.trim() : "");
	};
	const say = (what, e) => out.push(what + ": " + e.outerHTML.slice(0, 120));
	for (const e of document.querySelectorAll("button, input, select, a[href], summary, [tabindex], meter, dialog, section, article, canvas[role=img]")) {
		if (name(e) === "" && (shown(e) || e.tagName === "SECTION")) say("no name", e);
		if (e.tabIndex > 0) say("positive tab order", e);
	}
	for (const e of document.querySelectorAll("canvas")) {
		if (e.getAttribute("role") !== "img" && e.closest("[aria-hidden=true]") === null) say("drawing without text", e);
	}
	const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
	for (const id of ids) if (ids.filter((i) => i === id).length > 1) out.push("doubled id " + id);
	for (const e of document.querySelectorAll("[aria-labelledby]")) if (!document.getElementById(e.getAttribute("aria-labelledby"))) say("label is missing", e);
	for (const e of document.querySelectorAll("th")) if (!e.scope) say("header without scope", e);
	const levels = [...document.querySelectorAll("h1, h2, h3")].map((h) => Number(h.tagName[1]));
	levels.forEach((l, i) => i > 0 && l > levels[i - 1] + 1 && out.push("heading level skipped: " + levels));
	if (levels.filter((l) => l === 1).length !== 1) out.push("not one h1");
	if (!document.documentElement.lang || !document.title || !document.querySelector("main")) out.push("no language, title or main part");

	const rgb = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);
	const light = (c) => c.slice(0, 3).map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
	const behind = (e) => {
		for (; e !== null; e = e.parentElement) {
			const c = rgb(getComputedStyle(e).backgroundColor);
			if (c.length === 3 || c[3] > 0) return c;
		}
		return [255, 255, 255];
	};
	for (const e of document.querySelectorAll("body *")) {
		if (!shown(e) || e.closest(".uplot, dialog, :disabled") || ![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim() !== "")) continue;
		const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
		const contrast = (a + 0.05) / (b + 0.05);
		if (contrast < 4.5) say("contrast " + contrast.toFixed(1), e);
	}
	return [...new Set(out)];
})()`

// TestLongDashboardAccess: everything has a name and enough contrast, in light and dark and on a
// phone, and the keyboard alone reaches and operates it.
func TestLongDashboardAccess(t *testing.T) {
	addr := serveScene(t, &scene{})
	b := newBrowser(t, 0)
	check := func(where string) {
		t.Helper()
		for _, f := range eval[[]string](b, faults) {
			t.Errorf("%s: %s", where, f)
		}
	}
	b.appearance("light", 1280, 1000, false)
	b.open(addr)
	b.until("the table", `document.querySelectorAll("tr[data-pid]").length === 6`)
	check("light")
	b.do(chromedp.Click(`tr[data-pid="4711"] button.name`))
	b.until("details", `document.querySelector(".detail")`)
	check("details")
	if text := eval[string](b, `document.querySelector(".tile[data-pid='4711']")?.textContent ?? ""`); !strings.Contains(text, "serve.py protected") || !strings.Contains(text, "99.8 %") {
		t.Errorf("the tile of serve.py is %q", text)
	}
	b.appearance("dark", 1280, 1000, false)
	b.until("dark by preference", `document.documentElement.dataset.theme === "dark"`)
	check("dark")
	b.appearance("dark", 390, 844, true)
	check("phone")
	b.appearance("dark", 1280, 1000, false)

	// The switch overrides the preference and survives a reload.
	b.press("Appearance: auto. Switch to light")
	b.until("light by choice", `document.documentElement.dataset.theme === "light"`)
	b.open(addr)
	b.until("light by choice, again", `document.documentElement.dataset.theme === "light"`)
	b.press("Appearance: light. Switch to dark")
	b.press("Appearance: dark. Switch to auto")
	b.until("by preference again", `document.documentElement.dataset.theme === "dark"`)

	// Tab reaches every control that is shown.
	b.press("Pause") // rows must not move below the focus
	b.do(chromedp.Evaluate[chromedp.Void](`document.activeElement.blur(); window.reached = new Set(); document.addEventListener("focusin", (e) => reached.add(e.target))`))
	controls := `[...document.querySelectorAll("button, input:not([type=radio]), input[type=radio]:checked, select, a[href], summary, [tabindex='0']")].filter((e) => !e.disabled && e.getClientRects().length > 0)`
	for range eval[int](b, controls+".length") + 5 {
		b.do(chromedp.KeyEvent(kb.Tab))
	}
	for _, missed := range eval[[]string](b, controls+`.filter((e) => !reached.has(e)).map((e) => e.outerHTML.slice(0, 120))`) {
		t.Errorf("Tab does not reach %s", missed)
	}
	// Arrow keys move in the table, Enter opens the details, Escape closes them.
	b.do(chromedp.Evaluate[chromedp.Void](`document.querySelector("tr[data-pid] button.name").focus()`))
	b.do(chromedp.KeyEvent(kb.ArrowDown), chromedp.KeyEvent(kb.ArrowDown), chromedp.KeyEvent(kb.ArrowUp))
	b.until("the second row has the focus", `document.activeElement.closest("tr").getAttribute("aria-rowindex") === "3"`)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until("details by keyboard", `document.querySelector(".detail")`)
	b.do(chromedp.Evaluate[chromedp.Void](`document.querySelector(".detail button").focus()`), chromedp.KeyEvent(kb.Escape))
	b.until("no details", `!document.querySelector(".detail")`)
	b.clean(addr)
}

// crowdSize is the number of tenants that must stay smooth, each with two changes a second.
const crowdSize = 500

// TestLongDashboardCrowd: the page draws a bounded part of 500 tenants, and its browser uses less than a
// tenth of a core. CPU time is what the kernel counted for all of Chromium's processes.
func TestLongDashboardCrowd(t *testing.T) {
	s := &scene{crowd: crowdSize}
	addr := serveScene(t, s)
	b := newBrowser(t, 0)
	b.appearance("light", 1280, 1000, false)
	b.open(addr)
	b.until("the count of tenants", `document.querySelector("#tenants .count").textContent === "500"`)
	b.until("a timeline", `document.querySelectorAll(".timeline canvas").length === 2`)
	b.next()

	began, cpu, reads := time.Now(), chromiumTime(t, b), s.reads.Load()
	time.Sleep(10 * time.Second) // measures, and waits for nothing
	eventually(t, "five readings", func() bool { return s.reads.Load() >= reads+5 })
	wall := time.Since(began)
	used := chromiumTime(t, b) - cpu
	read := s.reads.Load() - reads
	share := used.Seconds() / wall.Seconds()
	t.Logf("%d tenants, 1,000 changes a second: Chromium used %.1f %% of a core (%v in %v), %d readings", crowdSize, 100*share, used.Round(time.Millisecond), wall.Round(time.Millisecond), read)
	if share > 0.10 {
		t.Errorf("Chromium used %.1f %% of a core, at most 10 %% are allowed", 100*share)
	}

	if rows := eval[int](b, `document.querySelectorAll("tr[data-pid]").length`); rows < 10 || rows > 40 {
		t.Errorf("%d rows are in the document", rows)
	}
	if all := eval[int](b, `document.querySelectorAll("*").length`); all > 2500 {
		t.Errorf("%d elements are in the document", all)
	}
	// The last tenant in the order of PIDs is reached with one key, and exists once.
	b.do(chromedp.Click(`th:first-child button.sort`))
	b.do(chromedp.Evaluate[chromedp.Void](`document.querySelector("tr[data-pid] button.name").focus()`), chromedp.KeyEvent(kb.End))
	b.until("the last tenant", fmt.Sprintf(`document.activeElement.closest("tr")?.dataset.pid === "%d"`, firstPID+crowdSize-1))
	b.do(chromedp.SendKeys(`.filter input`, "job-123"))
	b.until("the filter", `document.querySelectorAll("tr[data-pid]").length === 1`)
	b.clean(addr)
}

// chromiumTime is the CPU time of the browser and of all its processes, from /proc.
func chromiumTime(t testing.TB, b *browser) time.Duration {
	t.Helper()
	parents, ticks := map[int]int{}, map[int]int64{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it ended
		}
		_, rest, ok := strings.Cut(string(text), ") ") // the name may contain spaces
		f := strings.Fields(rest)
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if !ok || err != nil || len(f) < 15 {
			continue
		}
		parents[pid], _ = strconv.Atoi(f[1])
		for _, n := range f[11:15] { // utime, stime, and those of children that ended
			v, _ := strconv.ParseInt(n, 10, 64)
			ticks[pid] += v
		}
	}
	var sum int64
	for pid, own := range ticks {
		for up := pid; up > 1; up = parents[up] {
			if up == b.pid {
				sum += own
				break
			}
		}
	}
	if sum == 0 {
		t.Fatalf("no CPU time of process %d", b.pid)
	}
	return time.Duration(sum) * time.Second / 100 // USER_HZ
}
