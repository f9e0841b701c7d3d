// SPDX-License-Identifier: Apache-2.0

package pair

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"xsched/internal/bench"
	"xsched/internal/bench/benchtest"
	"xsched/internal/control"
	"xsched/internal/engine"
	"xsched/internal/model"
	"xsched/internal/report"
)

func TestMain(m *testing.M) { benchtest.Main(m) }

// TestEnvironment: both programs get this process's variables, and the daemon of the run. Those of --offline-env
// are the offline program's alone.
func TestEnvironment(t *testing.T) {
	t.Setenv("XSCHED_AMD_SESSION", "1")
	t.Setenv("XSCHED_SOCKET", "/elsewhere")
	t.Setenv("XSCHED_DIR", "/elsewhere")
	t.Setenv("XSCHED_POLICY", "UP")
	c := &colocation{Options: Options{OfflineEnv: []string{"XSCHED_AMD_SESSION=0"}}, rig: &bench.Rig{Dir: "/here"}}
	for offline, session := range map[bool]string{false: "1", true: "0"} {
		found := map[string]string{}
		for _, pair := range c.environment(offline) {
			name, value, _ := strings.Cut(pair, "=")
			found[name] = value
		}
		for name, want := range map[string]string{"XSCHED_AMD_SESSION": session, "XSCHED_DIR": "/here", "XSCHED_SOCKET": "", "XSCHED_POLICY": ""} {
			if found[name] != want {
				t.Errorf("offline %v: %s=%q, want %q", offline, name, found[name], want)
			}
		}
	}
}

// A request lasts from the first busy queue until all queues are idle. A resume during a request is
// due to the slice.
func TestHistory(t *testing.T) {
	h := newHistory(bench.Window{From: 100, To: 1000})
	h.drawn = bench.Window{From: 100, To: 600}
	online, second, offline := model.QueueID{Session: 1}, model.QueueID{Session: 1, Index: 1}, model.QueueID{Session: 2}
	add := func(id model.QueueID, priority model.Priority) {
		h.follow(&engine.Event{Kind: engine.EventAdd, Queue: &model.Queue{ID: id, Hint: model.Hint{Priority: priority}}})
	}
	busy := func(at model.Time, id model.QueueID, on bool) {
		h.follow(&engine.Event{Kind: engine.EventBusy, At: at, ID: id, On: on})
	}
	stop := func(at model.Time, level model.Level) {
		h.follow(&engine.Event{Kind: engine.EventDecide, At: at, Changes: []model.Desired{{Queue: offline, Suspend: level}}})
	}
	add(online, 10)
	add(second, 10)
	add(offline, -10)
	busy(50, online, true) // before the window
	busy(60, online, false)
	busy(110, online, true)
	stop(111, model.LevelDeactivate)
	stop(112, model.LevelDeactivate) // no new one
	busy(120, second, true)
	busy(130, online, false)
	stop(131, 0) // while the second queue still has work
	stop(135, model.LevelInterrupt)
	busy(160, second, false)
	stop(165, 0)
	stop(170, model.LevelBlock) // a gate is no suspension
	busy(500, online, true)
	h.follow(&engine.Event{Kind: engine.EventRemove, At: 530, ID: online})
	busy(600, offline, true)
	busy(990, second, true)
	busy(1200, second, false)
	busy(1300, second, true) // after the window
	busy(1400, second, false)
	if want := []time.Duration{50, 30, 210}; !slices.Equal(h.requests, want) {
		t.Errorf("requests %v, want %v", h.requests, want)
	}
	for i, want := range []uint64{1, 0, 0, 0, 1, 0, 0, 0, 0, 1} { // begun at 110, 500 and 990
		if h.tenths[i].N() != want {
			t.Errorf("tenth %d has %d requests, want %d", i, h.tenths[i].N(), want)
		}
	}
	if want := []bench.Window{{From: 111, To: 131}, {From: 135, To: 165}}; !slices.Equal(h.pauses, want) {
		t.Errorf("suspensions %v, want %v", h.pauses, want)
	}
	if want := []bench.Window{{From: 110, To: 160}, {From: 500, To: 530}}; !slices.Equal(h.busies, want) {
		t.Errorf("drawn requests %v, want %v", h.busies, want)
	}
	if h.suspensions != 2 || h.afterSlice != 1 || h.afterRequest != 1 {
		t.Errorf("%d suspensions, %d resumed after a slice, %d after the request", h.suspensions, h.afterSlice, h.afterRequest)
	}
}

func TestThroughput(t *testing.T) {
	second := int64(time.Second)
	alone := progress{from: 0, to: 2 * second, ran: 2 * time.Second, launches: 400, recorded: true, hooked: true}
	both := progress{from: 2 * second, to: 6 * second, ran: 3800 * time.Millisecond, onlineRan: 80 * time.Millisecond, launches: 720, recorded: true, hooked: true}
	if got := throughput(alone, both); !got.Measured || got.Loss < 0.0499 || got.Loss > 0.0501 || got.OnlineShare < 0.0199 || got.OnlineShare > 0.0201 || got.Net < 0.0299 || got.Net > 0.0301 {
		t.Errorf("%+v", got)
	}
	alone.recorded, both.recorded = false, false
	if got := throughput(alone, both); !got.Measured || got.Loss < 0.0999 || got.Loss > 0.1001 || got.Unit != "launches a second" {
		t.Errorf("%+v", got)
	}
	alone.hooked = false
	if got := throughput(alone, both); got.Measured {
		t.Errorf("without a measurement: %+v", got)
	}
	if got := throughput(progress{}, both); got.Measured {
		t.Errorf("no time alone: %+v", got)
	}
}

func TestBetween(t *testing.T) {
	counts := func(at5ms, all uint64) control.Histogram {
		h := control.Histogram{Count: all}
		for _, bound := range control.HistogramBoundsUS() {
			if bound < 5000 {
				h.Cumulative = append(h.Cumulative, 0)
			} else {
				h.Cumulative = append(h.Cumulative, at5ms)
			}
		}
		return h
	}
	o := between(counts(3, 5), counts(102, 105), suspendTarget)
	if o.N != 100 || o.Within != 99 || !o.met() {
		t.Errorf("%+v", o)
	}
	if o := between(counts(3, 5), counts(101, 105), suspendTarget); o.met() {
		t.Errorf("2 of 100 are late: %+v", o)
	}
	if o := between(control.Histogram{}, control.Histogram{}, resumeTarget); o.met() {
		t.Error("without operations, the target counts as met")
	}
}

// finished returns a colocation whose programs have ended with these errors.
func finished(online, offline error, ended bool) *colocation {
	return &colocation{
		online: &side{name: "online", err: online}, offline: &side{name: "offline", err: offline, ended: ended},
		report: &Report{
			Route: "owner", Suspensions: 3, Requests: &report.Latency{P99: 2, N: 3},
			Suspend: Operation{N: 3, Within: 3}, Resume: Operation{N: 3, Within: 3},
		},
		alone:    progress{to: int64(time.Second), ran: time.Second, recorded: true},
		together: progress{to: int64(time.Second), ran: 990 * time.Millisecond, recorded: true},
	}
}

func TestPairRefusesWithoutProof(t *testing.T) {
	good := finished(nil, nil, false)
	if err := good.prove(); err != nil || !good.report.Met() || len(good.report.Targets) != 6 {
		t.Fatalf("%v %+v", err, good.report.Targets)
	}
	for name, spoil := range map[string]func(r *Report){
		"never suspended": func(r *Report) { r.Suspend.N = 0 },
		"not decided":     func(r *Report) { r.Suspensions = 0 },
		"no request":      func(r *Report) { r.Requests = nil },
		"only the gate":   func(r *Report) { r.Route = "gate" },
	} {
		c := finished(nil, nil, false)
		spoil(c.report)
		if err := c.prove(); !errors.Is(err, bench.ErrProof) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The programs' own verification counts.
	failed := exec.Command("false").Run()
	for name, c := range map[string]*colocation{"failed": finished(nil, failed, false), "had to be ended": finished(nil, failed, true)} {
		if err := c.prove(); err != nil || c.report.Met() || !strings.Contains(c.report.Targets[5].Got, name) {
			t.Errorf("%s: %v %+v", name, err, c.report.Targets[5])
		}
	}
	slow := finished(nil, nil, false)
	slow.report.Requests.P99, slow.together.ran = 51, 900*time.Millisecond
	if err := slow.prove(); err != nil || slow.report.Targets[2].Met || slow.report.Targets[3].Met {
		t.Errorf("%v %+v", err, slow.report.Targets)
	}
}

func TestGroupOf(t *testing.T) {
	if !slices.Contains(groupOf(syscall.Getpgrp()), os.Getpid()) {
		t.Error("this process is not in its own group")
	}
}

// Children that outlive their program are killed.
func TestSideEndsItsChildren(t *testing.T) {
	note := filepath.Join(t.TempDir(), "pid")
	c := &colocation{rig: &bench.Rig{Dir: t.TempDir()}}
	s, err := c.start("offline", "sleep 300 & echo $! > "+note, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	<-s.done
	s.stop()
	b, err := os.ReadFile(note)
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(groupOf(s.cmd.Process.Pid), child) {
		_ = syscall.Kill(child, syscall.SIGKILL)
		t.Error("a child is still running")
	}
	if s.err != nil || s.ended {
		t.Errorf("exit error %v, ended by us %v; want neither", s.err, s.ended)
	}
}

// A process that holds more and more is named; a few files and threads come and go.
func TestLeaked(t *testing.T) {
	quiet := Usage{Name: "daemon", Files: [2]int{20, 24}, Threads: [2]int{8, 9}, Resident: [2]uint64{1 << 20, 1 << 30}}
	if got := leaked([]Usage{quiet}); len(got) != 0 {
		t.Errorf("no leak: %v", got)
	}
	files, threads := quiet, quiet
	files.Files[1], threads.Threads[1] = 200, 100
	if got := leaked([]Usage{quiet, files, threads}); len(got) != 2 || !strings.Contains(strings.Join(got, " "), "from 20 to 200") {
		t.Errorf("%v", got)
	}
	c := finished(nil, nil, false)
	c.report.Usage = []Usage{files}
	if err := c.prove(); err != nil || c.report.Met() || !strings.Contains(c.report.Targets[4].Got, "open files of the daemon") {
		t.Errorf("%v %+v", err, c.report.Targets[4])
	}
	own, ok := read(os.Getpid())
	if !ok || own.files == 0 || own.threads == 0 || own.resident == 0 {
		t.Errorf("%+v %v", own, ok)
	}
}

// The limit is two remaps for each request. Only a loss that it permits to avoid is a miss.
func TestSweepLimit(t *testing.T) {
	cell := func(requests int, net float64) Cell {
		r := &Report{Requests: &report.Latency{N: requests}, Throughput: Throughput{TogetherS: 10, Net: net, Loss: net, Measured: true}, Suspensions: requests, Remaps: uint64(2 * requests)}
		return Cell{Rate: float64(requests) / 10, Report: r, Limit: limit(r, 300*time.Microsecond)}
	}
	slow, fast, bad := cell(100, 0.02), cell(1000, 0.12), cell(200, 0.06)
	if slow.Limit < 0.00599 || slow.Limit > 0.00601 || fast.Limit < 0.0599 || fast.Limit > 0.0601 {
		t.Errorf("limits %v and %v, want 0.006 and 0.06", slow.Limit, fast.Limit)
	}
	s := &Sweep{RemapMS: 0.3, Cells: []Cell{slow, fast}}
	if !s.Met() {
		t.Error("a loss beyond the limit counts as a miss")
	}
	s.Cells = append(s.Cells, bad)
	if s.Met() {
		t.Error("6 % counts as met where 1.2 % are possible")
	}
	var text strings.Builder
	if err := s.WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"yes", "limit", "no", "12.0 %", "2.0"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, text.String())
		}
	}
}

func TestLoadDefaults(t *testing.T) {
	var l Load
	if err := l.defaults(); err != nil || l.Rate != 10 || l.Request != 5*time.Millisecond {
		t.Errorf("%+v %v", l, err)
	}
	for _, bad := range []Load{{Rate: -1}, {Rate: 1e6}, {Queues: -1}, {Request: time.Nanosecond}} {
		if err := bad.defaults(); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}
