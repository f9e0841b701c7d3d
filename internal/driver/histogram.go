// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Histogram counts durations in buckets of at most 1/16 relative width, from 1 ns up. Writers are
// lock-free. Memory is bounded, and small if the durations are similar: each power of two has its
// buckets from its first duration on. The zero value is empty.
type Histogram struct {
	octaves [64]atomic.Pointer[octave]
	max     atomic.Int64
	sum     atomic.Int64
}

const perOctave = 16

// octave has the buckets of one power of two; the first one those below 16 ns.
type octave [perOctave]atomic.Uint64

func bucket(ns uint64) int {
	if ns < perOctave {
		return int(ns)
	}
	e := bits.Len64(ns) - 5
	return (e+1)*perOctave + int(ns>>e) - perOctave
}

func bucketTop(i int) time.Duration {
	if i < perOctave {
		return time.Duration(i)
	}
	e := i/perOctave - 1
	return time.Duration((uint64(i%perOctave+perOctave+1) << e) - 1)
}

// Record adds one duration; negative ones count as 0.
func (h *Histogram) Record(d time.Duration) { h.RecordN(d, 1) }

// RecordN adds a duration n times.
func (h *Histogram) RecordN(d time.Duration, n uint64) {
	if n == 0 {
		return
	}
	d = max(d, 0)
	h.add(bucket(uint64(d)), n)
	h.sum.Add(int64(d) * int64(n))
	h.reach(int64(d))
}

func (h *Histogram) add(i int, n uint64) {
	at := &h.octaves[i/perOctave]
	o := at.Load()
	if o == nil {
		at.CompareAndSwap(nil, &octave{})
		o = at.Load()
	}
	o[i%perOctave].Add(n)
}

// reach raises the maximum.
func (h *Histogram) reach(d int64) {
	for {
		m := h.max.Load()
		if d <= m || h.max.CompareAndSwap(m, d) {
			return
		}
	}
}

// Merge adds the durations of another histogram.
func (h *Histogram) Merge(o *Histogram) {
	o.each(h.add)
	h.sum.Add(o.sum.Load())
	h.reach(o.max.Load())
}

// each calls f for the buckets with durations, in ascending order.
func (h *Histogram) each(f func(i int, n uint64)) {
	for k := range h.octaves {
		o := h.octaves[k].Load()
		if o == nil {
			continue
		}
		for i := range o {
			if n := o[i].Load(); n > 0 {
				f(k*perOctave+i, n)
			}
		}
	}
}

// Cumulative returns how many durations are at most each bound, to within a bucket's width, and
// their sum. Bounds must ascend.
func (h *Histogram) Cumulative(bounds []time.Duration) (counts []uint64, sum time.Duration) {
	counts = make([]uint64, len(bounds))
	var below uint64
	k := 0
	h.each(func(i int, n uint64) {
		for k < len(bounds) && bucketTop(i) > bounds[k] {
			counts[k] = below
			k++
		}
		below += n
	})
	for ; k < len(bounds); k++ {
		counts[k] = below
	}
	return counts, time.Duration(h.sum.Load())
}

// Quantiles returns the count, the durations at the ascending quantiles qs, and the maximum.
func (h *Histogram) Quantiles(qs ...float64) (count uint64, at []time.Duration, maxD time.Duration) {
	type filled struct {
		bucket int
		n      uint64
	}
	var all []filled // each bucket is read once, because writers are concurrent
	h.each(func(i int, n uint64) {
		all = append(all, filled{i, n})
		count += n
	})
	maxD = time.Duration(h.max.Load())
	at = make([]time.Duration, len(qs))
	var sum uint64
	k := 0
	for _, b := range all {
		sum += b.n
		for k < len(qs) && float64(sum) >= qs[k]*float64(count) {
			at[k] = min(bucketTop(b.bucket), maxD)
			k++
		}
	}
	return count, at, maxD
}
