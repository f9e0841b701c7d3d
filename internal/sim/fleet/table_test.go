// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bytes"
	"math"
	"slices"
	"testing"
	"time"
)

// TestTableIsCurrent simulates some mixes again. Small changes of the engine leave the table useful, so
// that it may be 15 % off. Otherwise run `make capacity-table`, then `make capacity`.
func TestTableIsCurrent(t *testing.T) {
	for _, m := range []mix{
		{how: XSched, cost: 1, own: 1, ownLoad: 0.5, kernel: 1, batch: 1},
		{how: XSched, cost: 1, own: 1, ownLoad: 0.7, other: 0, kernel: 0, batch: 3},
		{how: XSched, cost: 1.5, own: 0, ownLoad: 0.1, kernel: 1, batch: 3},
		{how: XSched, cost: 0, own: 0, ownLoad: 0.02, kernel: 1, batch: 1},
		{how: TimeSlicing, cost: 1, own: 1, ownLoad: 0.7, kernel: 1, batch: 3},
		{how: MPS, cost: 1, own: 0, ownLoad: 0.02, kernel: 1, batch: 1},
	} {
		want, err := m.simulate(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		o, err := Table(m.how, m.cost)
		if err != nil {
			t.Fatal(err)
		}
		p99 := o.P99(m.own, m.ownLoad, m.other, m.otherLoad, m.kernel, m.batch)
		kept := o.Kept(m.own, m.ownLoad, m.other, m.otherLoad, m.kernel, m.batch)
		if math.Abs(p99-want.p99) > 0.15*want.p99+0.001 || math.Abs(kept-want.kept) > 0.03 {
			t.Errorf("%+v: the table has %v and %v, the simulation gives %+v; run `make capacity-table`", m, p99, kept, want)
		}
	}
}

// TestTableIsWhole checks that the file has every line of the grid, and no other.
func TestTableIsWhole(t *testing.T) {
	if _, err := readTables(outcomesFile); err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(outcomesFile, []byte("\n"))
	for name, file := range map[string][]byte{
		"a line is missing": bytes.Join(append(append([][]byte{}, lines[:50]...), lines[51:]...), nil),
		"the last is cut":   outcomesFile[:len(outcomesFile)-8],
		"one too many":      append(bytes.Clone(outcomesFile), lines[50]...),
		"no number":         bytes.Replace(outcomesFile, []byte("."), []byte("x"), 40),
	} {
		if _, err := readTables(file); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestBetweenLoads checks the interpolation, and that beyond the grid a service is late.
func TestBetweenLoads(t *testing.T) {
	o, err := Table(XSched, 1)
	if err != nil {
		t.Fatal(err)
	}
	a, b := o.P99(1, 0.1, 0, 0, 0, 1), o.P99(1, 0.3, 0, 0, 0, 1)
	if mid := o.P99(1, 0.2, 0, 0, 0, 1); math.Abs(mid-math.Sqrt(a*b)) > 1e-9 || a <= 0 {
		t.Errorf("%v between %v and %v", mid, a, b)
	}
	// More jobs than tabulated count as the most.
	if x, y := o.P99(1, 0.1, 0, 0, 1, 3), o.P99(1, 0.1, 0, 0, 1, 9); x != y {
		t.Errorf("%v, %v", x, y)
	}
	for _, load := range []float64{0.71, 1, 5} {
		if v := o.P99(0, load, 0, 0, 0, 0); !math.IsInf(v, 1) {
			t.Errorf("load %v: %v", load, v)
		}
	}
	if v := o.P99(0, 0.1, 1, 0.6, 0, 0); !math.IsInf(v, 1) {
		t.Errorf("beside 0.6: %v", v)
	}
	if v := o.Kept(0, 0, 0, 0, 0, 1); math.Abs(v-1) > 0.01 {
		t.Errorf("a job alone keeps %v", v)
	}
	if _, err := Table(XSched, 0.7); err == nil {
		t.Error("costs that are not tabulated are accepted")
	}
}

// TestCommonArrivals checks that all modes see the same requests: alone on a GPU nothing is shared, so that
// the P99 of a service is the same under all of them. Arrivals of its own gave MPS 25.6 ms at load 0.7 of the
// second shape, where the others had 16.4 ms.
func TestCommonArrivals(t *testing.T) {
	for shape := range requestShapes {
		for _, load := range []float64{0.7} {
			var p99 []float64
			for _, how := range []Sharing{TimeSlicing, MPS, XSched} {
				m := mix{how: how, cost: 1, own: shape, ownLoad: load}
				got, err := m.simulate(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				p99 = append(p99, got.p99)
				table, err := Table(how, 1)
				if v := table.P99(shape, load, 0, 0, 0, 0); err != nil || math.Abs(v-got.p99) > 0.01*got.p99 {
					t.Errorf("%s: the table has %v, the simulation %v; run `make capacity-table`", how, v, got.p99)
				}
			}
			// The driver's calls and the daemon's reaction are in two of them: up to 0.1 ms.
			if slices.Max(p99)-slices.Min(p99) > 0.1+0.02*slices.Min(p99) {
				t.Errorf("shape %d at load %v: P99 %v ms", shape, load, p99)
			}
		}
	}
}

// TestMPSAgainstH200 compares the model of MPS with a row of docs/results/h200.md: beside one job of
// 20 ms kernels, 90 us kernels at 100/s have a P99 of 15.7 ms, and the job keeps 99.6 %. The model
// waits for whole kernels and is up to 30 % slower.
func TestMPSAgainstH200(t *testing.T) {
	m := mix{how: MPS, cost: 1, own: 0, ownLoad: 0.01, kernel: 1, batch: 1}
	got := m.mps()
	if got.p99 < 15.7 || got.p99 > 15.7*1.3 || got.kept < 0.97 || got.kept > 1 {
		t.Errorf("P99 %v ms, kept %v", got.p99, got.kept)
	}
	if shapes := requestShapes[0].length(); shapes != 100*time.Microsecond {
		t.Errorf("the shortest request is %v", shapes)
	}
}
