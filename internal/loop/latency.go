// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"sync/atomic"
	"time"

	"xsched/internal/driver"
	"xsched/internal/model"
)

// This file keeps the figures of a client's requests. Readers read them while the loop writes, so
// nothing is copied for snapshots. Two windows take turns: quantiles describe the requests of the
// last one to two windows.
const latencyWindow = 30 * time.Second

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

// figures are the requests of a client from one source. Only the loop writes.
type figures struct {
	marked   bool
	requests atomic.Uint64 // all, including those whose duration is unknown
	ever     durations
	target   atomic.Int64 // that met and missed refer to, as a time.Duration

	turn              model.Time // when the current window ends
	current, previous atomic.Pointer[durations]
}

// add adds n requests that took total, and waited for a part of it.
func (f *figures) add(now model.Time, total, wait time.Duration, n uint64, target time.Duration) {
	total = max(total, 0)
	wait = min(max(wait, 0), total)
	f.rotate(now)
	f.retarget(target)
	recent := f.current.Load()
	if recent == nil {
		recent = &durations{}
		f.current.Store(recent)
		if f.previous.Load() == nil {
			f.turn = now.Add(latencyWindow)
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
func (f *figures) rotate(now model.Time) {
	if f.current.Load() == nil && f.previous.Load() == nil || now < f.turn {
		return
	}
	last := f.current.Load()
	if now >= f.turn.Add(latencyWindow) {
		last = nil
	}
	f.previous.Store(last)
	f.current.Store(nil)
	f.turn = now.Add(latencyWindow)
}

// retarget forgets how requests met an earlier target.
func (f *figures) retarget(target time.Duration) {
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

// LatencyView describes the requests of a client.
type LatencyView struct {
	Marked           bool // by the program; otherwise they are its busy periods
	Requests         uint64
	Total, Wait, Own Durations
	// Met and Missed count requests by the client's latency target.
	Met, Missed, RecentMet, RecentMissed uint64
}

// view returns the figures, nil without requests. Met and Missed are for the given target.
func (f *figures) view(target time.Duration) *LatencyView {
	if f == nil || f.requests.Load() == 0 {
		return nil
	}
	v := &LatencyView{
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
