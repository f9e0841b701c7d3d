// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"math/bits"
	"sync/atomic"
	"time"

	"xsched/internal/model"
)

// Metrics counts hardware operations of all targets.
type Metrics struct {
	Suspends, Resumes, TimesliceSets, GateHolds, Undone, Errors atomic.Uint64
	// Shared counts operations that another process's call carried out, Split those that were repeated
	// alone because a shared call failed.
	Shared, Split atomic.Uint64
	// TurnedOff counts how often failing resumes turned scheduling off for a process.
	TurnedOff atomic.Uint64

	SuspendTime, ResumeTime Histogram
	// DriverSuspendTime and DriverResumeTime exclude everything but the driver, where the executing
	// process reports it.
	DriverSuspendTime, DriverResumeTime Histogram
	// PreemptTime measures from the decision to the end of the suspend operation, by level. Level 1
	// has no operation.
	PreemptTime [model.LevelInterrupt + 1]Histogram
}

// Histogram counts durations in buckets of at most 1/16 relative width, from 1 ns up. Memory is
// fixed and writers are lock-free.
type Histogram struct {
	buckets [64 * 16]atomic.Uint64
	max     atomic.Int64
	sum     atomic.Int64
}

func bucket(ns uint64) int {
	if ns < 16 {
		return int(ns)
	}
	e := bits.Len64(ns) - 5
	return (e+1)*16 + int(ns>>e) - 16
}

func bucketTop(i int) time.Duration {
	if i < 16 {
		return time.Duration(i)
	}
	e := i/16 - 1
	return time.Duration((uint64(i%16+16+1) << e) - 1)
}

// Record adds one duration; negative ones count as 0.
func (h *Histogram) Record(d time.Duration) {
	if d < 0 {
		d = 0
	}
	h.buckets[bucket(uint64(d))].Add(1)
	h.sum.Add(int64(d))
	for {
		m := h.max.Load()
		if int64(d) <= m || h.max.CompareAndSwap(m, int64(d)) {
			return
		}
	}
}

// Cumulative returns how many durations are at most each bound, to within a bucket's width, and
// their sum. Bounds must ascend.
func (h *Histogram) Cumulative(bounds []time.Duration) (counts []uint64, sum time.Duration) {
	counts = make([]uint64, len(bounds))
	var below uint64
	i := 0
	for k, bound := range bounds {
		for ; i < len(h.buckets) && bucketTop(i) <= bound; i++ {
			below += h.buckets[i].Load()
		}
		counts[k] = below
	}
	return counts, time.Duration(h.sum.Load())
}

// Quantiles returns the count, the durations at the ascending quantiles qs, and the maximum.
func (h *Histogram) Quantiles(qs ...float64) (count uint64, at []time.Duration, maxD time.Duration) {
	var counts [64 * 16]uint64
	for i := range h.buckets {
		counts[i] = h.buckets[i].Load()
		count += counts[i]
	}
	maxD = time.Duration(h.max.Load())
	at = make([]time.Duration, len(qs))
	var sum uint64
	k := 0
	for i, n := range counts {
		sum += n
		for k < len(qs) && n > 0 && float64(sum) >= qs[k]*float64(count) {
			at[k] = min(bucketTop(i), maxD)
			k++
		}
	}
	return count, at, maxD
}
