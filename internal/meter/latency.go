// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"sync/atomic"
	"time"

	"xsched/internal/driver"
	"xsched/internal/model"
)

// LatencyWindow is how often the recent figures of requests begin anew. Two windows take turns:
// quantiles describe the requests of the last one to two windows. Readers read the figures while the
// loop writes, so nothing is copied for snapshots.
const LatencyWindow = 30 * time.Second

// durations are the histograms of some requests.
type durations struct {
	total, wait, own driver.Histogram
	met, missed      atomic.Uint64 // of the target
}

// add adds n requests of equal durations.
func (d *durations) add(total, wait time.Duration, n uint64) {
	d.total.RecordN(total, n)
	d.wait.RecordN(wait, n)
	d.own.RecordN(total-wait, n)
}

func (d *durations) judge(total, target time.Duration, n uint64) {
	if total <= target {
		d.met.Add(n)
	} else {
		d.missed.Add(n)
	}
}

// Figures are the requests of a client from one source. Only the loop writes.
type Figures struct {
	marked   bool
	requests atomic.Uint64 // all, including those whose duration is unknown
	ever     durations
	target   atomic.Int64 // that met and missed refer to, as a time.Duration

	turn              model.Time // when the current window ends
	current, previous atomic.Pointer[durations]
}

// add adds n requests that took total, and waited for a part of it.
func (f *Figures) add(now model.Time, total, wait time.Duration, n uint64, target time.Duration) {
	total = max(total, 0)
	wait = min(max(wait, 0), total)
	f.rotate(now)
	f.retarget(target)
	recent := f.current.Load()
	if recent == nil {
		recent = &durations{}
		f.current.Store(recent)
		if f.previous.Load() == nil {
			f.turn = now.Add(LatencyWindow)
		}
	}
	f.requests.Add(n)
	f.ever.add(total, wait, n)
	recent.add(total, wait, n)
	if target > 0 {
		f.ever.judge(total, target, n)
		recent.judge(total, target, n)
	}
}

// rotate begins a new window when it is time to.
func (f *Figures) rotate(now model.Time) {
	if f.current.Load() == nil && f.previous.Load() == nil || now < f.turn {
		return
	}
	last := f.current.Load()
	if now >= f.turn.Add(LatencyWindow) {
		last = nil
	}
	f.previous.Store(last)
	f.current.Store(nil)
	f.turn = now.Add(LatencyWindow)
}

// retarget forgets how requests met an earlier target.
func (f *Figures) retarget(target time.Duration) {
	if f.target.Load() == int64(target) {
		return
	}
	f.target.Store(int64(target))
	for _, d := range []*durations{&f.ever, f.current.Load(), f.previous.Load()} {
		if d != nil {
			d.met.Store(0)
			d.missed.Store(0)
		}
	}
}

// Durations are the requests of a client. Ever has all of them, Recent those of the last 30 to 60
// seconds.
type Durations struct {
	Ever   *driver.Histogram // changes with further requests
	Recent *driver.Histogram
}

// Latency describes the requests of a client.
type Latency struct {
	Marked           bool // by the program; otherwise they are its busy periods
	Requests         uint64
	Total, Wait, Own Durations
	// Met and Missed count requests by the client's latency target.
	Met, Missed, RecentMet, RecentMissed uint64
}

// Counts are numbers of requests of a client: all, and those that met or missed its latency target.
type Counts struct{ Requests, Met, Missed uint64 }

// Counts returns the numbers so far, without the cost of Latency. They begin anew with another target or source.
func (f *Figures) Counts() Counts {
	if f == nil {
		return Counts{}
	}
	return Counts{f.requests.Load(), f.ever.met.Load(), f.ever.missed.Load()}
}

// Latency returns the figures, nil without requests. Met and Missed are for the given target.
func (f *Figures) Latency(target time.Duration) *Latency {
	if f == nil || f.requests.Load() == 0 {
		return nil
	}
	v := &Latency{
		Marked: f.marked, Requests: f.requests.Load(),
		Total: Durations{&f.ever.total, &driver.Histogram{}}, Wait: Durations{&f.ever.wait, &driver.Histogram{}}, Own: Durations{&f.ever.own, &driver.Histogram{}},
	}
	judged := f.target.Load() == int64(target)
	if judged {
		v.Met, v.Missed = f.ever.met.Load(), f.ever.missed.Load()
	}
	for _, recent := range []*durations{f.previous.Load(), f.current.Load()} {
		if recent == nil {
			continue
		}
		v.Total.Recent.Merge(&recent.total)
		v.Wait.Recent.Merge(&recent.wait)
		v.Own.Recent.Merge(&recent.own)
		if judged {
			v.RecentMet += recent.met.Load()
			v.RecentMissed += recent.missed.Load()
		}
	}
	return v
}
