// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"slices"
	"time"
)

// Latency sums up the requests of one mode. The percentiles are exact: with
// some hundreds or thousands of samples there is no reason to bin them, and a
// P99 that is one of the samples can be found in the picture.
type Latency struct {
	P50  float64 `json:"p50_ms"`
	P95  float64 `json:"p95_ms"`
	P99  float64 `json:"p99_ms"`
	Max  float64 `json:"max_ms"`
	Mean float64 `json:"mean_ms"`
	N    int     `json:"n"`
}

// summarize sorts d in place and sums it up; nil when there is nothing.
func summarize(d []time.Duration) *Latency {
	if len(d) == 0 {
		return nil
	}
	slices.Sort(d)
	var sum time.Duration
	for _, v := range d {
		sum += v
	}
	return &Latency{
		P50:  ms(percentile(d, 0.50)),
		P95:  ms(percentile(d, 0.95)),
		P99:  ms(percentile(d, 0.99)),
		Max:  ms(d[len(d)-1]),
		Mean: ms(sum) / float64(len(d)),
		N:    len(d),
	}
}

// percentile is the nearest-rank percentile of sorted samples: the smallest
// sample that at least a part q of all samples does not exceed.
func percentile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	// The tiny amount keeps 0.99*100 from being 99.00000000000001.
	rank := int(math.Ceil(q*float64(len(sorted)) - 1e-9))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
