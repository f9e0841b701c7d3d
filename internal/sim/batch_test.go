// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"

	"xsched/internal/model"
)

// TestBatches: short requests that the CPU limits gather on the device. Nobody is suspended, the job
// keeps more than natively, and a request waits for no more than the driver's slice and its own kernels.
func TestBatches(t *testing.T) {
	for name, c := range map[string]struct {
		rate   float64
		launch time.Duration
	}{"3 ms": {133, 42 * time.Microsecond}, "2 ms": {200, 28 * time.Microsecond}} {
		s := &Scenario{
			Name: "batches", Duration: Duration(5 * time.Second), Policy: "HPF",
			Tenants: []Tenant{
				{
					Name: "high", Hint: Hint{Priority: 10, SLO: model.SLO{Latency: time.Minute}}, Kernel: Fixed(5 * time.Microsecond),
					Kernels: Exactly(70), Launch: LogNormal(c.launch, 0.1), Arrivals: Arrivals{Rate: c.rate, Jitter: 0.2},
				},
				{Name: "low", Kernel: Fixed(time.Millisecond), Arrivals: Arrivals{Closed: &Closed{Depth: 2}}},
			},
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		runs := run(t, s, Options{Policies: []string{"native", "HPF"}}).Runs
		native, batch := &runs[0], &runs[1]
		high := &batch.Classes[0]
		span{native.Lows.Kept + 0.02, 1}.check(t, name+": kept", batch.Lows.Kept)
		span{0, high.Alone.P50 + 0.6}.check(t, name+": P50", high.Latency.P50)
		span{0, min(high.Alone.P99+0.6, native.Classes[0].Latency.P99)}.check(t, name+": P99", high.Latency.P99)
		if batch.Engine.Preemptions > 10 {
			t.Errorf("%s: %d preemptions", name, batch.Engine.Preemptions)
		}
	}
}

// TestBatchesNeedSlices: without timeslices, as on AMD GPUs, lows are suspended for the whole request. Batches then only
// delay it, and lows keep less (docs/strategies.md).
func TestBatchesNeedSlices(t *testing.T) {
	none := false
	s := &Scenario{
		Name: "no slices", Duration: Duration(5 * time.Second), Policy: "HPF", GPU: GPU{Slices: &none},
		Tenants: []Tenant{
			{
				Name: "high", Hint: Hint{Priority: 10, SLO: model.SLO{Latency: time.Minute}}, Kernel: Fixed(5 * time.Microsecond),
				Kernels: Exactly(70), Launch: LogNormal(42*time.Microsecond, 0.1), Arrivals: Arrivals{Rate: 133, Jitter: 0.2},
			},
			{Name: "low", Kernel: Fixed(time.Millisecond), Arrivals: Arrivals{Closed: &Closed{Depth: 2}}},
		},
	}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	runs := run(t, s, Options{Policies: []string{"HPF", "HPF/batch-all"}}).Runs
	plain, batches := &runs[0], &runs[1]
	a, b := plain.Classes[0].Latency.P50, batches.Classes[0].Latency.P50
	t.Logf("P50 %.2f ms, the low keeps %.3f; with batches %.2f ms, %.3f", a, plain.Lows.Kept, b, batches.Lows.Kept)
	if b < a+0.1 || batches.Lows.Kept > plain.Lows.Kept {
		t.Errorf("batches are of use without timeslices: P50 %.2f -> %.2f ms, the low keeps %.3f -> %.3f", a, b, plain.Lows.Kept, batches.Lows.Kept)
	}
}
