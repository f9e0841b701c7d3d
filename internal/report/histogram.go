// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"math/bits"
)

// A Histogram has 128 bins per power of two, so quantiles are at most 0.4 % off.
const (
	binBits = 7
	bins    = 1 << binBits
	// coarse is how many neighbouring bins form one Bucket: 8 buckets per power of two.
	coarse = bins / 8
)

// Histogram counts non-negative integers, for example nanoseconds. Powers of two that never occur
// take no memory. Merging is exact, so its order does not matter.
type Histogram struct {
	octaves  [64 - binBits + 1]*[bins]uint32
	n        uint64
	sum      float64
	min, max uint64
}

// Add counts v.
func (h *Histogram) Add(v uint64) {
	octave, bin := 0, int(v)
	if v >= bins {
		shift := bits.Len64(v) - binBits - 1
		octave, bin = shift+1, int(v>>shift)-bins
	}
	if h.octaves[octave] == nil {
		h.octaves[octave] = new([bins]uint32)
	}
	h.octaves[octave][bin]++
	if h.n == 0 || v < h.min {
		h.min = v
	}
	h.n++
	h.sum += float64(v)
	h.max = max(h.max, v)
}

// start is the least value of a bin. The bin after the last one starts at the largest value.
func start(octave, bin int) uint64 {
	switch {
	case octave == 0:
		return uint64(bin)
	case bin == bins && octave == 64-binBits:
		return math.MaxUint64
	}
	return uint64(bins+bin) << (octave - 1)
}

// Merge adds all values of o.
func (h *Histogram) Merge(o *Histogram) {
	if o.n == 0 {
		return
	}
	for i, from := range o.octaves {
		if from == nil {
			continue
		}
		if h.octaves[i] == nil {
			h.octaves[i] = new([bins]uint32)
		}
		for b, n := range from {
			h.octaves[i][b] += n
		}
	}
	if h.n == 0 || o.min < h.min {
		h.min = o.min
	}
	h.n += o.n
	h.sum += o.sum
	h.max = max(h.max, o.max)
}

// N returns the number of values.
func (h *Histogram) N() uint64 { return h.n }

// Sum returns the sum of the values.
func (h *Histogram) Sum() float64 { return h.sum }

// Quantile returns the nearest-rank quantile q, or 0 for an empty histogram.
func (h *Histogram) Quantile(q float64) float64 {
	if h.n == 0 {
		return 0
	}
	rank := max(1, uint64(math.Ceil(q*float64(h.n)-1e-9)))
	if rank >= h.n {
		return float64(h.max)
	}
	var seen uint64
	for octave, counts := range h.octaves {
		if counts == nil {
			continue
		}
		for bin, n := range counts {
			if seen += uint64(n); seen >= rank {
				middle := start(octave, bin)
				if octave > 0 {
					middle += 1 << (octave - 1) >> 1
				}
				return float64(min(max(middle, h.min), h.max))
			}
		}
	}
	return float64(h.max)
}

// Latency summarizes a histogram of nanoseconds; nil for an empty one.
func (h *Histogram) Latency() *Latency {
	if h.n == 0 {
		return nil
	}
	return &Latency{
		P50: h.Quantile(0.50) / 1e6, P95: h.Quantile(0.95) / 1e6, P99: h.Quantile(0.99) / 1e6,
		Max: float64(h.max) / 1e6, Mean: h.sum / float64(h.n) / 1e6, N: int(h.n),
	}
}

// Samples returns at most n values, divided by unit, in ascending order with the histogram's quantiles.
func (h *Histogram) Samples(n int, unit float64) []float64 {
	n = int(min(uint64(n), h.n))
	out := make([]float64, 0, n)
	for i := range n {
		out = append(out, h.Quantile(float64(i+1)/float64(n))/unit)
	}
	return out
}

// Distribution is a histogram as a result. Count, mean, minimum and maximum are exact.
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

// Bucket counts the values in [From, To).
type Bucket struct {
	From  uint64 `json:"from"`
	To    uint64 `json:"to"`
	Count uint64 `json:"count"`
}

// Distribution returns the non-empty buckets, 8 per power of two; nil for an empty histogram.
func (h *Histogram) Distribution() *Distribution {
	if h.n == 0 {
		return nil
	}
	d := &Distribution{
		Count: h.n, Min: h.min, Mean: h.sum / float64(h.n), Max: h.max,
		P50: h.Quantile(0.5), P90: h.Quantile(0.9), P99: h.Quantile(0.99),
	}
	for octave, counts := range h.octaves {
		if counts == nil {
			continue
		}
		// Below 128 a bin is one integer; group by 8 per power of two there too.
		for bin := 0; bin < bins; {
			width := coarse
			if octave == 0 {
				width = max(1, 1<<bits.Len(uint(bin))/16)
			}
			var n uint64
			for _, c := range counts[bin : bin+width] {
				n += uint64(c)
			}
			if n > 0 {
				d.Buckets = append(d.Buckets, Bucket{start(octave, bin), start(octave, bin+width), n})
			}
			bin += width
		}
	}
	return d
}

// PerPower joins the buckets to one per power of two.
func (d *Distribution) PerPower() []Bucket {
	var out []Bucket
	for _, b := range d.Buckets {
		joined := Bucket{0, 1, b.Count}
		if b.From > 0 {
			power := bits.Len64(b.From) - 1
			joined.From, joined.To = 1<<power, math.MaxUint64
			if power < 63 {
				joined.To = 2 << power
			}
		}
		if n := len(out); n > 0 && out[n-1].From == joined.From {
			out[n-1].Count += b.Count
			continue
		}
		out = append(out, joined)
	}
	return out
}
