// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"time"

	"xsched/internal/model"
)

// A launch-bound program submits kernel by kernel and leaves the device empty
// between kernels. Beside a low with a tiny slice, each gap costs two switches, and
// the next kernel pays for one of them. Beside a low with the driver's slice, the
// kernels run in batches, which costs the program nothing while it submits: it does
// not wait for them. It does at the end. There the last batch would wait for the
// low's slice.
//
// So the kernels of a short request gather on the device (model.Batching), which then
// changes to them once. Beside a longer one, lows keep the driver's slice and are
// suspended shortly before its program is expected to wait (package predict), until the
// wait ends. docs/strategies.md has the comparison with other strategies.

// Strategy is what HPF does beside launch-bound highs, if it is not the default. A
// name such as "HPF/in-time" selects one.
type Strategy struct {
	Summary string // what lows have beside a launch-bound request
	// Gather: short requests gather on the device. GatherAll: all programs do.
	Gather, GatherAll bool
	// Tiny: lows have a tiny slice, as beside other requests.
	Tiny bool
	// Slice is the slice of the active low; 0: the driver's.
	Slice time.Duration
	// Stops reports whether lows give way to a queue now, and when to ask again; nil:
	// shortly before its program waits.
	Stops func(now model.Time, q *Queue) (bool, model.Time)
	// TinyStop: they give way by a tiny slice.
	TinyStop bool
}

// Strategies are strategies by name.
type Strategies map[string]*Strategy

// strategies are those of the daemon, for tests on hardware. The simulator has more.
var strategies = Strategies{
	"in-time":   {Summary: "suspended shortly before its program waits; no request gathers on the device"},
	"batch-all": {Summary: "a tiny slice, and all programs gather on the device whether or not it pays", Gather: true, GatherAll: true},
}

// gathers reports that short requests gather on the device.
func (s *Strategy) gathers() bool { return s == nil || s.Gather }

// tiny reports that lows have a tiny slice beside launch-bound highs too.
func (s *Strategy) tiny() bool { return s != nil && s.Tiny }

// tinyStop reports that lows are not suspended.
func (s *Strategy) tinyStop() bool { return s != nil && s.TinyStop }

// InTime reports that lows give way shortly before a program waits.
func (s *Strategy) InTime() bool { return s == nil || s.Stops == nil && !s.Tiny }

// strategist is a policy with strategies.
type strategist interface{ strategist() }

func (HPF) strategist() {}

// with returns a policy with a strategy, whose name is given in any case; "" if
// there is no such.
func (e entry) with(policy, name string, more Strategies) (string, entry) {
	name = strings.ToLower(name)
	if e.strategy = strategies[name]; e.strategy == nil {
		e.strategy = more[name]
	}
	if _, has := e.policy.impl.(strategist); !has || e.strategy == nil {
		return "", entry{}
	}
	e.summary += "; lows beside launch-bound requests: " + e.strategy.Summary
	return policy + "/" + name, e
}

// allLaunchBound reports that all queues of [from, end) that may run are launch-bound.
func (v *View) allLaunchBound(from, end int) bool {
	return v.next(from, end, func(q *Queue) bool { return q.Admitted && q.Feeding.Class != model.ClassLaunchBound }) < 0
}

// gathers reports that the kernels of all queues of [from, end) that may run should gather on the device.
func (v *View) gathers(from, end int) bool {
	return v.next(from, end, func(q *Queue) bool { return q.Admitted && q.Feeding.Burst == 0 }) < 0
}

// stopForAny reports whether lows have to give way to a launch-bound high of
// [from, end) now, and when to ask again.
func (v *View) stopForAny(now model.Time, from, end int) (stop bool, wake model.Time) {
	wake = model.Never
	for i := from; i < end; i++ {
		q := &v.Queues[i]
		if !q.Admitted {
			continue
		}
		s, at := v.stopFor(now, q)
		stop, wake = stop || s, min(wake, at)
		if at = q.Feeding.CheckAt; at > now {
			wake = min(wake, at)
		}
	}
	return stop, wake
}

func (v *View) stopFor(now model.Time, q *Queue) (bool, model.Time) {
	switch s := v.LaunchBound; {
	case s != nil && s.Stops != nil:
		return s.Stops(now, q)
	case q.Ready:
		return q.Feeding.Stops(now)
	}
	return q.Follows(now, q.Feeding.Hold)
}

// Follows reports whether more work of the same request may follow, for a time after
// its last work, and until when.
func (q *Queue) Follows(now model.Time, hold time.Duration) (bool, model.Time) {
	if free := q.ChangedAt.Add(hold); free > now && q.ChangedAt != 0 {
		return true, free
	}
	return false, model.Never
}

// chained returns until when lows stay suspended for the highs of [from, end) that
// submit a request in several parts, such as the tokens of a language model: now if
// for none. With slices alone, every part would pay for a switch.
func (v *View) chained(now model.Time, from, end int) model.Time {
	until := now
	for i := from; i < end; i++ {
		q := &v.Queues[i]
		switch {
		case !q.Admitted || q.Feeding.Hold == 0 || q.ChangedAt == 0:
		case q.Ready:
			return model.Never
		default:
			until = max(until, q.ChangedAt.Add(q.Feeding.Hold))
		}
	}
	return until
}

// besideSlice is the slice of the active low beside launch-bound highs.
func (v *View) besideSlice(stop bool) time.Duration {
	switch {
	case v.LaunchBound == nil:
		return 0
	case stop && v.LaunchBound.TinyStop:
		return v.Knobs.LowSlice
	}
	return v.LaunchBound.Slice
}
