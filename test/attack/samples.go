// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/test/delays"
)

// slice is the unit of resampling: requests within it depend on each other.
const slice = int64(100e6)

// host records when the host withheld the CPUs: delays of a thread with the highest priority, which no
// program of the bench can cause.
var host = sync.OnceValue(func() *delays.Record {
	r := &delays.Record{}
	go func() {
		runtime.LockOSThread()
		if !priorities() && division() != (cores{}) {
			r.Measure(now, time.Millisecond) // on CPUs of the bench
		}
		first := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 99}
		if unix.SchedSetAttr(0, first, 0) == nil {
			r.Measure(now, time.Millisecond)
		}
	}()
	return r
})

// slicesOf divides a block, without the slices during which the host withheld a CPU for longer than a
// request of the service usually takes.
func slicesOf(from, to int64) (out []int64) {
	for at := from; at+slice <= to; at += slice {
		if _, longest, _ := host().In(at-slice/4, at+slice); longest < 2*time.Millisecond {
			out = append(out, at)
		}
	}
	return out
}

// samples are measurements by slice, in the order of time.
type samples [][]float64

// latencies adds the latencies of a block's requests, in ms. A slice without one counts as a latency of
// its length.
func (s *samples) latencies(v *victim, from, to int64) {
	for _, at := range slicesOf(from, to) {
		var one []float64
		for _, i := range v.during(at, at+slice) {
			one = append(one, float64(i.end-i.begin)/1e6)
		}
		if one == nil {
			one = []float64{float64(slice) / 1e6}
		}
		*s = append(*s, one)
	}
}

// counts adds the iterations of a block.
func (s *samples) counts(v *victim, from, to int64) {
	for _, at := range slicesOf(from, to) {
		*s = append(*s, []float64{float64(len(v.during(at, at+slice)))})
	}
}

// p99 is the 99th percentile of all values.
func p99(s samples) float64 {
	all := slices.Concat(s...)
	if len(all) == 0 {
		return math.NaN()
	}
	slices.Sort(all)
	return all[min(len(all)-1, len(all)*99/100)]
}

// rate is the mean of all values, as a number per second.
func rate(s samples) float64 {
	sum := 0.0
	for _, one := range s {
		sum += one[0]
	}
	return sum / float64(len(s)) / (float64(slice) / 1e9)
}

// Ratio is a ratio with its interval of confidence (95 %). A ratio above 1 is worse than the reference.
type Ratio struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

func (r Ratio) String() string { return fmt.Sprintf("%.2f (%.2f-%.2f)", r.Value, r.Low, r.High) }

// worst replaces an infinite ratio, which JSON can't hold: the program made no progress at all.
const worst = 1000

// resamples are enough for two digits of a 95 % interval.
const resamples = 400

// ratio divides a figure of one arm by that of another. It resamples slices with replacement.
func ratio(over, under samples, figure func(samples) float64) Ratio {
	divide := func(a, b float64) float64 {
		if a == b {
			return 1
		}
		return min(worst, a/max(b, 1e-9))
	}
	if len(over) == 0 || len(under) == 0 {
		return Ratio{}
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same interval for the same measurements
	draw := func(s samples) samples {
		out := make(samples, len(s))
		for i := range out {
			out[i] = s[random.IntN(len(s))]
		}
		return out
	}
	all := make([]float64, resamples)
	for i := range all {
		all[i] = divide(figure(draw(over)), figure(draw(under)))
	}
	slices.Sort(all)
	return Ratio{divide(figure(over), figure(under)), all[resamples/40], all[resamples-1-resamples/40]}
}
