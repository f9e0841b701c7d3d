// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
	"xsched/internal/model"
)

// said returns a valid value of each hint that is not its default.
func said(t *testing.T, f *model.HintField) model.HintValue {
	t.Helper()
	texts := map[string]string{
		"priority": "-7", "level": "1", "in_flight": "8", "batch": "3", "utilization": "40", "timeslice_us": "2ms", "deadline_us": "30ms",
		"laxity_us": "7ms", "lax_priority": "-3", "critical_priority": "9", "k": "2", "window_active": "true", "slo_us": "20ms", "slo_percentile": "99.5",
		"gang": "ranks", "per_queue": "true",
	}
	text, special := texts[f.Name]
	if !special { // any value in the middle of its range
		text = f.Format(model.HintValue{Number: (f.Min + f.Max + 1) / 2, Text: "name"})
	}
	v, err := f.Parse(text)
	if err != nil || v == (model.HintValue{}) {
		t.Fatalf("hint %s: %q: %v", f.Name, text, err)
	}
	return v
}

// groups returns the hints that are set together.
func groups() [][]model.HintField {
	var out [][]model.HintField
	for _, f := range model.HintFields() {
		if n := len(out); n > 0 && out[n-1][0].Bit == f.Bit {
			out[n-1] = append(out[n-1], f)
		} else {
			out = append(out, []model.HintField{f})
		}
	}
	return out
}

// hinted is a program whose hints a test sets.
type hinted struct {
	*program
	w *world
}

// arrived waits until the daemon has these values, for the process or one of its queues.
func (h hinted) arrived(t *testing.T, queue int, fields []model.HintField) {
	t.Helper()
	var last control.Hints
	eventually(t, soon, fmt.Sprintf("%s of queue %d arrives", fields[0].Name, queue), func() bool {
		p := h.w.process(h.pid())
		if p == nil {
			return false
		}
		last = p.Hints
		for _, q := range p.Queues {
			if int(q.Index) == queue {
				last = q.Hints
			} else if queue >= 0 && fields[0].Name != "per_queue" && q.Hints.Value(&fields[0]) == said(t, &fields[0]) {
				t.Fatalf("%s reached queue %d too", fields[0].Name, q.Index)
			}
		}
		return !slices.ContainsFunc(fields, func(f model.HintField) bool { return last.Value(&f) != said(t, &f) })
	})
}

// place is "process" or the number of a queue, as the test programs read it.
func place(queue int) string {
	if queue < 0 {
		return "process"
	}
	return fmt.Sprint(queue)
}

// tell sets hints through the standard input of hints.c and hints.py.
func tell(t *testing.T, h hinted, queue int, fields []model.HintField) {
	t.Helper()
	line := place(queue)
	for _, f := range fields {
		v := said(t, &f)
		if f.Kind == model.HintName {
			line += fmt.Sprintf(" %s=%s", f.Name, v.Text)
		} else {
			line += fmt.Sprintf(" %s=%d", f.Name, v.Number)
		}
	}
	h.send(line)
	if got := h.expect("result", soon); got != "result 0" {
		t.Fatalf("%s: %s", line, got)
	}
}

// command sets hints with `xsched hint`.
func command(t *testing.T, h hinted, queue int, fields []model.HintField) {
	t.Helper()
	args := []string{"hint", fmt.Sprint(h.pid())}
	if queue >= 0 {
		args = append(args, "--queue", fmt.Sprint(queue))
	}
	for _, f := range fields {
		args = append(args, "--"+f.Flag+"="+f.Format(said(t, &f)))
	}
	h.w.must(args...)
}

// post sets hints over HTTP.
func post(t *testing.T, h hinted, queue int, fields []model.HintField) {
	t.Helper()
	body := map[string]any{"pid": h.pid()}
	if queue >= 0 {
		body["queue"] = queue
	}
	for _, f := range fields {
		v := said(t, &f)
		switch f.Kind {
		case model.HintName:
			body[f.Name] = v.Text
		case model.HintSwitch:
			body[f.Name] = v.Number != 0
		case model.HintPercentile:
			body[f.Name] = float64(v.Number) / 100
		default:
			body[f.Name] = v.Number
		}
	}
	if status, text := h.w.post(t, body); status != http.StatusOK {
		t.Fatalf("%v: %d %s", body, status, text)
	}
}

func (w *world) post(t *testing.T, body any) (int, string) {
	t.Helper()
	return w.postTo(t, "/api/v1/hint", body)
}

func (w *world) postTo(t *testing.T, route string, body any) (int, string) {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	client := w.http()
	answer, err := client.Post("http://xsched"+route, "application/json", strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	reply, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(reply)
}

func (w *world) http() *http.Client {
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", w.path("control.sock"))
		},
	}}
}

func (w *world) get(t *testing.T, route string) string {
	t.Helper()
	answer, err := w.http().Get("http://xsched" + route)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	reply, _ := io.ReadAll(answer.Body)
	return string(reply)
}

// TestEveryHintEveryWay sets each hint by environment, `xsched run`, `xsched hint`, HTTP, C and Python, for the
// process and for one queue, and checks that the daemon has it.
func TestEveryHintEveryWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	library := filepath.Dir(product(t, "libxsched.so"))
	c := compile(t, "gcc", "hints.c", "-std=c11", "-I"+filepath.Join(root, "shim"), "-L"+library, "-Wl,--no-as-needed", "-lxsched")
	start := func(t *testing.T, o options, argv ...string) hinted {
		p := w.run(o, argv...)
		p.expect("ready", soon)
		eventually(t, soon, "it has joined", func() bool { known := w.process(p.pid()); return known != nil && len(known.Queues) > 0 })
		return hinted{p, w}
	}
	atOnce := func(t *testing.T, h hinted) {
		for _, g := range groups() {
			h.arrived(t, -1, g)
		}
		_ = h.wait(10 * time.Second)
	}
	t.Run("environment", func(t *testing.T) {
		env := []string{"LD_PRELOAD=" + product(t, "libxsched.so") + ":" + product(t, "virtual/libvgpu.so")}
		for _, f := range model.HintFields() {
			env = append(env, f.Env+"="+f.EnvText(said(t, &f)))
		}
		atOnce(t, start(t, options{plain: true}, append(append([]string{"env"}, env...), c)...))
	})
	t.Run("run", func(t *testing.T) {
		var args []string
		for _, f := range model.HintFields() {
			args = append(args, "--"+f.Flag+"="+f.Format(said(t, &f)))
		}
		atOnce(t, start(t, options{args: args}, c))
	})
	python := []string{"env", "PYTHONPATH=" + filepath.Join(root, "python"), "python3", "-B", "testdata/hints.py"}
	for _, way := range []struct {
		name    string
		argv    []string
		say     func(*testing.T, hinted, int, []model.HintField)
		outside bool // not the process itself
	}{
		{"hint", []string{c}, command, true},
		{"http", []string{c}, post, true},
		{"c", []string{c}, tell, false},
		{"python", python, tell, false},
	} {
		t.Run(way.name, func(t *testing.T) {
			if way.argv[0] == "env" {
				if _, err := exec.LookPath("python3"); err != nil {
					t.Skip("no python3")
				}
			}
			t.Run("process", func(t *testing.T) {
				h := start(t, options{}, way.argv...)
				for _, g := range groups() {
					if !g[0].API && !way.outside {
						continue // only others change it while the process runs
					}
					way.say(t, h, -1, g)
					h.arrived(t, -1, g)
				}
				_ = h.wait(10 * time.Second)
			})
			t.Run("queue", func(t *testing.T) {
				h := start(t, options{args: []string{"--per-queue"}}, way.argv...)
				eventually(t, soon, "its streams are queues", func() bool { return len(w.process(h.pid()).Queues) == 3 })
				h.send("queues")
				if got := h.expect("queues", soon); got != "queues 0 1 2" {
					t.Fatalf("it sees %s", got)
				}
				for _, g := range groups() {
					if g[0].Process {
						continue
					}
					way.say(t, h, 2, g)
					h.arrived(t, 2, g)
				}
				_ = h.wait(10 * time.Second)
			})
		})
	}
}

// TestBadHintsChangeNothing: the daemon refuses an invalid hint with the reason and keeps the old values.
func TestBadHintsChangeNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.tenant(options{priority: 3}, 200)
	w.waitLevel(p.pid(), 1)
	before := *w.process(p.pid())
	for body, want := range map[string]string{
		`{"priority": 256}`:                           "priority 256 is out of range",
		`{"priority": 5, "k": 1025}`:                  "k 1025 is out of range",
		`{"timeslice_us": 99}`:                        "timeslice 99µs is out of range",
		`{"deadline_us": -1}`:                         "deadline -1µs is out of range",
		`{"laxity_us": -5}`:                           "laxity -5µs is out of range",
		`{"lax_priority": -300}`:                      "lax priority -300 is out of range",
		`{"slo_percentile": 99}`:                      "slo percentile 99 has no target",
		`{"slo_us": 5000, "slo_percentile": 100}`:     "slo percentile 100 is out of range",
		`{"gang": "` + strings.Repeat("g", 64) + `"}`: "gang has 64 bytes",
		`{"gang": "a\u001bb"}`:                        "control character",
		`{"utilization": 101}`:                        "utilization 101 is out of range",
		`{"in_flight": 2, "batch": 3}`:                "batch 3 is larger than in-flight limit 2",
		`{"queue": 77, "priority": 1}`:                "no queue 77",
		`{"queue": 0, "level": 1}`:                    "level applies to a process",
		`{"queue": 0, "per_queue": true}`:             "per queue applies to a process",
		`{"priority": "high"}`:                        "priority",
		`{"urgency": 1}`:                              "unknown field",
		`{"queue": -1, "priority": 1}`:                "queue",
	} {
		var request map[string]any
		if err := json.Unmarshal([]byte(body), &request); err != nil {
			t.Fatal(err)
		}
		request["pid"] = p.pid()
		if status, text := w.post(t, request); status < 400 || status >= 500 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s, want %q", body, status, text, want)
		}
	}
	after := *w.process(p.pid())
	if after.Hints != before.Hints || after.Queues[0].Hints != before.Queues[0].Hints {
		t.Errorf("something changed: %+v, before %+v", after.Hints, before.Hints)
	}
	p.finish()
}

// TestStrangersAreSeen: beside an unmanaged program no low gets a tiny timeslice, in which it would starve. The
// list of devices counts the unmanaged program.
func TestStrangersAreSeen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	high, low := w.tenant(options{priority: 10}, 200), w.tenant(options{}, 2000, "--depth", "2")
	w.waitLevel(high.pid(), 3)
	w.waitLevel(low.pid(), 3)
	low.send("loop")
	others := func() int {
		reply, err := w.client.Devices(context.Background())
		if err != nil || len(reply.Devices) == 0 {
			return -1
		}
		return reply.Devices[0].Others
	}
	tiny := func() bool {
		p := w.process(low.pid())
		return p != nil && p.Queues[0].SliceUS > 0 && p.Queues[0].SliceUS < 100
	}
	eventually(t, soon, "the low has a tiny slice", tiny)
	if n := others(); n != 0 {
		t.Errorf("%d strangers before there is one", n)
	}
	stranger := w.tenant(options{plain: true}, 2000)
	stranger.send("loop")
	eventually(t, soon, "the stranger is seen", func() bool { return others() == 1 && !tiny() })
	stranger.finish()
	eventually(t, soon, "and that it has gone", func() bool { return others() == 0 && tiny() })
	low.finish()
	high.finish()
}

// TestActiveWindowFirst: under AWF the program with the active window runs first, until another one has the
// window. Under CHPF the program with the lower nice value runs first.
func TestActiveWindowFirst(t *testing.T) {
	w := newWorld(t, "--policy", "AWF", "--mode", "suspend")
	a, b := w.tenant(options{}, 2000, "--depth", "2"), w.tenant(options{}, 2000, "--depth", "2")
	for _, p := range []*program{a, b} {
		w.waitLevel(p.pid(), 3)
		p.send("loop")
	}
	// Equal programs share evenly; the preferred one leaves only the gaps of its own CPU time.
	first := func(what string, runs, waits *program) {
		t.Helper()
		eventually(t, soon, what, func() bool {
			at := nowNS()
			time.Sleep(500 * time.Millisecond)
			return runs.iterationsAfter(at) > 4*waits.iterationsAfter(at)+20
		})
	}
	window := func(p *program) {
		if status, text := w.postTo(t, "/hint", map[string]any{"hint_type": 7, "pid": p.pid(), "display": 1}); status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
	}
	window(a)
	first("the first one has the window", a, b)
	window(b)
	first("the second one has it", b, a)
	w.must("policy", "CHPF")
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, b.pid())
	if err != nil {
		t.Fatal(err)
	}
	// The system call returns 20 minus the nice value.
	if err := unix.Setpriority(unix.PRIO_PROCESS, b.pid(), 20-raw+5); err != nil {
		t.Fatal(err)
	}
	first("the nicer one waits", a, b)
	a.finish()
	b.finish()
}
