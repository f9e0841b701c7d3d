// SPDX-License-Identifier: Apache-2.0

package history

import (
	"math"
	"math/bits"
	"time"

	"xsched/internal/engine"
	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// lane is one program on one device.
type lane struct {
	key     laneKey
	id      uint32
	who     loop.Identity
	account identity.User
	left    model.Time // 0: alive

	counts [engine.Activities]int // queues by activity
	state  engine.Activity
	since  model.Time
	by     int        // for whom it does not run
	busy   model.Time // start of the request in progress
	bucket bucket
	waited time.Duration // since the last sample: time with work, but not on the GPU

	// Totals as of the last sample, and of this one.
	ran           time.Duration
	preemptions   uint64
	now           current
	seen, sampled bool

	fine, coarse       [points]Point
	fineLat, coarseLat latencies
}

// Point is one step of a series.
type Point struct {
	Share, Waited, P99US float32
	Preemptions          uint32
}

// wait adds the time since the last sample in which the program had work and did not run.
func (l *lane) wait(now, sampled model.Time) {
	if l.state == engine.ActivityWait || l.state == engine.ActivityStopped {
		l.waited += max(0, now.Sub(max(l.since, sampled)))
	}
}

// request adds the latency of a request that ended.
func (l *lane) request(d time.Duration) {
	l.fineLat.add(d)
	l.coarseLat.add(d)
}

// latencies counts durations in buckets of 1/8 of an octave, from 1 us to 20 minutes.
type latencies struct {
	counts [30 * 8]uint32
	total  uint32
}

func (h *latencies) add(d time.Duration) {
	us := uint64(max(1, d.Microseconds()))
	octave := bits.Len64(us) - 1
	at := octave * 8
	if octave >= 3 {
		at += int(us>>(octave-3)) & 7
	} else {
		at += int(us<<(3-octave)) & 7
	}
	h.counts[min(at, len(h.counts)-1)]++
	h.total++
}

// p99 returns the upper end of the 99th percentile's bucket, in microseconds; 0 without durations.
func (h *latencies) p99() float32 {
	if h.total == 0 {
		return 0
	}
	rank := (uint64(h.total)*99 + 99) / 100
	for i, n := range h.counts {
		if rank <= uint64(n) {
			return float32(math.Ldexp(1+float64(i%8+1)/8, i/8))
		}
		rank -= uint64(n)
	}
	return 0
}

func (h *latencies) reset() { *h = latencies{} }
