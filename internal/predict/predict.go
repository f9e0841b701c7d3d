// SPDX-License-Identifier: Apache-2.0

// Package predict foresees when a program will wait for the segment that it submits kernel by kernel, so that lower
// queues can be stopped just before, from the usual number of launches and their pace. A request may have several
// segments, as the prompt and the tokens of a language model. The package is pure: callers pass the time.
//
// All input comes from the program. Nonsense changes only its own protection: memory and time per call are constant,
// and a stop has a limit.
package predict

import (
	"time"

	"xsched/internal/model"
)

// Each comment names the test that sets the constant.
const (
	history  = 16                     // sizes that are known; fewer launches show no pace. TestStopsJustInTime
	looks    = 8                      // readings of a segment's progress; fewer launches are no segment. TestQueuedPrompts
	waitMax  = 20 * time.Millisecond  // limits a stop for a wait, as does half the submission time. TestWaitThatNeverEnds
	leadMax  = 2 * time.Millisecond   // the first lead, above what a stop takes. TestLeadFollowsTheStop
	leadStep = 200 * time.Microsecond // a late stop adds it, one in time removes a 32nd of the lead. TestLeadFollowsTheStop
	slack    = 50 * time.Microsecond  // by how much waits differ for no reason. TestNoiseIsNotLate
	sparse   = 500 * time.Microsecond // between launches: the program waits in a way that nothing reports. TestClass
	tailMax  = 300 * time.Microsecond // and a sixth of the submission: the wait of a launch-bound program. sim.TestNearTheLimit
)

// Program is what is known of a program's segments. The zero value is that of a new one.
type Program struct {
	class          model.Evidence
	tokens, shorts int // segments in a row that say nothing about the class

	// The segments that begin a request, and those that follow, differ: a prompt and its tokens.
	first, next sizes
	follow      [looks]float32 // probability that another one follows the first, second and so on
	gap         time.Duration  // mean time until it does
	chain       int            // segments before the current one in its request
	ended       model.Time     // when the last segment did

	lead         time.Duration // how long before the predicted wait to stop lower queues
	floor, noise time.Duration // a low quantile of the waits, and by how much they vary without lower queues
	hits         float32       // part of the stops that were of use
	counts       model.SegmentCounts
	batch        model.Batching

	count  uint64 // launches
	unseen int    // segments to follow closely after one whose end was not seen
	segment
}

// segment is the current one.
type segment struct {
	open, waits   bool
	follows       bool // it belongs to the request of the last one
	held          bool // lower queues were still stopped when it began
	Gathered      model.Gathering
	gaveUp        bool       // a stop ended before the wait
	overdue       bool       // it waits for too long
	began, waitAt model.Time // waitAt: when a thread began to wait
	base, atWait  uint64     // launches then
	paused        model.Time // since when the device has no work, and nobody waits
	expect        uint32     // launches
	checks        int
	grown         model.Time // when a look last found more launches
	found         uint64     // launches then
	stopAt, until model.Time // of a stop; stopAt is Never for none
	checkAt       model.Time // when to look at its progress; 0: never
	stopped       model.Time // when the first stop began; 0: none has
}

// State returns what is known, for display.
func (p *Program) State() model.SegmentState {
	n := p.first.n + p.next.n
	return model.SegmentState{Class: p.class.Is, Known: n, Lead: p.lead, Hits: float64(p.hits), Predicted: n > 0 && !p.poor(), Counts: p.counts, Batch: p.batch}
}

// Feeding returns what a policy needs to know.
func (p *Program) Feeding() model.Feeding {
	f := model.Feeding{Class: p.class.Is, Burst: p.batch.Burst, Waits: p.open && p.waits, Paused: p.open && p.paused != 0, Hold: p.hold()}
	switch {
	case p.class.Is != model.ClassLaunchBound || p.paused != 0 || !p.open: // without work, time shows nothing
	case p.overdue:
		f.Class = model.ClassUnknown
	default:
		if f.CheckAt = p.checkAt; p.stopAt != model.Never && (p.waits || !p.poor()) {
			f.StopAt, f.StopUntil = p.stopAt, p.until
		}
	}
	return f
}

// Followed reports that it matters when the program begins to wait.
func (p *Program) Followed() bool { return p.class.Is == model.ClassLaunchBound || p.unseen > 0 }

// Begin reports that the program submits work to an idle device, after this many launches.
func (p *Program) Begin(now model.Time, launches uint64) {
	if p.open && !p.waits && p.paused != 0 && now.Sub(p.paused) < model.SegmentGap {
		if p.paused = 0; p.checkAt != 0 { // nothing was stopped meanwhile: predict again
			p.stopAt, p.until, p.stopped, p.checkAt = model.Never, 0, 0, now.Add(slack)
		}
		return
	}
	held := p.joins(now)
	if launches != p.count+1 { // it may be the first launch of this segment
		p.count = launches
	}
	p.segment = segment{open: true, follows: p.chain > 0, held: held, began: now, base: p.count, stopAt: model.Never, grown: now, found: p.count}
	if p.class.Is == model.ClassLaunchBound {
		p.expect = p.sizes().median()
		p.plan(now)
	}
}

// Pause reports that the device has no work left, but no thread waits.
func (p *Program) Pause(now model.Time) { p.paused = now }

// Drop forgets the current segment, which ends now: its beginning or its end is not known.
func (p *Program) Drop(now model.Time) { p.segment, p.ended = segment{stopAt: model.Never}, now }

// Progress reports how many launches there were so far, and whether a thread waits for them.
func (p *Program) Progress(now model.Time, launches uint64, waits bool) {
	if launches > p.count && launches-p.base < 1<<31 {
		p.count = launches
	}
	switch {
	case !p.open:
	case p.waits:
		p.wait(now)
	case waits && p.paused != 0:
		p.Drop(now) // nothing is left to wait for
	case waits:
		p.waits, p.waitAt, p.atWait = true, now, p.count
		if p.class.Is != model.ClassLaunchBound {
			return
		}
		if p.reached(now); p.stopAt > now || now >= p.until {
			p.stopAt = now // late, but better than to wait for a slice to end
		}
		p.until = now.Add(waitMax + min(now.Sub(p.began)/2, time.Second))
		p.checkAt = now.Add(2 * model.SegmentMin)
	case p.checkAt != 0 && now >= p.checkAt && p.paused == 0:
		p.plan(now)
	}
}

// wait follows a wait. A program that submits although a thread waits has begun another segment: the wait is over, or
// another thread's. After a long wait it counts as any other: it may be halted, and can't say that its work is done.
func (p *Program) wait(now model.Time) {
	switch {
	case p.checkAt == 0 || now < p.checkAt:
	case p.count-p.atWait >= looks:
		began, base := p.waitAt, p.atWait
		p.Drop(began)
		p.Begin(now, p.count)
		p.began, p.base = began, base
	case now < p.until:
		p.checkAt = min(p.until, now.Add(2*model.SegmentMin))
	default:
		p.overdue, p.stopAt, p.checkAt = true, model.Never, 0
	}
}

// reached records that a stop has begun.
func (p *Program) reached(now model.Time) {
	if p.stopped == 0 && p.stopAt <= now {
		p.stopped = p.stopAt
	}
}

// plan predicts the wait, and sets when to stop lower queues and when to look again. A stop outlasts the predicted wait.
func (p *Program) plan(now model.Time) {
	if p.checks++; now >= p.until {
		p.reached(now) // earlier, this look may still postpone it
		p.gaveUp = p.stopped != 0
	}
	if p.count > p.found {
		p.grown, p.found = now, p.count
	}
	done, k := uint32(p.count-p.base), p.sizes()
	if done > p.expect+p.expect/32 { // longer than expected, as a prompt that was taken for a token
		p.gaveUp, p.stopped = false, 0
		if p.expect = k.longer(done); p.expect == 0 && p.follows {
			p.follows, p.chain, k = false, 0, &p.first
			p.expect = k.longer(done)
		}
	}
	elapsed := now.Sub(p.began)
	left := k.left(p.expect, done, elapsed)
	step := left - p.lead
	p.stopAt, p.until, p.checkAt = model.Never, 0, 0
	switch short := k.left(p.expect, 0, 0) < model.SegmentMin; {
	case p.expect == 0:
	case short && (!p.held || p.checks > 1): // too short for a stop, unless lower queues are stopped already
		if p.follows && p.checks < looks {
			p.checkAt = now.Add(max(model.SegmentMin, elapsed))
		}
	case p.gaveUp && (step < model.SegmentMin || p.checks >= looks): // it looked like that before
	case short || step <= slack:
		if p.stopAt = now; p.stopped == 0 {
			p.stopped = now
		}
		p.until = now.Add(min(left, leadMax+model.SegmentMin) + model.SegmentMin)
		p.checkAt = p.until
	default:
		p.stopAt, p.until = now.Add(step), now.Add(left+model.SegmentMin)
		if step > model.SegmentMin { // the pace may change until then
			step = step * 5 / 8
		}
		if p.checkAt = now.Add(step); p.checks >= looks {
			p.checkAt = p.until
		}
	}
}
