// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	var h quantile
	if h.value(99) != 0 || h.missed() != 0 {
		t.Error("an empty one knows something")
	}
	r := rand.New(rand.NewPCG(1, 2))
	all := make([]time.Duration, 5000)
	for i := range all {
		all[i] = time.Duration(r.ExpFloat64() * float64(5*ms))
		h.add(all[i], 20*ms, 99)
	}
	slices.Sort(all)
	for _, p := range []float64{50, 90, 99} {
		exact := all[int(float64(len(all))*p/100)]
		if got := h.value(p); math.Abs(float64(got-exact)) > 0.2*float64(exact) {
			t.Errorf("P%v is %v, estimate %v", p, exact, got)
		}
	}
	if got, exact := h.missed(), math.Exp(-4); math.Abs(got-exact) > 0.01 {
		t.Errorf("missed %.4f, should be about %.4f", got, exact)
	}

	// Old samples fade.
	for range 10000 {
		h.add(ms, 20*ms, 99)
	}
	if got := h.value(99); got < ms || got > ms*106/100 || h.missed() > 1e-3 {
		t.Errorf("after a change the estimate is %v, missed %v", got, h.missed())
	}
	for _, d := range []time.Duration{-1, 0, 1, time.Hour} {
		h.add(d, ms, 99.99) // outside of the buckets
	}
}

// TestQuantileRescales: weights are rescaled without a change of the estimate.
func TestQuantileRescales(t *testing.T) {
	var h quantile
	for range 20000 {
		h.add(3*ms, 2*ms, 50)
	}
	if h.gain > 1e6 || h.missed() < 0.999 || h.value(50) < 3*ms {
		t.Errorf("gain %v, missed %v, estimate %v", h.gain, h.missed(), h.value(50))
	}
}
