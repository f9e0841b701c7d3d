// SPDX-License-Identifier: Apache-2.0

package predict

import (
	"slices"
	"time"

	"xsched/internal/model"
)

// End reports that the program waited for the segment. In its last busy period, which began at a time, it submitted for
// a time and waited for the rest.
func (p *Program) End(now, from model.Time, submitted, waited time.Duration, lower model.Lower) {
	if p.open && submitted > 0 && waited >= 0 && submitted < time.Minute && waited < time.Minute {
		submitted += max(0, from.Sub(p.began))
		p.learn(now.Add(-waited), submitted, waited, lower)
	}
	p.Drop(now)
}

// Unseen reports that the segment ended, and that it is not known for how long the program submitted and waited: a token
// follows a prompt so soon that nobody sees the end of the prompt. Reports of waits help from then on.
func (p *Program) Unseen(now model.Time, lower model.Lower) {
	if p.open && p.waits && p.waitAt > p.began {
		p.End(now, p.began, p.waitAt.Sub(p.began), now.Sub(p.waitAt), lower)
		return
	}
	if p.open && now.Sub(p.began) >= model.SegmentMin {
		p.unseen = 4 * history
	}
	p.Drop(now)
}

// learn adds a segment. Lower queues are mostly still stopped when one comes soon after another: if it waits early, as a
// token does, it says nothing about the lead or the class, unless there are only such.
func (p *Program) learn(wait model.Time, submitted, waited time.Duration, lower model.Lower) {
	p.unseen = max(0, p.unseen-1)
	size, long := uint32(min(p.count-p.base, 1<<31)), submitted+waited >= model.SegmentMin
	p.batch.End(uint64(size), submitted, waited, p.Gathered)
	if p.tokens++; p.ended == 0 || p.began.Sub(p.ended) > model.SegmentGap || waited <= submitted/3 {
		p.tokens = 0
	}
	if p.shorts++; p.tokens > 0 || long {
		p.shorts = 0
	}
	says := long && (p.tokens == 0 || p.tokens > model.Doubtful)
	if says && p.class.Is == model.ClassLaunchBound && lower == model.LowerYield {
		p.judge(wait, waited)
	}
	p.sizes().learn(max(1, size), submitted)
	hidden := submitted > time.Duration(size)*sparse || p.count == p.found && wait.Sub(p.grown) > max(model.SegmentMin, submitted/4)
	if p.class.Is == model.ClassLaunchBound && submitted >= model.SegmentMin { // lower queues may have delayed it by a slice
		waited -= 5 * model.SegmentMin / 2
	}
	bound := waited <= submitted/6+tailMax
	if p.shorts >= history {
		p.class = model.Evidence{}
	} else if says && (lower != model.LowerCompete || bound) {
		p.class.Add(bound && !hidden)
	}
	if p.lead == 0 {
		p.lead, p.hits = leadMax, 1
	}
}

// judge learns the lead from how the stop of this segment was.
func (p *Program) judge(wait model.Time, waited time.Duration) {
	if p.stopAt != p.waitAt { // else it was not predicted
		p.reached(wait)
	}
	ahead := wait.Sub(p.stopped)
	stopped := p.stopped != 0 && ahead > 0
	toward(&p.hits, stopped && !p.gaveUp && ahead <= p.lead+2*model.SegmentMin, 1./16)
	if p.poor() {
		p.counts.Unaided++
		return
	}
	over := waited - p.floor - p.floor/4 - slack // by so much the wait is longer than it has to be
	if stopped && ahead >= leadMax-2*slack && over <= 2*slack {
		p.noise = max(p.noise, over) // lower queues were stopped long ago
	}
	late := p.floor != 0 && over > p.noise
	switch {
	case p.floor == 0:
		p.floor = max(1, waited)
	case waited < p.floor:
		p.floor -= (p.floor - waited) / 4
	default:
		p.floor += (waited - p.floor) / 256 // so slowly that late stops do not become the rule
	}
	switch {
	case p.gaveUp:
		p.counts.Early++
	case stopped && !late:
		p.counts.InTime++
		p.lead = max(2*slack, p.lead-p.lead/32)
	default:
		p.counts.Late++
		p.lead = min(leadMax, p.lead+leadStep)
	}
}

// poor reports that too few stops are of use: lower queues are stopped when the program waits.
func (p *Program) poor() bool { return p.hits < 0.7 }

// joins decides whether the segment that begins belongs to the request of the last one, and reports whether lower
// queues are still stopped for that.
func (p *Program) joins(now model.Time) (held bool) {
	gap, another := now.Sub(p.ended), p.another()
	soon := p.ended != 0 && gap <= model.SegmentMin
	held = soon && gap <= p.hold()
	toward(another, soon, 1./8)
	if p.chain++; !soon {
		p.chain = 0
		return false
	}
	p.gap += (gap - p.gap) / 4
	return held
}

// another is the probability that a segment follows the current one, or the last one.
func (p *Program) another() *float32 { return &p.follow[min(p.chain, looks-1)] }

// hold is how long a stop outlasts a segment, because another one follows.
func (p *Program) hold() time.Duration {
	likely := *p.another()
	if likely < 0.25 || likely < 0.5 && p.class.Is != model.ClassLaunchBound { // lower queues are stopped for launch-bound ones anyway
		return 0
	}
	return min(model.SegmentMin, 4*p.gap+2*slack)
}

// sizes is what is known of the sizes of segments, in launches.
type sizes struct {
	n    int
	last [history]uint32
	pace float64 // ns per launch
}

// sizes returns those of segments like the current one.
func (p *Program) sizes() *sizes {
	if p.follows {
		return &p.next
	}
	return &p.first
}

// median returns the middle one of the last sizes; 0: none is known.
func (s *sizes) median() uint32 {
	known := s.last
	slices.Sort(known[:min(s.n, history)])
	return known[min(s.n, history)/2]
}

// longer returns the shortest known size above one; 0: none.
func (s *sizes) longer(than uint32) (least uint32) {
	for _, size := range s.last {
		if size > than+than/32+1 && (least == 0 || size < least) {
			least = size
		}
	}
	return least
}

// left predicts the time until the wait, after so many launches in a time. A slow segment may have stalled: the rest is
// expected at the usual pace, or faster if it was.
func (s *sizes) left(expect, done uint32, elapsed time.Duration) time.Duration {
	pace := s.pace
	if done >= history {
		pace = min(pace, float64(elapsed)/float64(done))
	}
	return time.Duration(min(max(0, (float64(expect)-float64(done))*pace), float64(time.Minute)))
}

func (s *sizes) learn(size uint32, submitted time.Duration) {
	s.last[s.n%history] = size
	s.n = s.n%(history<<20) + 1
	s.pace += (float64(submitted)/float64(size) - s.pace) / float64(min(s.n, 8))
}

func toward(p *float32, yes bool, weight float32) {
	if *p -= *p * weight; yes {
		*p += weight
	}
}
