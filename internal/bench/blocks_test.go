// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"slices"
	"testing"
	"time"
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
	if got := Iterations(samples, ws); math.Abs(got-2.5) > 1e-9 {
		t.Errorf("iterations = %g, want 2.5", got)
	}
	if got, want := Rate(samples, ws), 2.5/200e-9; math.Abs(got-want) > 1 {
		t.Errorf("rate = %g, want %g", got, want)
	}
	if Rate(samples, nil) != 0 {
		t.Error("rate without windows is not 0")
	}
	if Iterations([]Sample{{5, 5}}, ws) != 0 {
		t.Error("an iteration without length counts")
	}
}

func TestRequestsBelongToTheBlockTheyWereDueIn(t *testing.T) {
	ms := int64(time.Millisecond)
	blocks := []Block{{"native", 0, 1000 * ms}, {"live", 1000 * ms, 2000 * ms}, {"native", 2000 * ms, 2100 * ms}}
	edge := Trim{Head: 100 * time.Millisecond, Tail: 50 * time.Millisecond}
	ws := Windows(blocks, "native", edge)
	if want := []Window{{100 * ms, 950 * ms}}; !slices.Equal(ws, want) {
		t.Fatalf("windows = %v, want %v (the last block is too short to count)", ws, want)
	}
	got := Latencies([]Sample{
		{99 * ms, 101 * ms},   // due before the window
		{100 * ms, 101 * ms},  // the first
		{949 * ms, 1200 * ms}, // due inside, ends under the next mode: counts, or slow requests would be lost
		{950 * ms, 951 * ms},  // too near to the end
		{1500 * ms, 1501 * ms},
	}, ws)
	if want := []time.Duration{time.Millisecond, 251 * time.Millisecond}; !slices.Equal(got, want) {
		t.Errorf("latencies = %v, want %v", got, want)
	}
}

func TestScheduleShufflesWholeRounds(t *testing.T) {
	modes := []string{"alone", "native", "live", "low"}
	a, b := Schedule(modes, 3, 42), Schedule(modes, 3, 42)
	if !slices.Equal(a, b) {
		t.Error("the same seed gives two orders")
	}
	if slices.Equal(a, Schedule(modes, 3, 43)) {
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
	got := SplitTime(segs, ws, 1)
	want := Split{High: 10.0 / 200, Low: 90.0 / 200, Switching: 40.0 / 200, Idle: 60.0 / 200}
	if math.Abs(got.High-want.High)+math.Abs(got.Low-want.Low)+math.Abs(got.Switching-want.Switching)+math.Abs(got.Idle-want.Idle) > 1e-9 {
		t.Errorf("split = %+v, want %+v", got, want)
	}
	if d := Held(segs, 2, Window{50, 160}); d != 60 {
		t.Errorf("held = %v, want 60 ns", d)
	}
	if c := Cut(segs, Window{110, 125}); len(c) != 2 || c[0].From != 110 || c[1].To != 125 {
		t.Errorf("cut = %+v", c)
	}
	all := []Wait{{1, 60, 90}, {1, 70, 75}, {2, 60, 61}, {1, 300, 301}}
	if w := WaitsOf(all, 1, ws); !slices.Equal(w, []time.Duration{5, 30}) {
		t.Errorf("waits = %v", w)
	}
}
