// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"math"
	"os"
	"testing"
	"time"

	"xsched/internal/model"
)

type h200Row struct {
	Name    string
	Lows    int
	Mode    model.Mode
	Slice   string
	P50     float64
	P99     float64
	Kept    float64
	SkipP99 bool `json:"skip_p99"`
}

// TestH200 compares the high's P50 and P99 with those of an H200, within 15 %.
func TestH200(t *testing.T) {
	const tolerance, keptTolerance = 0.15, 0.05
	text, err := os.ReadFile("testdata/h200.json")
	if err != nil {
		t.Fatal(err)
	}
	var data struct{ Rows []h200Row }
	if err := json.Unmarshal(text, &data); err != nil {
		t.Fatal(err)
	}
	for _, row := range data.Rows {
		t.Run(row.Name, func(t *testing.T) {
			res, err := Run(t.Context(), h200Scenario(t, row), Options{})
			if err != nil {
				t.Fatal(err)
			}
			run := res.Runs[0]
			high, kept := run.Classes[0], 0.0
			if row.Lows > 0 {
				kept = run.Classes[1].Kept * float64(row.Lows)
			}
			check := func(what string, got, want, tolerance float64) {
				off := got/want - 1
				t.Logf("%s %.3f, measured %.3f: %+.1f %%", what, got, want, 100*off)
				if math.Abs(off) > tolerance {
					t.Errorf("%s is %+.1f %% off, tolerance %.0f %%", what, 100*off, 100*tolerance)
				}
			}
			check("P50", high.Latency.P50, row.P50, tolerance)
			if !row.SkipP99 {
				check("P99", high.Latency.P99, row.P99, tolerance)
			}
			if row.Kept > 0 {
				check("kept", kept, row.Kept, keptTolerance)
			}
		})
	}
}

func h200Scenario(t *testing.T, row h200Row) *Scenario {
	t.Helper()
	s := &Scenario{
		Name: row.Name, Duration: Duration(20 * time.Second), Policy: "HPF", Mode: row.Mode,
		Tenants: []Tenant{{
			Name: "high", Hint: Hint{Priority: 10}, Kernel: Fixed(90 * time.Microsecond), Arrivals: Arrivals{Rate: 100},
		}},
	}
	// These rows were measured with constant slices.
	off := Duration(0)
	s.Engine.StarvationBound = &off
	if row.Lows > 0 {
		s.Tenants = append(s.Tenants, Tenant{
			Name: "low", Count: row.Lows, Kernel: Fixed(20 * time.Millisecond), Arrivals: Arrivals{Closed: &Closed{Depth: 2}},
		})
	}
	if row.Slice != "" {
		d, err := time.ParseDuration(row.Slice)
		if err != nil {
			t.Fatal(err)
		}
		slice := Duration(d)
		s.GPU.Slice = &slice // the slice of several lows in this mode
	}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	return s
}
