// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"math/bits"
	"time"
)

// Each power of two of a Histogram has 128 bins: what it says is at most 0.4 % off.
const (
	binBits = 7
	bins    = 1 << binBits
)

// Histogram counts lengths of time. Powers of two that never occur take no memory, and sums of
// histograms are exact, so that the order of adding does not matter.
type Histogram struct {
	octaves  [64 - binBits + 1]*[bins]uint32
	n        uint64
	sum      int64
	min, max time.Duration
}

// Add counts d; a negative one counts as 0.
func (h *Histogram) Add(d time.Duration) {
	d = max(d, 0)
	octave, bin := binOf(d)
	if h.octaves[octave] == nil {
		h.octaves[octave] = new([bins]uint32)
	}
	h.octaves[octave][bin]++
	if h.n == 0 || d < h.min {
		h.min = d
	}
	h.n++
	h.sum += int64(d)
	h.max = max(h.max, d)
}

func binOf(d time.Duration) (octave, bin int) {
	if d < bins {
		return 0, int(d)
	}
	shift := bits.Len64(uint64(d)) - binBits - 1
	return shift + 1, int(d>>shift) - bins
}

// middle is the length that stands for a bin.
func middle(octave, bin int) time.Duration {
	if octave == 0 {
		return time.Duration(bin)
	}
	shift := octave - 1
	return time.Duration(bins+bin)<<shift + time.Duration(1)<<shift>>1
}

// Merge adds all that o has counted.
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

// N is how many were counted.
func (h *Histogram) N() uint64 { return h.n }

// Quantile is the smallest length that a part q of all does not exceed; 0 of nothing.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	rank := max(1, uint64(math.Ceil(q*float64(h.n)-1e-9)))
	if rank >= h.n {
		return h.max
	}
	var seen uint64
	for octave, counts := range h.octaves {
		if counts == nil {
			continue
		}
		for bin, n := range counts {
			if seen += uint64(n); seen >= rank {
				return min(max(middle(octave, bin), h.min), h.max)
			}
		}
	}
	return h.max
}

// Latency sums it up; nil of nothing.
func (h *Histogram) Latency() *Latency {
	if h.n == 0 {
		return nil
	}
	return &Latency{
		P50: ms(h.Quantile(0.50)), P95: ms(h.Quantile(0.95)), P99: ms(h.Quantile(0.99)),
		Max: ms(h.max), Mean: float64(h.sum) / float64(h.n) / 1e6, N: h.n,
	}
}

// Latency is a distribution in milliseconds.
type Latency struct {
	P50  float64 `json:"p50_ms"`
	P95  float64 `json:"p95_ms"`
	P99  float64 `json:"p99_ms"`
	Max  float64 `json:"max_ms"`
	Mean float64 `json:"mean_ms"`
	N    uint64  `json:"n"`
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
