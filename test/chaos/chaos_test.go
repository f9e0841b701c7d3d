// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"
)

func testPlan() plan {
	return plan{segments: 3, faults: 20, rate: 5, root: true, older: true, kube: true, spaces: []string{"time", "pid", "user"}}
}

// TestGenerateDependsOnSeed: a seed and an episode name one schedule, on every machine.
func TestGenerateDependsOnSeed(t *testing.T) {
	a, b := generate(7, 3, testPlan()), generate(7, 3, testPlan())
	if !reflect.DeepEqual(a, b) {
		t.Error("two schedules of one seed differ")
	}
	if reflect.DeepEqual(a.Segments, generate(8, 3, testPlan()).Segments) || reflect.DeepEqual(a.Segments, generate(7, 4, testPlan()).Segments) {
		t.Error("another seed or episode gives the same schedule")
	}
	if a.Faults() != 60 {
		t.Errorf("%d faults, want 60", a.Faults())
	}
}

// TestGenerateMeetsEveryKind: a campaign of 10,000 faults has every kind many times, and faults overlap.
func TestGenerateMeetsEveryKind(t *testing.T) {
	count, overlaps := map[string]int{}, 0
	for episode := range 170 {
		for _, segment := range generate(1, episode, testPlan()).Segments {
			for i, f := range segment {
				count[f.Kind]++
				if i > 0 && segment[i-1].AtMS+segment[i-1].ForMS > f.AtMS {
					overlaps++
				}
			}
		}
	}
	for _, k := range kinds() {
		if count[k.name] < 50 {
			t.Errorf("%s occurs %d times in 10,200 faults", k.name, count[k.name])
		}
	}
	if overlaps < 5000 {
		t.Errorf("%d of 10,200 faults begin during the one before, want half", overlaps)
	}
}

// TestGenerateWithoutRoot: a user without root or another release gets no fault that needs them.
func TestGenerateWithoutRoot(t *testing.T) {
	p := testPlan()
	p.root, p.older, p.kube = false, false, false
	for episode := range 20 {
		s := generate(1, episode, p)
		for _, f := range slices.Concat(s.Segments...) {
			if k, _ := findKind(f.Kind); k.root || k.older || k.kube || k.platform != "" && k.platform != s.Setup.Platform {
				t.Errorf("%s on %s without root", f.Kind, s.Setup.Platform)
			}
		}
	}
}

// TestMinimize finds the two faults that a failure needs.
func TestMinimize(t *testing.T) {
	s := generate(5, 0, testPlan())
	need := []Fault{s.Segments[0][4], s.Segments[2][11]}
	replays := 0
	got := minimize(s, func(s Schedule) bool {
		replays++
		all := slices.Concat(s.Segments...)
		return slices.Contains(all, need[0]) && slices.Contains(all, need[1])
	})
	if all := slices.Concat(got.Segments...); !slices.Equal(all, need) {
		t.Errorf("minimal schedule %v, want %v", all, need)
	}
	if replays > 60 {
		t.Errorf("%d replays for 60 faults", replays)
	}
}

// TestReadSchedule: --replay prefers the minimal schedule, and rejects files without one.
func TestReadSchedule(t *testing.T) {
	s := generate(5, 0, testPlan())
	path := filepath.Join(t.TempDir(), "failure.json")
	save := func(v any) {
		if err := writeJSON(path, v); err != nil {
			t.Fatal(err)
		}
	}
	save(Failure{Schedule: s})
	if got, err := readSchedule(path); err != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("%v; got %d faults, want %d", err, got.Faults(), s.Faults())
	}
	minimal := without(s, 1, 59)
	save(Failure{Schedule: s, Minimal: minimal})
	if got, err := readSchedule(path); err != nil || got.Faults() != 1 {
		t.Errorf("%v; got %d faults, want the minimal schedule", err, got.Faults())
	}
	save(Failure{Schedule: Schedule{Segments: [][]Fault{{{Kind: "no such fault"}}}}})
	if _, err := readSchedule(path); err == nil {
		t.Error("an unknown kind was accepted")
	}
	save(Failure{})
	if _, err := readSchedule(path); err == nil {
		t.Error("a file without faults was accepted")
	}
	if err := os.WriteFile(path, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readSchedule(path); err == nil {
		t.Error("a broken file was accepted")
	}
}

// TestWatch: a gap ends with progress, begins anew with another bound, and never counts an excuse.
func TestWatch(t *testing.T) {
	const ms = int64(time.Millisecond)
	var w watch
	steps := []struct {
		at       int64
		bound    time.Duration
		progress int64
		gap      stall
		waiting  bool
	}{
		{at: 100, bound: time.Second, progress: 90}, // the bound begins
		{at: 200, bound: time.Second, progress: 90, gap: stall{100, 200}, waiting: true},
		{at: 300, bound: time.Second, progress: 250, gap: stall{100, 250}},
		{at: 400, bound: time.Second, progress: 250, gap: stall{250, 400}, waiting: true},
		{at: 500, progress: 250}, // excused
		{at: 900, progress: 250},
		{at: 1000, bound: time.Second, progress: 250},
		{at: 1100, bound: time.Second, progress: 250, gap: stall{1000, 1100}, waiting: true},
		{at: 1200, bound: time.Minute, progress: 250}, // another bound
		{at: 1300, bound: time.Minute, progress: 1290, gap: stall{1200, 1290}},
	}
	for i, s := range steps {
		gap, waiting := w.follow(s.at*ms, s.bound, "", s.progress*ms)
		if want := (stall{s.gap.from * ms, s.gap.to * ms}); gap != want || waiting != s.waiting {
			t.Errorf("step %d: %v %v, want %v %v", i, gap, waiting, want, s.waiting)
		}
	}
}

// TestWatchRestart: time in which nobody watched counts neither as a gap nor as a suspension in force.
func TestWatchRestart(t *testing.T) {
	w := watch{bound: time.Second, since: 100, heldFrom: 100}
	w.restart(5000)
	if gap, waiting := w.follow(5100, time.Second, "", 4900); gap != (stall{5000, 5100}) || !waiting || w.heldFrom != 5000 {
		t.Errorf("%v %v, held from %d", gap, waiting, w.heldFrom)
	}
}

// TestFound: only a failure of the wanted rule reveals a planted bug.
func TestFound(t *testing.T) {
	c := campaign{failures: []Failure{{Violations: []Violation{{Rule: "late"}, {Rule: "stuck"}}}, {Violations: []Violation{{Rule: "late"}}}}}
	for want, n := range map[string]int{"": 2, "late": 2, "stuck": 1, "held": 0} {
		if c.want = nil; want != "" {
			c.want = []string{want}
		}
		if got := c.found(); got != n {
			t.Errorf("rule %q: %d failures, want %d", want, got, n)
		}
	}
}

// TestReportJSON: the report of a campaign survives its file.
func TestReportJSON(t *testing.T) {
	dir := t.TempDir()
	r := Report{Seed: 3, Faults: 10, Seconds: 2, Kinds: map[string]*KindResult{"daemon-kill": {Count: 10, WorstMS: 120}}}
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(text, &back); err != nil || back.Kinds["daemon-kill"].WorstMS != 120 {
		t.Errorf("%v: %s", err, text)
	}
}

// TestStalls: time without a processor does not count, once for each thread in the chain.
func TestStalls(t *testing.T) {
	s := &stalls{}
	s.Add(100, 110)
	s.Add(150, 160)
	for _, c := range []struct{ from, to, want int64 }{{0, 100, 100}, {0, 200, 200 - wakes*20}, {105, 205, 100 - wakes*15}, {100, 112, 0}} {
		if got := s.elapsed(c.from, c.to); int64(got) != c.want {
			t.Errorf("[%d, %d): %d, want %d", c.from, c.to, got, c.want)
		}
	}
}

// TestEndIsJudgedBeforeTheNextLife: a restart waits for the verdict on the last life, or the harness
// takes its own SIGKILL for a program that ended by itself.
func TestEndIsJudgedBeforeTheNextLife(t *testing.T) {
	w := &world{ledger: newLedger()}
	one := &tenant{spec: spec{role: "low"}, w: w, ended: true, gone: make(chan struct{})}
	cmd := exec.Command("true")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	one.mu.Lock()
	go one.read(cmd, out, nil, one.gone)
	select {
	case <-one.gone:
		t.Error("gone before its end was judged")
	case <-time.After(200 * time.Millisecond):
	}
	one.mu.Unlock()
	<-one.gone
	if w.ledger.failed() {
		t.Error("its end counts as a violation")
	}
}

// TestWorldThatCannotStart: the campaign gets an error, and nothing of the world remains.
func TestWorldThatCannotStart(t *testing.T) {
	for name, s := range map[string]Setup{"device": {Platform: "nvidia", Devices: 1}, "platform": {Platform: "none", Devices: 1}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("TMPDIR", dir)
			if w, err := newWorld(tools{xsched: filepath.Join(dir, "none")}, s, &stalls{}); err == nil || w != nil {
				t.Errorf("%v %v, want an error and no world", w, err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("%v: left %v", err, left)
			}
		})
	}
}

// TestWedgesAddUp: a second blockage of the loop begins when the first one ends.
func TestWedgesAddUp(t *testing.T) {
	d := &daemon{}
	begin := now()
	d.wedge(time.Second)
	d.wedge(time.Second)
	if least := begin + int64(2*time.Second); d.wedged < least {
		t.Errorf("blocked for %v, want 2 s", time.Duration(d.wedged-begin))
	}
}
