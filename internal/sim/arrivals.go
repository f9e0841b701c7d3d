// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"strconv"
	"time"

	"xsched/internal/model"
)

// schedule sets the timer for the next open-loop request.
func (in *inst) schedule() {
	c, a := in.cell, &in.tenant.Arrivals
	if in.ended {
		return
	}
	var at model.Time
	switch {
	case a.Poisson > 0:
		at = c.now.Add(in.exponential(a.Poisson))
	case a.Rate > 0:
		at = in.evenly(a)
	case a.OnOff != nil:
		at = in.onOff(a.OnOff)
	case a.Trace != nil:
		if len(in.trace) == 0 {
			return
		}
		at = max(c.now, epoch.Add(in.tenant.Start.D()+in.trace[0].At))
	}
	c.timers.Push(at, timer{timerArrival, in})
}

func (in *inst) exponential(rate float64) time.Duration {
	return clampTime(in.random.ExpFloat64() / rate * float64(time.Second))
}

// evenly returns the next time of a fixed-rate schedule with a random phase. The schedule does not
// depend on completions.
func (in *inst) evenly(a *Arrivals) model.Time {
	period := float64(time.Second) / a.Rate
	if in.nth == 0 {
		in.onUntil = in.cell.now.Add(time.Duration(in.random.Float64() * period))
	}
	at := in.onUntil.Add(time.Duration(float64(in.nth) * period))
	in.nth++
	if a.Jitter > 0 {
		at = at.Add(time.Duration(in.random.Float64() * a.Jitter * period))
	}
	return max(at, in.cell.now)
}

// onOff returns the next request of a bursty stream and skips pauses.
func (in *inst) onOff(o *OnOff) model.Time {
	at := in.cell.now
	if in.nth == 0 {
		in.nth = 1
		in.onUntil = at.Add(o.On.draw(in.random))
	}
	for range 1_000_000 { // bounds a stream whose bursts are too short for a request
		at = at.Add(in.exponential(o.Rate))
		if at < in.onUntil {
			return at
		}
		at = in.onUntil.Add(o.Off.draw(in.random))
		in.onUntil = at.Add(o.On.draw(in.random))
	}
	return model.Never
}

// think schedules the next closed-loop request after the think time.
func (in *inst) think() {
	if in.ended {
		return
	}
	var d time.Duration
	if in.tenant.Arrivals.Trace != nil {
		if len(in.trace) == 0 {
			return
		}
		d = in.trace[0].At
	} else {
		d = in.tenant.Arrivals.Closed.Think.draw(in.random)
	}
	if d <= 0 {
		in.arrive()
		return
	}
	in.cell.timers.Push(in.cell.now.Add(d), timer{timerThink, in})
}

func gangSuffix(id model.QueueID) string { return "#" + strconv.FormatUint(uint64(id.Session), 10) }
