// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"slices"
	"testing"
	"time"
)

func TestCumulative(t *testing.T) {
	var h Histogram
	var sum time.Duration
	for _, d := range []time.Duration{0, 1, 15, 16, 900, 5 * time.Microsecond, 3 * time.Millisecond, 2 * time.Second} {
		h.Record(d)
		sum += d
	}
	bounds := []time.Duration{1, 20, time.Microsecond, 10 * time.Microsecond, time.Millisecond, time.Second, time.Hour}
	counts, got := h.Cumulative(bounds)
	if want := []uint64{2, 4, 5, 6, 6, 7, 8}; !slices.Equal(counts, want) || got != sum {
		t.Errorf("%v, %v; want %v, %v", counts, got, want, sum)
	}
}
