// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"xsched/internal/control"
)

// protected starts a daemon with a service that preempts a job.
func protected(t *testing.T) (d *daemon, service, job *tenant) {
	t.Helper()
	d = newDaemon(t, "--mode", "suspend")
	program := product(t, "build/virtual/tenant")
	job = d.tenant(program, 2000, "--priority", "-5")
	service = d.tenant(program, 500, "--priority", "10", "--slo", "20ms")
	job.tell(t, "loop")
	service.tell(t, "rate 50")
	eventually(t, "the job is preempted", func() bool {
		p := d.process(job.pid())
		return p != nil && p.Queues[0].Preemptions > 2
	})
	eventually(t, "the daemon knows what protection gains the service", func() bool {
		p := d.process(service.pid())
		return p != nil && len(p.Protection) == 1 && p.Protection[0].GainP99US > 0
	})
	return d, service, job
}

// TestLongDashboard looks at a real daemon with a real browser: values, actions, a restart.
func TestLongDashboard(t *testing.T) {
	d, service, job := protected(t)
	b := newBrowser(t, 0)
	b.open(d.http)

	// Drawn: a timeline in which the job waits, events, charts.
	b.until("the timeline shows the job's waiting", `[...document.querySelectorAll("canvas")].some((c) => /ran [0-9.]+ %, waited [0-9.]*[1-9]/.test(c.getAttribute("aria-label")))`)
	b.until("a preemption in the log", `document.querySelector(".events li.preemption")`)
	b.until("charts", `document.querySelectorAll(".plot canvas").length === 3`)

	// Stopped tenants have steady values, which must equal those of the API.
	service.tell(t, "pause")
	job.tell(t, "pause")
	eventually(t, "both are idle", func() bool {
		a, c := d.process(service.pid()), d.process(job.pid())
		return a != nil && c != nil && a.State == "idle" && c.State == "idle" && a.GPUShare == 0 && c.GPUShare == 0
	})
	b.next()
	for _, p := range []*tenant{service, job} {
		compare(t, b, d, p.pid())
	}
	gain(t, b, d, service.pid())
	b.pick("Show", "preemption")
	entries, err := d.client.Journal(context.Background(), control.JournalRequest{Max: 200, PerKind: true})
	if err != nil {
		t.Fatal(err)
	}
	if joined := func(e control.JournalEntry) bool { return e.Kind == control.JournalJoined }; !slices.ContainsFunc(entries.Entries, joined) {
		t.Error("preemptions displaced the programs that joined")
	}
	preemptions := slices.DeleteFunc(entries.Entries, func(e control.JournalEntry) bool { return e.Kind != control.JournalPreemption })
	for _, e := range preemptions[max(0, len(preemptions)-20):] {
		text := eval[string](b, fmt.Sprintf(`document.querySelector('.events li[data-seq="%d"]')?.textContent ?? ""`, e.Seq))
		if !strings.HasSuffix(text, e.Text) {
			t.Errorf("event %d is shown as %q; its text is %q", e.Seq, text, e.Text)
		}
	}

	// Actions, with the daemon's view as proof.
	name := d.process(job.pid()).Name
	b.press(fmt.Sprintf("Suspend %s, process %d", name, job.pid()))
	b.press("Cancel")
	b.press(fmt.Sprintf("Suspend %s, process %d", name, job.pid()))
	if d.process(job.pid()).Held {
		t.Error("the job is suspended before the answer")
	}
	b.press("Suspend program")
	eventually(t, "the job is held", func() bool { return d.process(job.pid()).Held })
	b.undo("suspended")
	eventually(t, "the job is resumed", func() bool { return !d.process(job.pid()).Held })
	b.until("the table offers to suspend it", fmt.Sprintf(`[...document.querySelectorAll("button")].some((b) => b.getAttribute("aria-label") === "Suspend %s, process %d")`, name, job.pid()))
	b.press(fmt.Sprintf("Suspend %s, process %d", name, job.pid()))
	b.press("Suspend program")
	eventually(t, "the job is held", func() bool { return d.process(job.pid()).Held })
	b.press(fmt.Sprintf("Resume %s, process %d", name, job.pid()))
	eventually(t, "the job is resumed", func() bool { return !d.process(job.pid()).Held })
	b.press(fmt.Sprintf("Details of %s, process %d", name, job.pid()))
	b.until("details", `document.querySelector("input[name=priority]")`)
	replace(b, "priority", "-9")
	eventually(t, "the priority is -9", func() bool { return d.process(job.pid()).Priority == -9 })
	b.until("the table shows it", cell(job.pid(), "priority")+` === "-9"`)
	choose(b, "policy", "RR")
	b.press("Cancel")
	choose(b, "policy", "RR")
	b.press("Switch policy")
	eventually(t, "the policy is RR", func() bool { return policy(d) == "RR" })
	b.undo("Policy is RR")
	eventually(t, "the policy is HPF again", func() bool { return policy(d) == "HPF" })
	for _, mode := range []string{"level 1", "level 2"} {
		choose(b, "mode", mode)
		b.press("Switch mode")
		b.until("the page says that the mode is "+mode, fmt.Sprintf(`document.querySelector(".notice")?.textContent.startsWith("Mode is %s")`, mode))
		b.until("the page shows "+mode, modeShown(mode))
	}
	if _, err := d.client.SetMode(context.Background(), control.ModeRequest{Mode: "level", Level: 1}); err != nil {
		t.Fatal(err)
	}
	b.until("the page shows the level that another client chose", modeShown("level 1"))
	choose(b, "mode", "timeslice")
	b.press("Switch mode")
	eventually(t, "the mode is timeslice", func() bool {
		m, err := d.client.Mode(context.Background())
		return err == nil && m.Mode == "timeslice"
	})

	// The timeline of a longer time has steps of half a minute.
	b.pick("Timeline", "5 min")
	// The job waited for milliseconds, which are 0.0 % of 5 minutes: the table has the duration.
	b.until("the timeline of 5 minutes shows the job's waiting", fmt.Sprintf(`[...document.querySelectorAll(".timeline")].some((f) => / last 5 min: /.test(f.querySelector("canvas").getAttribute("aria-label"))
		&& [...f.querySelectorAll("tbody tr")].some((row) => row.cells[1].textContent === "%d" && /[1-9]/.test(row.cells[3].textContent)))`, job.pid()))

	// A new daemon at the same address: the page finds it and its tenants by itself.
	old := d.cmd.Process.Pid
	d.kill()
	b.until("the page says that it is not connected", `document.querySelector(".status.lost")`)
	d.start()
	b.until("the page is connected to the new daemon", fmt.Sprintf(`document.querySelector(".status.live") && !document.querySelector("footer").textContent.includes("process %d.")`, old))
	b.until("the job is back", cell(job.pid(), "priority")+` !== undefined`)
	b.clean(d.http)
	for url, csp := range b.headers {
		if !strings.Contains(csp, "default-src 'self'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: policy %q", url, csp)
		}
	}
}

func policy(d *daemon) string {
	reply, err := d.client.Policy(context.Background())
	if err != nil {
		return err.Error()
	}
	return reply.Name
}

// modeShown is true if the selector and the GPU have the mode.
func modeShown(mode string) string {
	return fmt.Sprintf(`document.querySelector("select[name=mode]").value === %q && document.querySelector(".facts").textContent.includes(%q)`, mode, ", mode "+mode)
}

// replace types another value into a field, and the Enter key.
func replace(b *browser, name, value string) {
	b.t.Helper()
	field := fmt.Sprintf("input[name=%s]", name)
	b.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf("document.querySelector(%q).select()", field)), chromedp.SendKeys(field, value+kb.Enter))
}

// choose selects an option as a user does: the page gets a change event.
func choose(b *browser, name, value string) {
	b.t.Helper()
	b.until("the choice "+name, fmt.Sprintf(`(() => {
		const s = document.querySelector("select[name=%s]");
		if (s === null || ![...s.options].some((o) => o.value === %q)) return false;
		s.value = %q;
		s.dispatchEvent(new Event("change", { bubbles: true }));
		return true;
	})()`, name, value, value))
}

// compare checks a row of the table with the API. Both are read again if they changed in between.
func compare(t *testing.T, b *browser, d *daemon, pid int) {
	t.Helper()
	columns := []string{"user", "state", "priority", "level", "share", "p50", "p99", "attainment", "preemptions", "lostUS"}
	target := fmt.Sprintf(`document.querySelector('.tile[data-pid="%d"] [data-fact="Error budget left"]')?.textContent ?? "none"`, pid)
	var got, want []string
	for range 20 {
		p := d.process(pid)
		if p == nil {
			t.Fatalf("no process %d", pid)
		}
		b.next()
		got, want = nil, shown(p)
		for _, c := range columns {
			got = append(got, eval[string](b, cell(pid, c)+` ?? "none"`))
		}
		got = append(got, eval[string](b, target))
		if strings.Join(got, "|") == strings.Join(want, "|") {
			return
		}
	}
	t.Errorf("process %d: the page has %q, the API %q for %q and the target", pid, got, want, columns)
}

// overlapping counts the labels of bars that begin before the one on the left ends, or are cut.
const overlapping = `[...document.querySelectorAll(".bars ol")].flatMap((bars) => [...bars.querySelectorAll(".bound")].filter((label, i, all) =>
	i > 0 && all[i - 1].getBoundingClientRect().right > label.getBoundingClientRect().left || label.scrollWidth > label.clientWidth)).length`

// TestLongDashboardLatency: neither a slow program nor the busy periods of a job flatten the P99 of a
// service, and lines can be hidden.
func TestLongDashboardLatency(t *testing.T) {
	const service, job, slow = 4711, 4890, 5001
	addr := serveScene(t, &scene{slow: slow, never: job})
	b := newBrowser(t, 0)
	b.appearance("light", 1280, 1000, false)
	b.open(addr)
	b.until("charts", `document.querySelectorAll(".plot canvas").length === 3`)
	chart := `[...document.querySelectorAll(".chart")].find((c) => c.textContent.startsWith("Request latency"))`
	listed := func(pid int) bool {
		return eval[bool](b, fmt.Sprintf(`!!%s.querySelector('[data-pid="%d"]')`, chart, pid))
	}
	if !listed(service) || !listed(slow) || listed(job) || !strings.Contains(eval[string](b, chart+`.querySelector("figcaption").textContent`), "train.py") {
		t.Errorf("the chart has lines of the service %v, the slow program %v and the job %v", listed(service), listed(slow), listed(job))
	}
	if n := eval[int](b, overlapping); n > 0 {
		t.Errorf("%d labels of histograms overlap", n)
	}
	b.press("Pause")
	b.next0()
	// The mean height of the pixels in a program's colour above the lowest, in parts of the canvas; -1: none.
	height := func(pid int) float64 {
		return eval[float64](b, fmt.Sprintf(`(() => {
			const colour = getComputedStyle(%[1]s.querySelector('[data-pid="%[2]d"] input')).accentColor.match(/\d+/g).map(Number);
			const canvas = %[1]s.querySelector("canvas"), copy = new OffscreenCanvas(canvas.width, canvas.height);
			const pen = copy.getContext("2d", { willReadFrequently: true });
			pen.drawImage(canvas, 0, 0);
			const { data, width, height } = pen.getImageData(0, 0, canvas.width, canvas.height);
			let sum = 0, n = 0;
			for (let i = 0; i < data.length; i += 4)
				if (colour.every((c, k) => Math.abs(data[i + k] - c) < 8) && data[i + 3] > 200) { sum += Math.floor(i / 4 / width); n++; }
			return n === 0 ? -1 : 1 - sum / n / height;
		})()`, chart, pid))
	}
	// The axis of time takes a quarter of the canvas.
	if at := height(service); at < 0.32 || at > height(slow)-0.3 {
		t.Errorf("P99 of the service is drawn at %.2f of the height, that of the slow program at %.2f", at, height(slow))
	}
	b.do(chromedp.Click(`.chart [data-pid="5001"] input`))
	b.until("the slow program is hidden in all charts", `[...document.querySelectorAll('.chart [data-pid="5001"] input')].filter((i) => !i.checked).length === 3`)
	b.next0()
	if at := height(slow); at != -1 {
		t.Errorf("the hidden program is drawn at %.2f of the height", at)
	}
	if at := height(service); at < 0.4 {
		t.Errorf("alone the service is drawn at %.2f of the height", at)
	}
	b.clean(addr)
}

// TestLongDashboardNoToken: a daemon without a token does not ask for one; the page says how to get
// access.
func TestLongDashboardNoToken(t *testing.T) {
	d := newDaemon(t)
	_, port, _ := strings.Cut(d.http, ":")
	b := newBrowser(t, 0)
	b.open(d.http)
	if eval[bool](b, `!!document.querySelector("button.token")`) {
		t.Error("the page offers a token to a daemon that has none")
	}
	// A name for the loopback interface that the daemon does not know.
	b.do(chromedp.Navigate("http://gpu.localhost:" + port + "/"))
	b.until("the reason", `document.querySelector(".login [role=alert]")?.textContent.includes("gpu.localhost")`)
	text := eval[string](b, `document.querySelector(".login").textContent`)
	if !strings.Contains(text, "http://localhost:"+port+"/") || !strings.Contains(text, "--http-token-file") || eval[bool](b, `!!document.querySelector("input")`) {
		t.Errorf("the page says %q", text)
	}
}

// TestLongDashboardProblems: what keeps the host from scheduling is on the page, with the remedy. The host of
// this test has no problem, so a proxy adds one to the daemon's answer.
func TestLongDashboardProblems(t *testing.T) {
	d := newDaemon(t)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: d.http}) }}
	mux := http.NewServeMux()
	mux.Handle("/", proxy)
	mux.HandleFunc("/api/v1/devices", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"devices": [], "problems": [{"cause": "driver: no kernel module is loaded", "remedy": "load it"}]}`)
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	b := newBrowser(t, 0)
	b.open(strings.TrimPrefix(server.URL, "http://"))
	b.until("the problem", `document.querySelector("main [role=alert]")?.textContent === "Problem: driver: no kernel module is loaded; load it"`)
}

// gain checks the gain of a service, which has its tile, against the API.
func gain(t *testing.T, b *browser, d *daemon, pid int) {
	t.Helper()
	fact := func(name string) string {
		return fmt.Sprintf(`document.querySelector('.tile[data-pid="%d"] [data-fact="%s"]')?.textContent ?? "none"`, pid, name)
	}
	var got, want string
	for range 20 {
		p := d.process(pid)
		if p == nil || len(p.Protection) != 1 {
			t.Fatalf("process %d has no protection on one GPU: %+v", pid, p)
		}
		on := p.Protection[0]
		want = fmt.Sprintf("%s of %s (%s)", micro(on.GainP99US), micro(on.NativeP99US), on.NativeSource)
		b.next()
		name := eval[string](b, fmt.Sprintf(`document.querySelector('.tile[data-pid="%d"] button.name')?.textContent ?? "none"`, pid))
		got = eval[string](b, fact("Protection gains, P99"))
		if p99 := eval[string](b, fact("P99 now")); got == want && name == p.Name && p99 == micro(p.Latency.Total.P99US) {
			return
		}
	}
	t.Errorf("the tile of process %d says that protection gains %q, the API %q", pid, got, want)
}

// shown writes the figures of a process as the dashboard does, by its own rules.
func shown(p *control.Process) []string {
	level := 0
	for _, q := range p.Queues {
		if q.Level > 0 && (level == 0 || q.Level < level) {
			level = q.Level
		}
	}
	p50, p99, attainment, target := "–", "–", "–", "none"
	if p.Latency.Certain() {
		p50, p99 = micro(p.Latency.Total.P50US), micro(p.Latency.Total.P99US)
	}
	if p.SLO != nil {
		attainment, target = ratio(p.SLO.Attainment), ratio(max(0, p.SLO.BudgetLeft))
	}
	return []string{
		p.User, p.State, fmt.Sprint(p.Priority), strings.Replace(fmt.Sprint(level), "0", "–", 1), ratio(p.GPUShare),
		p50, p99, attainment, fmt.Sprint(p.Preemptions), micro(float64(p.LostNS) / 1e3), target,
	}
}

func micro(us float64) string {
	digits := func(v float64) string {
		switch {
		case v < 9.995:
			return fmt.Sprintf("%.2f", v)
		case v < 99.95:
			return fmt.Sprintf("%.1f", v)
		}
		return fmt.Sprintf("%.0f", v)
	}
	switch {
	case us <= 0:
		return "–"
	case us < 9.95:
		return fmt.Sprintf("%.1f µs", us)
	case us < 999.5:
		return fmt.Sprintf("%.0f µs", us)
	case us < 999_500:
		return digits(us/1e3) + " ms"
	}
	return digits(us/1e6) + " s"
}

func ratio(v float64) string {
	switch v *= 100; {
	case v == 0 || v == 100:
		return fmt.Sprintf("%.0f %%", v)
	case v > 99.9 && v < 100:
		return fmt.Sprintf("%.2f %%", float64(int(v*100))/100)
	case v < 10 || v > 99:
		return fmt.Sprintf("%.1f %%", v)
	}
	return fmt.Sprintf("%.0f %%", v)
}

// stranger is a user without rights.
const stranger = 4711

// TestLongDashboardRights: another user's browser reads, sees no command line, and changes nothing.
// The page shows the daemon's reason. With the token it acts as the daemon's user.
func TestLongDashboardRights(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to start a browser as another user")
	}
	secret := strings.Repeat("s3cret", 4)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := newDaemon(t, "--http-token-file", token)
	job := d.tenant(product(t, "build/virtual/tenant"), 2000, "--priority", "-5")
	b := newBrowser(t, stranger)
	b.open(d.http)
	b.until("the job is listed", cell(job.pid(), "priority")+` === "-5"`)
	name := eval[string](b, cell(job.pid(), "name"))
	if strings.Contains(eval[string](b, "document.documentElement.outerHTML"), "--kernel-us") {
		t.Error("the page shows another user's command line")
	}

	refused := func(what string) {
		t.Helper()
		b.until("the daemon's reason against "+what, `document.querySelector(".notice.error[role=alert]")`)
		text := eval[string](b, `document.querySelector(".notice.error").textContent`)
		if !strings.Contains(text, "uid") && !strings.Contains(text, "root") && !strings.Contains(text, "user") {
			t.Errorf("%s: %q", what, text)
		}
		b.press("Dismiss message")
		b.until("the message is gone", `!document.querySelector(".notice")`)
	}
	b.press(fmt.Sprintf("Suspend %s, process %d", name, job.pid()))
	b.press("Suspend program")
	refused("suspending")
	b.press(fmt.Sprintf("Details of %s, process %d", name, job.pid()))
	b.until("details", `document.querySelector("input[name=priority]")`)
	replace(b, "priority", "3")
	refused("a priority")
	choose(b, "policy", "RR")
	b.press("Switch policy")
	refused("a policy")
	choose(b, "mode", "off")
	b.press("Switch mode")
	refused("a mode")
	if p := d.process(job.pid()); p.Held || p.Priority != -5 || policy(d) == "RR" {
		t.Errorf("something changed: held %v, priority %d, policy %s", p.Held, p.Priority, policy(d))
	}

	login := func(value string) {
		b.press("Token…")
		b.until("the token's field", `document.querySelector("dialog input[name=token]")`)
		b.do(chromedp.SendKeys(`dialog input[name=token]`, value+kb.Enter))
	}
	login("not the right one")
	b.until("a wrong token is refused", `document.querySelector(".login [role=alert]")?.textContent === "the token is wrong"`)
	b.press("Continue without token")
	b.until("the page reads as before", `document.querySelector(".status.live")`)
	login(secret)
	b.until("with the token the command is visible", fmt.Sprintf(`document.querySelector('tr[data-pid="%d"] td[data-column=name]')?.title.includes("--kernel-us")`, job.pid()))
	b.press(fmt.Sprintf("Suspend %s, process %d", eval[string](b, cell(job.pid(), "name")), job.pid()))
	b.press("Suspend program")
	eventually(t, "the job is held", func() bool { return d.process(job.pid()).Held })
	if kept := eval[int](b, `localStorage.length + document.cookie.length`); kept != 0 {
		t.Errorf("%d bytes or values outlive the tab", kept)
	}
	b.clean(d.http)
}

// TestLongDashboardHostileNames: a program's command is text, never part of the page's code.
func TestLongDashboardHostileNames(t *testing.T) {
	d := newDaemon(t)
	dir := t.TempDir()
	for _, hostile := range []string{`"><img src=x onerror=window.owned=1>`, `<script>window.owned=1<`, `';alert(1)'`, "a\u202eb\u202e&amp;{{7*7}}"} {
		path := filepath.Join(dir, hostile)
		if err := os.Symlink(product(t, "build/virtual/tenant"), path); err != nil {
			t.Fatal(err)
		}
		p := d.tenant(path, 500)
		p.tell(t, "rate 20")
	}
	b := newBrowser(t, 0)
	b.open(d.http)
	b.until("all are listed", `document.querySelectorAll("tr[data-pid]").length === 4`)
	list, err := d.client.List(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Processes {
		command := strings.ReplaceAll(p.Command, "\u202e", "\ufffd") // would reorder the text after it
		title := eval[string](b, fmt.Sprintf(`document.querySelector('tr[data-pid="%d"] td[data-column=name]').title`, p.PID))
		if title != command || !strings.Contains(title, dir) {
			t.Errorf("%q is shown as %q", command, title)
		}
		b.do(chromedp.Click(fmt.Sprintf(`tr[data-pid="%d"] button.name`, p.PID)))
		b.until("the details of the program", fmt.Sprintf(`[...document.querySelectorAll(".detail dd")].some((e) => e.textContent === %q)`, command))
	}
	b.until("events name them", `document.querySelectorAll(".events li.joined").length >= 4`)
	if n := eval[int](b, `document.querySelectorAll("img, #app script, iframe, object").length + (window.owned ? 1 : 0)`); n != 0 {
		t.Errorf("%d elements came from a name", n)
	}
	b.clean(d.http)
}
