// SPDX-License-Identifier: Apache-2.0

package top_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"xsched/internal/control"
	"xsched/internal/screen"
	"xsched/internal/top"
	"xsched/internal/top/toptest"
)

var update = flag.Bool("update", false, "write the golden screens")

// recorder is a daemon that records the actions and refuses those of one kind.
type recorder struct {
	calls   []string
	refuses string
	scene   func() (control.Snapshot, error)
}

func (r *recorder) Fetch(context.Context) (control.Snapshot, error) { return r.scene() }

func (r *recorder) Policies(context.Context) (control.PolicyReply, error) {
	return toptest.Policies(), nil
}

func (r *recorder) call(format string, args ...any) (string, error) {
	text := fmt.Sprintf(format, args...)
	r.calls = append(r.calls, text)
	if r.refuses != "" && strings.HasPrefix(text, r.refuses) {
		return "", &control.Error{Kind: control.ErrNotAllowed, Cause: "process 4711\nbelongs to ana", Remedy: "ask\x1b[2J ana"}
	}
	return "done: " + text, nil
}

func (r *recorder) SetPriority(_ context.Context, pid int, priority int32) (string, error) {
	return r.call("priority %d %d", pid, priority)
}

func (r *recorder) Suspend(_ context.Context, pid int) (string, error) {
	return r.call("suspend %d", pid)
}

func (r *recorder) Resume(_ context.Context, pid int) (string, error) {
	return r.call("resume %d", pid)
}

func (r *recorder) SetPolicy(_ context.Context, name string) (string, error) {
	return r.call("policy %s", name)
}

// view is a model with its source, without a terminal.
type view struct {
	t *testing.T
	*top.Model
	source  *recorder
	pending []tea.Cmd
}

func newView(t *testing.T, width, height int) *view {
	t.Helper()
	step := 0
	source := &recorder{scene: func() (control.Snapshot, error) {
		step++
		return toptest.Scene(step), nil
	}}
	v := &view{t: t, source: source, Model: top.New(t.Context(), source, top.Options{Interval: time.Second, UTF8: true, Sort: "priority"})}
	v.send(tea.WindowSizeMsg{Width: width, Height: height})
	for range 8 {
		v.Take(source.scene())
	}
	return v
}

// send delivers a message. The command that it causes runs with run, except the wait for the next
// refresh, which follows a snapshot.
func (v *view) send(msg tea.Msg) {
	_, cmd := v.Update(msg)
	if cmd != nil && fmt.Sprintf("%T", msg) != "top.fetched" {
		v.pending = append(v.pending, cmd)
	}
}

// run runs the pending commands and those that follow.
func (v *view) run() {
	for len(v.pending) > 0 {
		msg := v.pending[0]()
		v.pending = v.pending[1:]
		if batch, ok := msg.(tea.BatchMsg); ok {
			v.pending = append(v.pending, batch...)
		} else if msg != nil {
			v.send(msg)
		}
	}
}

// keys presses keys, each a rune or the name of a special key.
func (v *view) keys(all ...string) {
	special := map[string]rune{"up": tea.KeyUp, "down": tea.KeyDown, "enter": tea.KeyEnter, "esc": tea.KeyEscape, "end": tea.KeyEnd, "space": tea.KeySpace, "backspace": tea.KeyBackspace}
	for _, name := range all {
		k := tea.KeyPressMsg{Code: special[name]}
		if k.Code == 0 {
			k = tea.KeyPressMsg{Code: []rune(name)[0], Text: name}
		}
		v.send(k)
	}
}

func (v *view) text(width, height int) string { return screen.PlainText(v.Lines(width, height)) }

// golden compares a screen with its file, and checks that it fits.
func (v *view) golden(name string, width, height int) {
	v.t.Helper()
	text := v.text(width, height)
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if height > 0 && len(lines) != height {
		v.t.Errorf("%s has %d lines, want %d", name, len(lines), height)
	}
	for _, line := range lines {
		if width > 0 && screen.Width(line) > width {
			v.t.Errorf("%s: a line has %d columns, want at most %d: %q", name, screen.Width(line), width, line)
		}
	}
	file := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			v.t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		v.t.Fatal(err)
	}
	if text != string(want) {
		v.t.Errorf("%s differs; run `go test ./internal/top -update` if that is right\ngot\n%s\nwant\n%s", name, text, want)
	}
}

func TestScreens(t *testing.T) {
	for _, s := range []struct {
		name          string
		width, height int
		prepare       func(*view)
	}{
		{"80x24", 80, 24, nil},
		{"40x24", 40, 24, nil},
		{"120x40", 120, 40, nil},
		{"20x5", 20, 5, nil},
		{"all", 0, 0, nil},
		{"help", 80, 24, func(v *view) { v.keys("h") }},
		{"policies", 80, 24, func(v *view) { v.keys("p"); v.run(); v.keys("down") }},
		{"confirm", 80, 24, func(v *view) { v.keys("p"); v.run(); v.keys("down", "enter") }},
		{"filter", 80, 24, func(v *view) { v.keys("/", "p", "y", "t") }},
		{"refused", 80, 24, func(v *view) { v.source.refuses = "suspend"; v.keys("s"); v.run() }},
		{"refused-narrow", 40, 24, func(v *view) { v.source.refuses = "suspend"; v.keys("s"); v.run() }},
		{"paused", 80, 24, func(v *view) { v.keys("space", "o", "O") }},
		{"lost", 80, 24, func(v *view) {
			v.Take(control.Snapshot{}, errors.New("no daemon at /run/xsched/control.sock; start one with `xsched serve`"))
		}},
		{"hostile", 80, 24, func(v *view) { v.Take(hostile(), nil); v.keys("down") }},
		{"many", 80, 24, func(v *view) { v.Take(many(500), nil); v.keys("end") }},
		{"none", 80, 24, func(v *view) { s := toptest.Scene(1); s.List.Processes = nil; v.Take(s, nil) }},
	} {
		t.Run(s.name, func(t *testing.T) {
			v := newView(t, s.width, s.height)
			if s.prepare != nil {
				s.prepare(v)
			}
			v.golden(s.name, s.width, s.height)
		})
	}
}

// hostile has tenants that try to break the screen by their names.
func hostile() control.Snapshot {
	s := toptest.Scene(1)
	for i, text := range []string{
		"\x1b[2J\x1b[31mred\x1b]0;title\a", "two\nlines\r\tand \x00 zero", "invalid \xff\xfe\xc0 bytes", "漢字漢字漢字漢字漢字漢字", "zalgo e" + strings.Repeat("\u0301", 200) + " \u202Ereversed\u202C \U0001F468\u200D\U0001F469 \uFE0F",
	} {
		s.List.Processes[i].Command, s.List.Processes[i].Name = text, text
		s.List.Processes[i].User = text
	}
	s.Devices[0].Name = "GPU\x1b[1;1H"
	s.List.Policy = "HPF\x1b[0m"
	return s
}

// TestTwins: where a command does not fit, programs of one kind differ by their names.
func TestTwins(t *testing.T) {
	s := toptest.Scene(1)
	for i := range 2 {
		s.List.Processes[i].Command = fmt.Sprintf("/opt/venv/bin/python3.11 -u examples/server.py --model large --port %d", 80+i)
	}
	control.NameProcesses(s.List.Processes)
	for width, want := range map[int]string{110: "server.py --port 8%d", 200: "python3.11 -u examples/server.py --model large --port 8%d"} {
		v := newView(t, width, 24)
		v.Take(s, nil)
		for i := range 2 {
			if text := v.text(width, 24); !strings.Contains(text, fmt.Sprintf(" "+want+"\n", i)) {
				t.Errorf("at width %d program %d has no line with %q:\n%s", width, i, want, text)
			}
		}
	}
}

func many(n int) control.Snapshot {
	s := toptest.Scene(1)
	s.List.Processes = nil
	for i := range n {
		s.List.Processes = append(s.List.Processes, control.Process{PID: 1000 + i, Session: uint64(i), User: "u", Command: fmt.Sprint("job ", i), State: control.StateIdle})
	}
	for i := range 14 {
		s.Devices = append(s.Devices, control.Device{ID: fmt.Sprintf("0000:%02x:00.0", i+3), Utilization: 0.5})
	}
	return s
}

// TestAnySize draws every screen at every size, and each must have that size exactly.
func TestAnySize(t *testing.T) {
	v := newView(t, 80, 24)
	v.Take(hostile(), nil)
	for _, keys := range [][]string{nil, {"h"}, {"x", "/"}, {"esc", "p"}, {"enter"}, {"n"}} {
		v.keys(keys...)
		v.run()
		for width := 1; width <= 140; width += 3 {
			for height := 1; height <= 50; height += 3 {
				lines := v.Lines(width, height)
				if len(lines) != height {
					t.Fatalf("%d lines at %dx%d", len(lines), width, height)
				}
				for _, line := range lines {
					n := 0
					for _, s := range line {
						n += screen.Width(s.Text)
					}
					if n != width {
						t.Fatalf("%d columns at %dx%d: %q", n, width, height, line.String())
					}
				}
			}
		}
	}
}

func TestActions(t *testing.T) {
	v := newView(t, 80, 24)
	v.keys("+", "+", "-", "down", "s", "r", "p")
	v.run()
	v.keys("down", "enter", "n") // not confirmed
	v.keys("p")
	v.run()
	v.keys("up", "enter", "y")
	v.run()
	want := "priority 4711 1|priority 4711 2|priority 4711 1|suspend 5001|resume 5001|policy FIFO"
	if got := strings.Join(v.source.calls, "|"); got != want {
		t.Errorf("calls\n%s\nwant\n%s", got, want)
	}
	if text := v.text(80, 24); !strings.Contains(text, "done: policy FIFO") {
		t.Error(text)
	}
}

// TestProtectionShown checks that the details tell what protection gains the selected program and costs others.
func TestProtectionShown(t *testing.T) {
	for _, c := range []struct {
		change func(*control.Protection)
		want   string
	}{
		{func(*control.Protection) {}, "protection: -34.1 ms P99 (modelled), costs others up to 2.1 %"},
		{func(p *control.Protection) { p.CostRatio = 0 }, "protection: -34.1 ms P99 (modelled), costs others nothing"},
		{func(p *control.Protection) { p.State, p.Requests = control.ProtectionLearning, 7 }, "protection: learning, 7 requests"},
		{func(p *control.Protection) { p.Submission.Strategy, p.Submission.Reason = "batches", "70 ker\x1bnels" }, "strategy: batches (70 ker?nels)"},
		{func(p *control.Protection) {
			p.State, p.GainP99US, p.NativeSource = control.ProtectionNative, -1500, "mea\x1bsured"
		}, "protection: +1.5 ms P99 (mea?sured), not worth its cost"},
	} {
		v := newView(t, 100, 30)
		s := toptest.Scene(9)
		c.change(&s.List.Processes[0].Protection[0])
		v.Take(s, nil)
		if text := v.text(100, 30); !strings.Contains(text, c.want) {
			t.Errorf("no %q in\n%s", c.want, text)
		}
		s.List.Processes[0].Protection = append(s.List.Processes[0].Protection, control.Protection{Device: "0000:02:00.0", State: control.ProtectionLearning})
		v.Take(s, nil)
		if text := v.text(200, 30); !strings.Contains(text, "protection on 0000:01:00.0: ") || !strings.Contains(text, "protection on 0000:02:00.0: learning, 0 requests") {
			t.Errorf("not by GPU:\n%s", text)
		}
		v.keys("down")
		if text := v.text(100, 30); strings.Contains(text, "protection") {
			t.Errorf("a program without lower ones:\n%s", text)
		}
	}
}

// TestStaleSnapshot checks that keys add up although a snapshot from before an action arrives after it.
func TestStaleSnapshot(t *testing.T) {
	v := newView(t, 80, 24)
	stale := v.Init() // a request under way
	v.keys("+")
	v.run()
	v.pending = []tea.Cmd{stale}
	v.run()
	v.keys("+")
	v.run()
	if got := strings.Join(v.source.calls, "|"); got != "priority 4711 1|priority 4711 2" {
		t.Errorf("calls %s", got)
	}
}

// TestRefusedPriority checks that a refusal drops the keys that built on it.
func TestRefusedPriority(t *testing.T) {
	v := newView(t, 80, 24)
	v.source.refuses = "priority"
	v.keys("+", "+", "+")
	v.run()
	v.source.refuses = ""
	v.keys("-")
	v.run()
	if got := strings.Join(v.source.calls, "|"); got != "priority 4711 1|priority 4711 -1" {
		t.Errorf("calls %s", got)
	}
}

// TestSelectionEnds checks that no key acts on a tenant that took the row of the selected one.
func TestSelectionEnds(t *testing.T) {
	v := newView(t, 80, 24)
	v.keys("down") // 5001
	s := toptest.Scene(9)
	s.List.Processes[2].Session = 77 // the same PID, another process
	v.Take(s, nil)
	v.keys("s", "+")
	v.run()
	if len(v.source.calls) > 0 {
		t.Errorf("acted on another tenant: %q", v.source.calls)
	}
	if text := v.text(80, 24); !strings.Contains(text, "no program is selected") {
		t.Error(text)
	}
	v.keys("down", "s")
	v.run()
	if got := strings.Join(v.source.calls, "|"); got != "suspend 5001" {
		t.Errorf("calls %s", got)
	}
}

// TestRestart checks what a restart of the daemon looks like.
func TestRestart(t *testing.T) {
	v := newView(t, 80, 24)
	v.Take(control.Snapshot{}, errors.New("connection refused"))
	if text := v.text(80, 24); !strings.Contains(text, "daemon lost, retrying: connection refused") || !strings.Contains(text, "serve.py") {
		t.Error(text)
	}
	s := toptest.Scene(9)
	s.Daemon.PID, s.Daemon.StartedNS = 999, s.Daemon.StartedNS+1
	v.Take(s, nil)
	if text := v.text(80, 24); !strings.Contains(text, "the daemon was restarted (PID 999); reconnected") || strings.Contains(text, "lost,") {
		t.Error(text)
	}
}

// TestPause checks that a paused view neither changes nor asks the daemon.
func TestPause(t *testing.T) {
	v := newView(t, 80, 24)
	asked := 0
	v.source.scene = func() (control.Snapshot, error) { asked++; return many(3), nil }
	v.keys("space")
	before := v.text(80, 24)
	v.run()
	if asked > 0 || v.text(80, 24) != before {
		t.Error("changed while paused")
	}
	v.keys("space")
	v.run()
	if asked != 1 || !strings.Contains(v.text(80, 24), "programs 3") {
		t.Errorf("%d requests after the pause\n%s", asked, v.text(80, 24))
	}
}

// TestNoUTF8 checks that a terminal without UTF-8 gets ASCII.
func TestNoUTF8(t *testing.T) {
	m := top.New(t.Context(), nil, top.Options{})
	m.Take(hostile(), nil)
	m.Take(hostile(), nil)
	for i, r := range screen.PlainText(m.Lines(80, 24)) {
		if r >= 0x80 || r < ' ' && r != '\n' {
			t.Fatalf("character %d is %q", i, r)
		}
	}
}
