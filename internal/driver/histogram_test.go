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

// A merged histogram has the durations of both; quantiles follow from the buckets alone.
func TestMerge(t *testing.T) {
	var a, b, both Histogram
	a.RecordN(time.Millisecond, 98)
	a.RecordN(time.Hour, 0) // none
	b.Record(50 * time.Millisecond)
	b.Record(-1)
	both.Merge(&a)
	both.Merge(&b)
	n, at, top := both.Quantiles(0, 0.5, 0.99, 1)
	near := func(got, want time.Duration) bool { return got >= want && got <= want+want/16 }
	if n != 100 || at[0] != 0 || !near(at[1], time.Millisecond) || !near(at[2], time.Millisecond) || at[3] != 50*time.Millisecond || top != at[3] {
		t.Errorf("%d durations, %v, at most %v", n, at, top)
	}
	if _, sum := both.Cumulative(nil); sum != 148*time.Millisecond {
		t.Errorf("sum %v", sum)
	}
	var last Histogram
	last.Record(1<<63 - 1)
	if n, at, _ := last.Quantiles(0.5); n != 1 || at[0] != 1<<63-1 {
		t.Errorf("the longest duration is %v", at)
	}
}

func BenchmarkRecord(b *testing.B) {
	var h Histogram
	for i := range b.N {
		h.Record(time.Duration(i & 0xfffff))
	}
}
