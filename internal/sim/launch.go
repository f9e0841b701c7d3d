// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"time"

	"xsched/internal/model"
	gpumodel "xsched/internal/virtual/model"
)

// This file models the program's thread: it launches the kernels of a segment one after the other,
// waits for them, and goes on with the next segment.

// thread is how far the program's thread is with a request.
type thread struct {
	part        int   // segment
	rounds      int32 // of the segment, left; 0: not begun
	left        int32 // kernels of the round
	submitted   int32 // kernels and copies
	outstanding int32 // of them, incomplete, over all ranks
	closed      bool  // all are submitted
	pace        float64
}

// launch submits kernels until none is left, the next one is due later, or the program waits.
func (in *inst) launch() {
	for in.launching < in.next {
		r := &in.active[in.launching-in.first]
		s := &in.parts[r.part]
		if r.left == 0 {
			in.beginRound(r, s)
		}
		if !s.copies() {
			d := r.work
			if d == 0 {
				d = max(1, s.Kernel.draw(in.works))
			}
			in.submit(r, gpumodel.Work{Kind: gpumodel.WorkKernel, Duration: d})
		}
		delay := in.cpu(r, &s.Launch)
		if chance := in.tenant.Stall.Chance; chance > 0 && in.works.Float64() < chance {
			delay += in.tenant.Stall.Time.draw(in.works)
		}
		if s.copies() {
			in.submit(r, gpumodel.Work{Kind: gpumodel.WorkCopy, Bytes: s.Copy})
		}
		if r.left--; r.left == 0 {
			if s.Copy > 0 && !s.copies() {
				in.submit(r, gpumodel.Work{Kind: gpumodel.WorkCopy, Bytes: s.Copy})
			}
			if in.endRound(r, s) {
				return
			}
		}
		if delay > 0 && in.launching < in.next {
			in.later(delay)
			return
		}
	}
}

// later lets the thread go on after a time of its own work.
func (in *inst) later(d time.Duration) {
	in.waiting = true
	in.cell.timers.Push(in.cell.now.Add(d), timer{timerLaunch, in})
}

// cpu draws a CPU time of the thread. Draws follow the order of launches, so that every policy gets
// the same ones.
func (in *inst) cpu(r *request, d *Dist) time.Duration {
	v := d.draw(in.works)
	if r.pace != 0 {
		v = time.Duration(float64(v) * r.pace)
	}
	return v
}

// beginRound starts a repetition of a segment.
func (in *inst) beginRound(r *request, s *Segment) {
	if r.rounds == 0 {
		if v := in.tenant.Vary; v > 0 && r.part == 0 {
			r.pace = math.Exp(v * in.works.NormFloat64())
		}
		r.rounds = s.Repeat.draw(in.works)
	}
	if r.left = r.kernels; r.left == 0 {
		r.left = s.Kernels.draw(in.works)
	}
}

// endRound ends a repetition of a segment on the thread's side, and reports whether the thread waits
// or works on something else.
func (in *inst) endRound(r *request, s *Segment) bool {
	wait := s.Wait
	if r.rounds--; r.rounds == 0 {
		r.part++
		if r.part == len(in.parts) {
			r.closed = true
			in.launching++
		}
	}
	if r.closed && wait == WaitNone {
		wait = WaitSync
	}
	if wait != WaitNone {
		for _, rank := range in.ranks {
			rank.releaseBatch()
		}
	}
	if wait == WaitSync {
		for _, rank := range in.ranks {
			rank.waits()
		}
	}
	switch {
	case r.closed:
		return false
	case wait == WaitNone:
		if d := in.cpu(r, &s.CPU); d > 0 {
			in.later(d)
			return true
		}
		return false
	}
	in.blocked = true
	return true
}

// resume continues the thread after the wait for a segment.
func (in *inst) resume() {
	if !in.blocked {
		return // the program ended meanwhile
	}
	in.blocked = false
	r := &in.active[in.launching-in.first]
	last := r.part // the segment that ended: the same one if it repeats
	if r.rounds == 0 {
		last--
	}
	s := &in.parts[last]
	in.deliver(r, s)
	in.idle(s.Wait)
	if d := in.cpu(r, &s.CPU); d > 0 {
		in.later(d)
		return
	}
	in.launch()
}

// returned handles the end of the wait for a whole request.
func (in *inst) returned(r *request) {
	s := &in.parts[len(in.parts)-1]
	in.deliver(r, s)
	if in.launching == in.first && (len(in.active) == 0 || in.active[0].submitted == 0) {
		in.idle(s.Wait)
	}
	if in.width > 1 {
		return // requests overlap
	}
	if d := in.cpu(r, &s.CPU); d > 0 {
		in.later(d)
	}
}

// idle marks the queues idle: the program knows that all of its work is complete.
func (in *inst) idle(wait Wait) {
	for _, rank := range in.ranks {
		if wait == WaitUnseen {
			rank.page.wait(in.cell.now) // the call that waited counted as submission
		}
		rank.mark(false)
	}
}

// deliver records a token.
func (in *inst) deliver(r *request, s *Segment) {
	if !s.Token {
		return
	}
	c := in.cell
	sum := &c.classes[in.class]
	if r.at >= epoch.Add(c.plan.warmup) {
		if !r.first {
			sum.firstToken.Add(uint64(c.now.Sub(r.at)))
		} else {
			sum.perToken.Add(uint64(c.now.Sub(r.token)))
		}
	}
	r.first, r.token = true, c.now
}

// submit sends work to all ranks.
func (in *inst) submit(r *request, w gpumodel.Work) {
	r.submitted++
	r.outstanding += int32(len(in.ranks))
	for _, rank := range in.ranks {
		rank.push(w)
	}
}

// push submits work through the gate.
func (r *rank) push(w gpumodel.Work) {
	if r.shut(w) {
		return
	}
	r.page.submitted++
	if w.Kind == gpumodel.WorkKernel {
		r.page.launches++
		r.tellLaunch()
	} else {
		r.page.copies++
	}
	r.mark(true)
	if r.gathers(w) {
		return
	}
	if len(r.held) > 0 || !r.open() {
		r.held = append(r.held, w)
		return
	}
	r.send(w)
}

func (r *rank) open() bool { return !r.gate.closed && (r.gate.limit == 0 || r.flying < r.gate.limit) }

func (r *rank) send(w gpumodel.Work) {
	r.flying++
	r.inst.cell.advance(r.gpu).Submit(r.channel, w)
}

// drain submits held work that the gate admits.
func (r *rank) drain() {
	n := 0
	for n < len(r.held) && r.open() {
		r.send(r.held[n])
		n++
	}
	if n > 0 {
		r.held = append(r.held[:0], r.held[n:]...)
	}
}

// workDone handles the completion of a kernel or a copy of this rank.
func (r *rank) workDone() {
	in := r.inst
	if !r.joined {
		return
	}
	r.flying--
	r.drain()
	q := &in.active[r.serving-in.first]
	r.ended++
	q.outstanding--
	if !q.closed {
		if q.outstanding == 0 && in.blocked {
			in.cell.timers.Push(in.cell.now.Add(in.cell.plan.ret), timer{timerResume, in})
		}
		return
	}
	if r.ended < q.submitted {
		return
	}
	r.ended = 0
	r.serving++
	if q.ranks--; q.ranks > 0 {
		if r.serving == in.next {
			r.mark(false) // each rank waits for its own device
		}
		return
	}
	// All ranks serve in order, so this request is the oldest.
	done := in.active[0]
	in.active = append(in.active[:0], in.active[1:]...)
	in.first++
	if ret := in.cell.plan.ret; ret > 0 {
		in.returning = append(in.returning, done)
		in.cell.timers.Push(in.cell.now.Add(ret), timer{timerReturn, in})
		return
	}
	in.complete(&done)
}

// Done implements gpumodel.Sink. The device calls it while it advances, so consequences are
// deferred until it returns.
func (r *rank) Done(w *gpumodel.Work, _ model.Time) {
	r.copied += w.Bytes
	r.inst.cell.done = append(r.inst.cell.done, r)
}

// Blocks implements gpumodel.Sink.
func (r *rank) Blocks(*gpumodel.Work, int, int) {}

// CopyStart implements gpumodel.Sink.
func (r *rank) CopyStart(*gpumodel.Work) {}

// CopyReady implements gpumodel.Sink.
func (r *rank) CopyReady(*gpumodel.Work) bool { return true }
func (r *rank) Reached(*gpumodel.Work) bool   { return true }
