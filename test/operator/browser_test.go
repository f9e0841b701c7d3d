// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"iter"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"xsched/internal/dashboard"
)

// browser is a headless Chromium with one page.
type browser struct {
	t   testing.TB
	ctx context.Context
	pid int // of the browser

	mu       sync.Mutex
	requests []string // all URLs that the page asked for
	console  []string // errors and violations of the page's policy
	headers  map[string]string
}

// newBrowser starts Chromium in a home of its own, as a user: 0 is the test's own.
func newBrowser(t testing.TB, uid uint32) *browser {
	t.Helper()
	if !dashboard.Built() {
		t.Skip("no dashboard in this build: run `make web`")
	}
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium: run `make setup`")
	}
	home, err := os.MkdirTemp("", "xs-browser")
	if err != nil {
		t.Fatal(err)
	}
	if uid != 0 {
		if err := os.Chown(home, int(uid), int(uid)); err != nil {
			t.Fatal(err)
		}
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.UserDataDir(home+"/profile"), chromedp.NoSandbox, chromedp.WindowSize(1280, 900),
		chromedp.Env("HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_CACHE_HOME="+home, "TMPDIR="+home, "LANG=C.UTF-8", "TZ=UTC"),
		chromedp.Flag("disable-gpu", true), chromedp.Flag("force-color-profile", "srgb"),
		chromedp.WSURLReadTimeout(2*patience),
		chromedp.ModifyCmdFunc(func(cmd *exec.Cmd) {
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if uid != 0 {
				cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
			}
		}),
	)
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocator)
	b := &browser{t: t, ctx: ctx, headers: map[string]string{}}
	t.Cleanup(func() {
		cancel()
		stop()
		_ = os.RemoveAll(home)
	})
	if err := chromedp.Do(ctx); err != nil { // starts the browser, which lives as long as ctx
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	b.pid = chromedp.FromContext(ctx).Browser.Process().Pid
	listen(ctx, chromedp.Events(ctx, network.RequestWillBeSent), b.request)
	listen(ctx, chromedp.Events(ctx, network.ResponseReceived), b.response)
	listen(ctx, chromedp.Console(ctx), b.message)
	return b
}

// listen passes events on until the browser ends.
func listen[E any](ctx context.Context, events iter.Seq2[E, error], to func(E)) {
	go func() {
		for e, err := range events {
			if err != nil || ctx.Err() != nil {
				return
			}
			to(e)
		}
	}()
}

func (b *browser) request(e network.EventRequestWillBeSent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests = append(b.requests, e.Request.URL)
}

func (b *browser) response(e network.EventResponseReceived) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if v, ok := e.Response.Headers["Content-Security-Policy"].(string); ok {
		b.headers[e.Response.URL] = v
	}
}

// message keeps errors, and violations of the page's policy. A refused or failed request is not one.
func (b *browser) message(m chromedp.ConsoleMessage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m.Source != "network" && (m.IsException() || m.Type == "error" || m.Type == "warning") {
		b.console = append(b.console, m.Text)
	}
}

// do runs actions within the limit of a test.
func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatalf("%v; the page says: %s", err, b.problems())
	}
}

func (b *browser) problems() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.console, "\n")
}

// eval evaluates an expression in the page.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	out, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v; the page says: %s", expression, err, b.problems())
	}
	return out
}

// until waits until an expression is true in the page.
func (b *browser) until(what, expression string) {
	b.t.Helper()
	end := time.Now().Add(patience)
	for {
		ctx, cancel := context.WithTimeout(b.ctx, patience)
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("!!("+expression+")"))
		cancel()
		if err == nil && ok {
			return
		}
		if time.Now().After(end) {
			text, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string](`document.body.innerText.slice(0, 1500)`))
			b.t.Fatalf("not within %v: %s (%v); problems: %s; the page:\n%s", patience, what, err, b.problems(), text)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// open shows a dashboard and waits for its first data.
func (b *browser) open(addr string) {
	b.t.Helper()
	b.do(chromedp.Navigate("http://" + addr + "/"))
	b.until("the page is live", `document.querySelector(".status.live")`)
}

// next waits until the page has read the daemon completely once more.
func (b *browser) next() {
	b.t.Helper()
	ticks := eval[int](b, ticksOf)
	b.until("another reading", fmt.Sprintf("%s > %d", ticksOf, ticks+1))
}

const ticksOf = `Number(document.querySelector(".status").dataset.ticks)`

// cell is the text of a tenant's cell.
func cell(pid int, column string) string {
	return fmt.Sprintf(`document.querySelector('tr[data-pid="%d"] td[data-column="%s"]')?.textContent`, pid, column)
}

// press clicks a button by its accessible name.
func (b *browser) press(name string) {
	b.t.Helper()
	b.until("a button "+name, fmt.Sprintf(`(() => {
		const button = [...document.querySelectorAll("button")].find((b) => (b.getAttribute("aria-label") ?? b.textContent).trim() === %q);
		button?.click();
		return button;
	})()`, name))
}

// undo takes back the change that the page has just reported.
func (b *browser) undo(report string) {
	b.t.Helper()
	b.until("the report: "+report, fmt.Sprintf(`document.querySelector(".notice")?.textContent.includes(%q)`, report))
	b.press("Undo")
}

// pick selects the option of a choice whose text begins so.
func (b *browser) pick(legend, option string) {
	b.t.Helper()
	b.until("the choice of "+option, fmt.Sprintf(`(() => {
		const choice = [...document.querySelectorAll("fieldset.choice")].find((f) => f.textContent.startsWith(%q));
		const input = [...choice?.querySelectorAll("label") ?? []].find((l) => l.textContent.startsWith(%q))?.querySelector("input");
		input?.click();
		return input;
	})()`, legend, option))
}

// clean fails if the page asked another host for something, or had an error.
func (b *browser) clean(addr string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.requests) < 5 {
		b.t.Errorf("only %d requests were recorded", len(b.requests))
	}
	for _, text := range b.requests {
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "data" && u.Host != addr {
			b.t.Errorf("the page asked for %s", text)
		}
	}
	for _, text := range b.console {
		b.t.Errorf("the page says: %s", text)
	}
}

// appearance emulates the system's preference and a screen.
func (b *browser) appearance(theme string, width, height int64, phone bool) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}})
	if err == nil {
		_, err = chromedp.Call(b.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1, Mobile: phone})
	}
	if err != nil {
		b.t.Fatal(err)
	}
}
