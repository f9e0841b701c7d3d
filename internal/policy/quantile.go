// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"time"
)

const (
	perOctave = 16 // buckets are 4.4 % wide
	octaves   = 25 // 1 us to 33 s
)

// quantile estimates a percentile of a stream against a target, in bounded
// memory. Old samples fade: the memory is ten times as long as one allowed miss.
type quantile struct {
	weight  [perOctave * octaves]float32
	total   float64
	over    float64 // weight of the samples above the target, exact
	gain    float64 // weight of the next sample
	samples int     // since the last reset
	misses  int
}

func (h *quantile) reset() { *h = quantile{} }

// add adds a sample; p is the percentile of interest.
func (h *quantile) add(d, target time.Duration, p float64) {
	memory := min(max(1000/(100-p), 100), 5000)
	if h.gain == 0 {
		h.gain = 1
	}
	h.gain *= 1 + 1/memory
	h.samples++
	h.total += h.gain
	if d > target {
		h.over += h.gain
		h.misses++
	}
	h.weight[bucket(d)] += float32(h.gain)
	if h.gain > 1e6 {
		for i := range h.weight {
			h.weight[i] /= 1e6
		}
		h.total, h.over, h.gain = h.total/1e6, h.over/1e6, h.gain/1e6
	}
}

// value estimates percentile p: at least its value, and at most a bucket above it.
func (h *quantile) value(p float64) time.Duration {
	if i := h.bucketOf(p); i >= 0 {
		return edge(i + 1)
	}
	return 0
}

// bucketOf returns the bucket of percentile p, -1 without samples.
func (h *quantile) bucketOf(p float64) int {
	rest := h.total * (100 - p) / 100
	for i := len(h.weight) - 1; i >= 0; i-- {
		if rest -= float64(h.weight[i]); rest < 0 {
			return i
		}
	}
	return -1
}

// missed is the part of the samples above the target.
func (h *quantile) missed() float64 {
	if h.total == 0 {
		return 0
	}
	return h.over / h.total
}

func bucket(d time.Duration) int {
	us := float64(d) / float64(time.Microsecond)
	if us <= 1 {
		return 0
	}
	return min(int(math.Log2(us)*perOctave), perOctave*octaves-1)
}

func edge(i int) time.Duration {
	return time.Duration(math.Exp2(float64(i)/perOctave) * float64(time.Microsecond))
}
