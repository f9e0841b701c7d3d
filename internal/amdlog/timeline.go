// SPDX-License-Identifier: Apache-2.0

package amdlog

// timelineBins is the resolution of the timeline. Bins are aligned to their
// width, which doubles when the log outgrows them.
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

// fold doubles the bin width.
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
