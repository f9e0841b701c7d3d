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

// Strategy is what HPF does beside launch-bound highs. A name such as "HPF/wait"
// selects one, for measurements.
type Strategy string

// The strategies.
const (
	Batches      Strategy = "" // short requests gather on the device; before others wait, lows are suspended
	JustInTime   Strategy = "in-time"
	TinySlices   Strategy = "tiny"
	MediumSlices Strategy = "medium"
	NativeSlices Strategy = "native"
	StopAtWait   Strategy = "wait"
	WholeRequest Strategy = "whole"
	TinyInTime   Strategy = "tiny-in-time"
	AllBatches   Strategy = "batch-all" // for tests
)

// strategies describes what lows have beside a launch-bound request. The default has
// no name.
var strategies = map[Strategy]string{
	TinySlices:   "a tiny slice, as beside other requests",
	MediumSlices: "a slice of 0.5 ms", // UsefulSlice
	NativeSlices: "the driver's slice",
	StopAtWait:   "suspended when its program begins to wait",
	WholeRequest: "suspended from its first launch on",
	TinyInTime:   "a tiny slice shortly before its program waits",
	JustInTime:   "suspended shortly before its program waits; no request gathers on the device",
	AllBatches:   "a tiny slice, and all programs gather on the device whether or not it pays",
}

// InTime reports that lows give way shortly before a program waits.
func (s Strategy) InTime() bool { return s == JustInTime || s == TinyInTime || s.gathers() }

func (s Strategy) gathers() bool { return s == Batches || s == AllBatches }

// strategist is a policy with strategies.
type strategist interface{ strategist() }

func (HPF) strategist() {}

// with returns a policy with a strategy, whose name is given in any case; "" if
// there is no such.
func (e entry) with(policy, strategy string) (string, entry) {
	strategy = strings.ToLower(strategy)
	what, known := strategies[Strategy(strategy)]
	if _, has := e.policy.impl.(strategist); !has || !known {
		return "", entry{}
	}
	e.summary += "; lows beside launch-bound requests: " + what
	return policy + "/" + strategy, e
}

// fedHigh reports that all queues of [from, end) that may run are launch-bound.
func (v *View) fedHigh(from, end int) bool {
	return v.next(from, end, func(q *Queue) bool { return q.Admitted && q.Feeding.Class != model.ClassLaunchBound }) < 0
}

// gathers reports that the kernels of all queues of [from, end) that may run should gather on the device.
func (v *View) gathers(from, end int) bool {
	return v.next(from, end, func(q *Queue) bool { return q.Admitted && !q.Feeding.Batch }) < 0
}

// fedStop reports whether lows have to give way to a launch-bound high of
// [from, end) now, and when to ask again.
func (v *View) fedStop(now model.Time, from, end int) (stop bool, wake model.Time) {
	wake = model.Never
	for i := from; i < end; i++ {
		q := &v.Queues[i]
		if !q.Admitted {
			continue
		}
		s, at := v.fedStops(now, q)
		stop, wake = stop || s, min(wake, at)
		if at = q.Feeding.CheckAt; at > now {
			wake = min(wake, at)
		}
	}
	return stop, wake
}

func (v *View) fedStops(now model.Time, q *Queue) (bool, model.Time) {
	hold := 200 * time.Microsecond
	switch v.LaunchBound {
	case MediumSlices, NativeSlices, TinySlices:
		return false, model.Never
	case StopAtWait:
		if q.Ready && q.Feeding.Waits {
			return true, model.Never
		}
		return false, model.Never
	case WholeRequest:
		if q.Ready {
			return true, model.Never
		}
	case JustInTime, TinyInTime, Batches, AllBatches:
		if q.Ready {
			return q.Feeding.Stops(now)
		}
		hold = q.Feeding.Hold
	}
	// More work of the same request follows.
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

// fedSlice is the slice of the active low beside launch-bound highs.
func (v *View) fedSlice(stop bool) time.Duration {
	switch {
	case v.LaunchBound == MediumSlices:
		return UsefulSlice
	case v.LaunchBound == TinyInTime && stop:
		return v.Knobs.LowSlice
	}
	return 0
}
