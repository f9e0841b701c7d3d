// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"xsched/internal/bench"
	"xsched/internal/bench/benchtest"
	"xsched/internal/report"
)

func TestMain(m *testing.M) { benchtest.Main(m) }

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
			if !errors.Is(err, bench.ErrProof) || !strings.Contains(err.Error(), ": "+c.want+": ") || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line naming %q", err, c.want)
			}
		})
	}
}

// TestBusyMachine: a measurement is repeated if only the check of time failed, which a busy machine can fail, and the
// last failure says so. Any other failure ends the demo at once.
func TestBusyMachine(t *testing.T) {
	outcome := func(spoil func(*Evidence)) error {
		ev := goodEvidence(1)
		spoil(ev)
		_, err := prove("1 low", ev)
		return err
	}
	late := func(ev *Evidence) {
		for i := range ev.Reached {
			ev.Reached[i] = 5 * time.Millisecond
		}
	}
	broken := func(ev *Evidence) { late(ev); ev.Tenants[0].Checksum = false }
	for name, c := range map[string]struct {
		outcomes []error
		tries    int
		want     string // of the error
	}{
		"good":       {[]error{nil}, 1, ""},
		"late once":  {[]error{outcome(late), nil}, 2, ""},
		"late":       {[]error{outcome(late), outcome(late), outcome(late)}, 3, "in 3 tries: stop other programs"},
		"broken":     {[]error{outcome(broken)}, 1, "checksums"},
		"then worse": {[]error{outcome(late), outcome(broken)}, 2, "checksums"},
		"no record":  {[]error{outcome(func(ev *Evidence) { ev.Reached = nil })}, 1, "recorded no kernel"},
	} {
		calls := 0
		res, try, err := undisturbed(t.Context(), func() (*Result, error) {
			calls++
			return &Result{}, c.outcomes[calls-1]
		})
		if try != c.tries || calls != c.tries || (err == nil) != (c.want == "") || err != nil && (!errors.Is(err, bench.ErrProof) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %d tries, %d calls, %v %v", name, try, calls, res, err)
		}
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
	for _, want := range []string{"virtual GPU", "2-core machine", "2026-01-02", "1 low", "3 lows", "P99/alone", "xsched-lv3", "2200 launches = 2200 kernels", "At Lv3 the low tenants keep"} {
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
		">Latency distribution<": 2, ">Latency histogram<": 2, ">Latency against throughput<": 2, ">All modes<": 2, ">Who has the GPU: ": 8, ">GPU time<": 2, ">Proof<": 2, ">How to read this report<": 1,
		">P99 with XSched Lv3<": 2, `class="wait"`: -1, `class="switch"`: -1, `class="arrival"`: -1, `class="span"`: -1, "Test &amp; Co &lt;CPU&gt;": 1,
	} {
		if got := strings.Count(buf.String(), part); got == 0 || want > 0 && got != want {
			t.Errorf("%d times %q, want %d", got, part, want)
		}
	}
}

// TestLanesShowWaiting: in native sharing the high tenant waits for a timeslice, and a low tenant that
// does not run waits. Alone, a paused low tenant does not.
func TestLanesShowWaiting(t *testing.T) {
	tenants := []*bench.Tenant{{Name: "high", ID: 1}, {Name: "low", ID: 2}}
	segs := []bench.Segment{{From: 100, To: 130, PID: 2}, {From: 130, To: 150, PID: 1, Switch: true}, {From: 150, To: 160, PID: 1}}
	waits := []bench.Wait{{PID: 1, Submitted: 110, Started: 150}, {PID: 2, Submitted: 90, Started: 100}, {PID: 1, Submitted: 300, Started: 310}}
	requests := []bench.Sample{{Start: 50, End: 90}, {Start: 90, End: 105}, {Start: 108, End: 165}, {Start: 190, End: 230}}
	lanes := lanesOf(tenants, segs, waits, requests, bench.Window{From: 100, To: 200}, false)
	want := []report.Piece{{From: 10, To: 50, State: report.Waiting}, {From: 30, To: 50, State: report.Switching}, {From: 50, To: 60, State: report.Running}}
	if !slices.Equal(lanes[0].Pieces, want) || !slices.Equal(lanes[0].Requests, []report.Request{{From: -10, To: 5}, {From: 8, To: 65}, {From: 90, To: 130}}) {
		t.Errorf("high: %+v", lanes[0])
	}
	want = []report.Piece{{To: 100, State: report.Waiting}, {To: 30, State: report.Running}}
	if !slices.Equal(lanes[1].Pieces, want) {
		t.Errorf("low: %+v", lanes[1].Pieces)
	}
	if alone := lanesOf(tenants, nil, nil, nil, bench.Window{From: 100, To: 200}, true); len(alone[1].Pieces) != 0 {
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

// TestHeadlineEqualsTheTables computes the headline from the cells of the page's own tables.
func TestHeadlineEqualsTheTables(t *testing.T) {
	for name, spoil := range map[string]func(*Result){
		"better": func(*Result) {},
		"worse":  func(r *Result) { r.Scenarios[1].Modes[ModeLv3].High.P99 *= 40 },
	} {
		r := synthetic()
		spoil(r)
		var page bytes.Buffer
		if err := r.WriteReport(&page); err != nil {
			t.Fatal(err)
		}
		var outcomes []report.Outcome
		for i := range r.Scenarios {
			var o report.Outcome
			for _, row := range r.Scenarios[i].table().Rows {
				if !strings.Contains(page.String(), ">"+row[0]+"</th>") || !strings.Contains(page.String(), "<td>"+row[2]+"</td>") {
					t.Errorf("%s: the page lacks the row %q", name, row)
				}
				switch row[0] {
				case ModeNative:
					o.Before = number(t, row[2])
				case ModeLv3:
					o.After, o.Kept = number(t, row[2]), number(t, strings.TrimSuffix(row[7], " %"))/100
				}
			}
			outcomes = append(outcomes, o)
		}
		want := report.Headline("", ModeNative, outcomes...)
		if !strings.Contains(page.String(), "<h1>"+want+"</h1>") {
			t.Errorf("%s: the tables say %q, the headline %q", name, want, regexp.MustCompile("<h1>.*</h1>").FindString(page.String()))
		}
		if (name == "worse") != strings.Contains(want, "higher P99") {
			t.Errorf("%s: %s", name, want)
		}
	}
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// A recording has all that the report shows.
func TestRecording(t *testing.T) {
	r := synthetic()
	var file, want, got bytes.Buffer
	if err := r.WriteRecording(&file); err != nil {
		t.Fatal(err)
	}
	again, err := ReadRecording(&file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.WriteReport(&want), again.WriteReport(&got)); err != nil || got.String() != want.String() {
		t.Errorf("the report of a recording differs: %v", err)
	}
	if _, err := ReadRecording(strings.NewReader(`{"Result": {"scenarios": [{}]}}`)); err == nil {
		t.Error("a recording without charts is read")
	}
}
