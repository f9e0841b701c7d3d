// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"xsched/internal/report"
)

func TestIterationsCountFractionsAtTheEdges(t *testing.T) {
	ws := []Window{{100, 200}, {400, 500}}
	samples := []Sample{
		{0, 50},    // before: nothing
		{80, 120},  // half in
		{120, 160}, // in
		{160, 240}, // half in
		{300, 400}, // ends where the window starts: nothing
		{350, 550}, // half in, over both edges
		{500, 600}, // starts where the window ends: nothing
	}
	if got := iterations(samples, ws); math.Abs(got-2.5) > 1e-9 {
		t.Errorf("iterations = %g, want 2.5", got)
	}
	if got, want := rate(samples, ws), 2.5/200e-9; math.Abs(got-want) > 1 {
		t.Errorf("rate = %g, want %g", got, want)
	}
	if rate(samples, nil) != 0 {
		t.Error("rate without windows is not 0")
	}
	if iterations([]Sample{{5, 5}}, ws) != 0 {
		t.Error("an iteration without length counts")
	}
}

func TestRequestsBelongToTheBlockTheyWereDueIn(t *testing.T) {
	ms := int64(time.Millisecond)
	blocks := []Block{{ModeNative, 0, 1000 * ms}, {ModeLv3, 1000 * ms, 2000 * ms}, {ModeNative, 2000 * ms, 2100 * ms}}
	edge := trim{head: 100 * time.Millisecond, tail: 50 * time.Millisecond}
	ws := windows(blocks, ModeNative, edge)
	if want := []Window{{100 * ms, 950 * ms}}; !slices.Equal(ws, want) {
		t.Fatalf("windows = %v, want %v (the last block is too short to count)", ws, want)
	}
	got := latencies([]Sample{
		{99 * ms, 101 * ms},   // due before the window
		{100 * ms, 101 * ms},  // the first
		{949 * ms, 1200 * ms}, // due inside, ended under the next mode: counts, or the slow ones would be lost
		{950 * ms, 951 * ms},  // too near to the end
		{1500 * ms, 1501 * ms},
	}, ws)
	if want := []time.Duration{time.Millisecond, 251 * time.Millisecond}; !slices.Equal(got, want) {
		t.Errorf("latencies = %v, want %v", got, want)
	}
}

func TestScheduleShufflesWholeRounds(t *testing.T) {
	modes := append(ModesOf(PlatformNVIDIA), lowAlone)
	a, b := schedule(modes, 3, 42), schedule(modes, 3, 42)
	if !slices.Equal(a, b) {
		t.Error("the same seed gives two orders")
	}
	if slices.Equal(a, schedule(modes, 3, 43)) {
		t.Error("two seeds give the same order")
	}
	for round := range 3 {
		got := slices.Clone(a[round*len(modes) : (round+1)*len(modes)])
		want := slices.Clone(modes)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("round %d has %v", round, got)
		}
	}
}

func TestTimeline(t *testing.T) {
	segs := []Segment{
		{From: 0, To: 100, PID: 2},
		{From: 100, To: 120, PID: 1, Switch: true},
		{From: 120, To: 130, PID: 1},
		{From: 130, To: 150, PID: 2, Switch: true},
		{From: 150, To: 190, PID: 2},
	}
	ws := []Window{{50, 250}}
	got := split(segs, ws, 1)
	want := Split{High: 10.0 / 200, Low: 90.0 / 200, Switching: 40.0 / 200, Idle: 60.0 / 200}
	if math.Abs(got.High-want.High)+math.Abs(got.Low-want.Low)+math.Abs(got.Switching-want.Switching)+math.Abs(got.Idle-want.Idle) > 1e-9 {
		t.Errorf("split = %+v, want %+v", got, want)
	}
	if d := held(segs, 2, Window{50, 160}); d != 60 {
		t.Errorf("held = %v, want 60 ns", d)
	}
	if c := cut(segs, Window{110, 125}); len(c) != 2 || c[0].From != 110 || c[1].To != 125 {
		t.Errorf("cut = %+v", c)
	}
	all := []Wait{{1, 60, 90}, {1, 70, 75}, {2, 60, 61}, {1, 300, 301}}
	if w := waits(all, 1, ws); !slices.Equal(w, []time.Duration{5, 30}) {
		t.Errorf("waits = %v", w)
	}
}

func TestProofHoldsAndEveryCheckCanFail(t *testing.T) {
	if p, err := prove("3 lows", goodEvidence(3)); err != nil || !p.ChecksumsOK || p.Launches != p.ExecutedKernels || p.Preemptions == 0 {
		t.Fatalf("good evidence: %+v, %v", p, err)
	}
	edit := func(mode string, f func(*ModeEvidence)) func(*Evidence) {
		return func(ev *Evidence) { m := ev.Modal[mode]; f(&m); ev.Modal[mode] = m }
	}
	for _, c := range []struct {
		name, want string
		spoil      func(*Evidence)
	}{
		{"shim inert", "shim intercepts", func(ev *Evidence) { ev.Tenants[1].Hooked, ev.Tenants[1].Launches = 0, 0 }},
		{"no tenants", "shim intercepts", func(ev *Evidence) { ev.Tenants = nil }},
		{"a launch was lost", "launches equal kernels", func(ev *Evidence) { ev.Tenants[2].Executed-- }},
		{"a launch was not seen", "launches equal kernels", func(ev *Evidence) { ev.Tenants[2].Own++ }},
		{"wrong checksum", "checksums", func(ev *Evidence) { ev.Tenants[0].Checksum = false }},
		{"a tenant died", "checksums", func(ev *Evidence) { ev.Tenants[0].Died = errors.New("killed") }},
		{"native was not native", "native is native", edit(ModeNative, func(m *ModeEvidence) { m.Suspends = 1 })},
		{"native held launches", "native is native", edit(ModeNative, func(m *ModeEvidence) { m.GateWaits = 1 })},
		{"Lv1 did nothing", "Lv1 holds launches", edit(ModeLv1, func(m *ModeEvidence) { m.GateWaits = 0 })},
		{"Lv1 was never in force", "Lv1 holds launches", edit(ModeLv1, func(m *ModeEvidence) { m.Suspends, m.GateWaits = 0, 0 })},
		{"Lv1 was really Lv3", "Lv1 holds launches", edit(ModeLv1, func(m *ModeEvidence) { m.Deep = 1 })},
		{"nothing was preempted", "Lv3 preempts", edit(ModeLv3, func(m *ModeEvidence) { m.Preemptions = 0 })},
		{"the daemon did nothing", "Lv3 preempts", edit(ModeLv3, func(m *ModeEvidence) { m.Deep = 0 })},
		{"suspend is a no-op", "suspended means not running", func(ev *Evidence) { ev.Hold.Ran[102] = 60 * time.Millisecond }},
		{"not resumed", "suspended means not running", func(ev *Evidence) { ev.Hold.Resumed = false }},
		{"suspend not confirmed", "suspended means not running", func(ev *Evidence) { ev.Hold.Error = errors.New("not confirmed") }},
		{"slices ignored", "slices are in force", func(ev *Evidence) { ev.Slices[1].Device = 2048 * time.Microsecond }},
		{"no slices at all", "slices are in force", func(ev *Evidence) { ev.Slices = nil }},
		{"high waits too long", "GPU reached in time", func(ev *Evidence) {
			for i := len(ev.Reached) - 20; i < len(ev.Reached); i++ {
				ev.Reached[i] = 2 * time.Millisecond
			}
		}},
		{"no record", "GPU reached in time", func(ev *Evidence) { ev.Reached = nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			ev := goodEvidence(3)
			c.spoil(ev)
			_, err := prove("3 lows", ev)
			if !errors.Is(err, ErrProof) || !strings.Contains(err.Error(), ": "+c.want+": ") || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line naming %q", err, c.want)
			}
		})
	}
}

func TestClaims(t *testing.T) {
	r := synthetic()
	if bad := DefaultClaims().Check(r); len(bad) != 0 {
		t.Fatalf("claims fail on a good result: %q", bad)
	}
	for name, spoil := range map[string]func(*Scenario){
		"lv3 slow":    func(s *Scenario) { s.Modes[ModeLv3].High.P99 = s.Modes[ModeAlone].High.P99 + 1.01 },
		"native fine": func(s *Scenario) { s.Modes[ModeNative].High.P99 = s.Modes[ModeAlone].High.P99 + 1.9 },
		"starved":     func(s *Scenario) { s.Modes[ModeLv3].Low.Kept = 0.88 },
		"missing":     func(s *Scenario) { delete(s.Modes, ModeNative) },
	} {
		r := synthetic()
		spoil(&r.Scenarios[1])
		if bad := DefaultClaims().Check(r); len(bad) == 0 {
			t.Errorf("%s: the claims hold", name)
		}
	}
}

func TestResultJSONHasTheAgreedShape(t *testing.T) {
	var buf bytes.Buffer
	if err := synthetic().WriteJSON(&buf); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Device    string
		Scenarios []struct {
			Name  string
			Modes map[string]struct {
				High map[string]float64
				Low  map[string]any
			}
			Proof map[string]any
		}
	}
	if err := json.Unmarshal(buf.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Device != "virtual GPU" || len(got.Scenarios) != 2 || got.Scenarios[0].Name != "1 low" || got.Scenarios[1].Name != "3 lows" {
		t.Fatalf("device and scenarios: %+v", got)
	}
	for _, s := range got.Scenarios {
		for _, mode := range []string{"alone", "native", "xsched-lv1", "xsched-lv3"} {
			m, ok := s.Modes[mode]
			if !ok || m.High["p50_ms"] <= 0 || m.High["p99_ms"] < m.High["p50_ms"] || m.High["n"] != 360 {
				t.Errorf("%s %s: %+v", s.Name, mode, m)
			}
			if _, kept := m.Low["kept"].(float64); kept != (mode != "alone") {
				t.Errorf("%s %s: kept = %v", s.Name, mode, m.Low)
			}
		}
		for _, key := range []string{"hooked_calls", "executed_kernels", "preemptions"} {
			if n, ok := s.Proof[key].(float64); !ok || n <= 0 {
				t.Errorf("%s: proof.%s = %v", s.Name, key, s.Proof[key])
			}
		}
		if s.Proof["checksums_ok"] != true {
			t.Errorf("%s: checksums_ok = %v", s.Name, s.Proof["checksums_ok"])
		}
	}
}

func TestTableSaysWhatItIs(t *testing.T) {
	var buf bytes.Buffer
	if err := synthetic().WriteTable(&buf); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"virtual GPU", "2-core machine", "2026-01-02", "1 low", "3 lows", "P99/alone", "xsched-lv3", "2200 launches = 2200 kernels", "At Lv3 the lows keep"} {
		if !strings.Contains(buf.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, buf.String())
		}
	}
	t.Log("\n" + buf.String())
}

// TestReportHasEveryPart: internal/report checks that a page is well-formed and self-contained.
func TestReportHasEveryPart(t *testing.T) {
	var buf bytes.Buffer
	if err := synthetic().WriteReport(&buf); err != nil {
		t.Fatal(err)
	}
	if path := os.Getenv("XSCHED_REPORT_PREVIEW"); path != "" {
		if err := os.WriteFile(path, buf.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for part, want := range map[string]int{
		">Latency distribution<": 2, ">Latency histogram<": 2, ">Who has the GPU: ": 8, ">GPU time<": 2, ">Proof<": 2, ">How to read this report<": 1,
		">P99 with XSched Lv3<": 2, `class="wait"`: -1, `class="switch"`: -1, `class="arrival"`: -1, "Test &amp; Co &lt;CPU&gt;": 1,
	} {
		if got := strings.Count(buf.String(), part); got == 0 || want > 0 && got != want {
			t.Errorf("%d times %q, want %d", got, part, want)
		}
	}
}

// TestLanesShowWaiting: in native sharing the high tenant waits for a timeslice, and a low tenant that
// does not run waits. Alone, a paused low tenant does not.
func TestLanesShowWaiting(t *testing.T) {
	tenants := []*tenant{{name: "high", id: 1}, {name: "low", id: 2}}
	segs := []Segment{{From: 100, To: 130, PID: 2}, {From: 130, To: 150, PID: 1, Switch: true}, {From: 150, To: 160, PID: 1}}
	waits := []Wait{{PID: 1, Submitted: 110, Started: 150}, {PID: 2, Submitted: 90, Started: 100}, {PID: 1, Submitted: 300, Started: 310}}
	lanes := lanesOf(tenants, segs, waits, Window{100, 200}, false)
	want := []report.Piece{{From: 10, To: 50, State: report.Waiting}, {From: 30, To: 50, State: report.Switching}, {From: 50, To: 60, State: report.Running}}
	if !slices.Equal(lanes[0].Pieces, want) || !slices.Equal(lanes[0].Arrivals, []time.Duration{10}) {
		t.Errorf("high: %+v", lanes[0])
	}
	want = []report.Piece{{To: 100, State: report.Waiting}, {To: 30, State: report.Running}}
	if !slices.Equal(lanes[1].Pieces, want) {
		t.Errorf("low: %+v", lanes[1].Pieces)
	}
	if alone := lanesOf(tenants, nil, nil, Window{100, 200}, true); len(alone[1].Pieces) != 0 {
		t.Errorf("a paused tenant: %+v", alone[1].Pieces)
	}
}

func TestReportOfLittleData(t *testing.T) {
	r := &Result{Device: "GPU", Scenarios: []Scenario{{Name: "1 low", Modes: map[string]*Mode{ModeNative: {}}}}}
	if err := r.WriteReport(io.Discard); err != nil {
		t.Error(err)
	}
	if err := r.WriteTable(io.Discard); err != nil {
		t.Error(err)
	}
	if got := (&Scenario{}).modes(); !reflect.DeepEqual(got, []string(nil)) {
		t.Errorf("modes of nothing = %v", got)
	}
}
