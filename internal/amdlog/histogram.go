// SPDX-License-Identifier: Apache-2.0

package amdlog

import (
	"math"
	"math/bits"
)

// A histogram has eight bins for each power of two, so that a percentile is
// right to 6 % whatever the range, in memory that does not grow.
const (
	subBits = 3
	subBins = 1 << subBits
	allBins = (64-subBits)*subBins + subBins
)

type histogram struct {
	bins     []uint64 // made with the first value; most queues of a long log are idle
	count    uint64
	sum      float64
	min, max uint64
}

func binOf(v uint64) int {
	if v < subBins {
		return int(v)
	}
	shift := bits.Len64(v) - subBits - 1
	return (shift+1)*subBins + int(v>>shift) - subBins
}

// binStart is the least value of a bin.
func binStart(i int) uint64 {
	if i < subBins {
		return uint64(i)
	}
	if i >= allBins {
		return math.MaxUint64
	}
	return uint64(subBins+i%subBins) << (i/subBins - 1)
}

func (h *histogram) add(v uint64) {
	if h.bins == nil {
		h.bins = make([]uint64, allBins)
		h.min = v
	}
	h.bins[binOf(v)]++
	h.count++
	h.sum += float64(v)
	h.min, h.max = min(h.min, v), max(h.max, v)
}

// quantile is the middle of the bin that has the q-th part of the values.
func (h *histogram) quantile(q float64) float64 {
	rank := max(uint64(math.Ceil(q*float64(h.count))), 1)
	var seen uint64
	for i, n := range h.bins {
		if seen += n; seen >= rank {
			middle := float64(binStart(i)) // small values have a bin each
			if i >= subBins {
				middle = (middle + float64(binStart(i+1)) - 1) / 2
			}
			return min(max(middle, float64(h.min)), float64(h.max))
		}
	}
	return float64(h.max)
}

// Distribution is a set of values. Percentiles are right to 6 %; count, mean,
// least and greatest are exact.
type Distribution struct {
	Count   uint64   `json:"count"`
	Min     uint64   `json:"min"`
	Mean    float64  `json:"mean"`
	P50     float64  `json:"p50"`
	P90     float64  `json:"p90"`
	P99     float64  `json:"p99"`
	Max     uint64   `json:"max"`
	Buckets []Bucket `json:"buckets"`
}

// Bucket counts the values from From up to, but not including, To.
type Bucket struct {
	From  uint64 `json:"from"`
	To    uint64 `json:"to"`
	Count uint64 `json:"count"`
}

func (h *histogram) result() *Distribution {
	if h.count == 0 {
		return nil
	}
	d := &Distribution{
		Count: h.count, Min: h.min, Mean: h.sum / float64(h.count), Max: h.max,
		P50: h.quantile(0.5), P90: h.quantile(0.9), P99: h.quantile(0.99),
	}
	for i, n := range h.bins {
		if n > 0 {
			d.Buckets = append(d.Buckets, Bucket{binStart(i), binStart(i + 1), n})
		}
	}
	return d
}

// perPower joins the buckets to one per power of two, for pictures and tables.
func (d *Distribution) perPower() []Bucket {
	var out []Bucket
	for _, b := range d.Buckets {
		from, to := uint64(0), uint64(1)
		if b.From > 0 {
			from = 1 << (bits.Len64(b.From) - 1)
			to = from << 1
			if to == 0 {
				to = math.MaxUint64
			}
		}
		if n := len(out); n > 0 && out[n-1].From == from {
			out[n-1].Count += b.Count
			continue
		}
		out = append(out, Bucket{from, to, b.Count})
	}
	return out
}

// timelineBins are enough for a picture. Bins lie on multiples of their width,
// which doubles when the log gets longer than they reach.
const timelineBins = 512

type timeline struct {
	width uint64 // us
	first uint64 // number of bins[0], counted from time 0
	bins  []timeBin
}

type timeBin struct {
	kernels  uint64
	lagSum   uint64
	lagCount uint64
	lagMax   uint64
}

func (t *timeline) at(time uint64) *timeBin {
	if t.width == 0 {
		t.width, t.first = 1000, time/1000
	}
	for {
		i := time / t.width
		first, last := t.first, t.first+uint64(len(t.bins))
		if len(t.bins) == 0 {
			first, last = i, i+1
		}
		first, last = min(first, i), max(last, i+1)
		if last-first > timelineBins {
			t.fold()
			continue
		}
		if first < t.first && len(t.bins) > 0 {
			t.bins = append(make([]timeBin, t.first-first, timelineBins), t.bins...)
		}
		t.first = first
		for uint64(len(t.bins)) < last-first {
			t.bins = append(t.bins, timeBin{})
		}
		return &t.bins[i-first]
	}
}

// fold doubles the width.
func (t *timeline) fold() {
	first := t.first / 2
	n := 0
	for i, b := range t.bins {
		to := int((t.first+uint64(i))/2 - first)
		if to == n {
			t.bins[n] = b
			n++
			continue
		}
		into := &t.bins[to]
		into.kernels += b.kernels
		into.lagSum += b.lagSum
		into.lagCount += b.lagCount
		into.lagMax = max(into.lagMax, b.lagMax)
	}
	t.bins, t.first, t.width = t.bins[:n], first, 2*t.width
}

// Timeline counts kernels over time.
type Timeline struct {
	StartUS uint64    `json:"start_us"`
	BinUS   uint64    `json:"bin_us"`
	Kernels []uint64  `json:"kernels"`
	LagMean []float64 `json:"lag_mean,omitempty"` // packets waiting, -1 where nothing was submitted
	LagMax  []uint64  `json:"lag_max,omitempty"`
}

func (t *timeline) result() *Timeline {
	if len(t.bins) == 0 {
		return nil
	}
	out := &Timeline{StartUS: t.first * t.width, BinUS: t.width, Kernels: make([]uint64, len(t.bins))}
	lags := false
	for i, b := range t.bins {
		out.Kernels[i] = b.kernels
		lags = lags || b.lagCount > 0
	}
	if lags {
		out.LagMean, out.LagMax = make([]float64, len(t.bins)), make([]uint64, len(t.bins))
		for i, b := range t.bins {
			out.LagMean[i], out.LagMax[i] = -1, b.lagMax
			if b.lagCount > 0 {
				out.LagMean[i] = float64(b.lagSum) / float64(b.lagCount)
			}
		}
	}
	return out
}
