// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math/bits"

	"xsched/internal/model"
)

// Span gives the eligible queues of [From, End) one verdict.
type Span struct {
	From, End int
	Verdict   model.Verdict
}

// Range is the indices [From, End).
type Range struct{ From, End int }

// painting is the plan of a view and how it came to be. A plan has one verdict
// for each queue, but two plans in a row differ in a few: painted as a few
// spans and single queues over them, the next one touches only what differs. That is
// what keeps a decision among 1,000 queues near a microsecond.
type painting struct {
	plan    model.Plan
	spans   []Span
	marks   []int   // queues that were set apart from their span
	touched []Range // what may differ from the plan before
	sharing bool    // CanSuspend is false, and somebody was to be stopped

	each   model.Plan // a verdict of its own for each queue, instead of spans
	eachOn bool       // it is what was painted
}

func (p *painting) reset(n int) {
	if cap(p.plan) < n {
		p.plan = make(model.Plan, n, 2*n)
	}
	p.plan = p.plan[:n]
	clear(p.plan)
	p.spans, p.marks, p.touched = p.spans[:0], p.marks[:0], p.touched[:0]
	p.each, p.eachOn = p.each[:0], false
}

// Touched returns where the last plan may differ from the one before it.
func (v *View) Touched() []Range { return v.touched }

// Base starts a plan: spans in order, without gaps, over all queues. Queues
// that are not eligible are stopped whatever their span says, and slices are left
// out where there are none.
func (v *View) Base(spans ...Span) model.Plan {
	v.touched, v.sharing, v.goesOn = v.touched[:0], false, model.QueueID{}
	if !v.CanSuspend {
		v.share(spans)
	}
	same := len(spans) == len(v.spans) && !v.eachOn
	v.eachOn = false
	for k := 0; same && k < len(spans); k++ {
		same = spans[k].From == v.spans[k].From && spans[k].End == v.spans[k].End
	}
	for k := range spans {
		if !same || spans[k].Verdict != v.spans[k].Verdict {
			v.paint(spans[k])
		}
	}
	v.spans = append(v.spans[:0], spans...)
	v.restore()
	return v.plan
}

// Each starts a plan of which every queue has a verdict of its own: fill is
// asked for them after a rebuild, and otherwise nothing is done.
func (v *View) Each(fill func(i int) model.Verdict) model.Plan {
	v.touched, v.sharing, v.goesOn = v.touched[:0], false, model.QueueID{}
	if len(v.each) != len(v.plan) {
		v.each = v.each[:0]
		for i := range v.plan {
			verdict := fill(i)
			if !v.CanSuspend {
				v.share1(&verdict)
			}
			v.each = append(v.each, verdict)
		}
		v.eachOn = false
	}
	if !v.eachOn {
		for i := range v.plan {
			v.plan[i] = v.checked(i, v.each[i])
		}
		v.touched = append(v.touched, Range{0, len(v.plan)})
		v.eachOn, v.spans = true, v.spans[:0]
	}
	v.restore()
	return v.plan
}

// restore gives those that were set apart the verdict they had without.
func (v *View) restore() {
	for _, i := range v.marks {
		v.plan[i] = v.checked(i, v.spanVerdict(i))
		v.touched = append(v.touched, Range{i, i + 1})
	}
	v.marks = v.marks[:0]
}

// Recheck makes the next plan look at queue i again, after its eligibility changed.
func (v *View) Recheck(i int) { v.marks = append(v.marks, i) }

// Set gives one queue another verdict than its span.
func (v *View) Set(i int, verdict model.Verdict) {
	if !v.CanSuspend {
		v.share1(&verdict)
	}
	v.plan[i] = v.checked(i, verdict)
	v.marks = append(v.marks, i)
	v.touched = append(v.touched, Range{i, i + 1})
}

// share makes spans that stop nobody. Who was to wait runs with the driver's
// slice; a tiny slice beside it would only switch.
func (v *View) share(spans []Span) {
	for k := range spans {
		v.sharing = v.sharing || spans[k].From < spans[k].End && !spans[k].Verdict.Run
	}
	for k := range spans {
		v.share1(&spans[k].Verdict)
	}
}

func (v *View) share1(verdict *model.Verdict) {
	verdict.Limit = false
	if !verdict.Run || v.sharing && verdict.Slice < UsefulSlice {
		*verdict = model.Verdict{Run: true}
	}
}

// checked is a verdict as far as queue i can have it.
func (v *View) checked(i int, verdict model.Verdict) model.Verdict {
	if !v.Eligible.Has(i) {
		return model.Verdict{}
	}
	if !v.Sliced.Has(i) {
		verdict.Slice = 0
	}
	return verdict
}

func (v *View) spanVerdict(i int) model.Verdict {
	if v.eachOn {
		return v.each[i]
	}
	for k := range v.spans {
		if i < v.spans[k].End {
			return v.spans[k].Verdict
		}
	}
	return model.Verdict{}
}

func (v *View) paint(s Span) {
	if s.From >= s.End {
		return
	}
	part := v.plan[s.From:s.End]
	for i := range part {
		part[i] = s.Verdict
	}
	for w := s.From >> 6; w<<6 < s.End; w++ {
		for odd := ^(v.Eligible[w] & v.Sliced[w]); odd != 0; odd &= odd - 1 {
			if i := w<<6 + bits.TrailingZeros64(odd); i >= s.From && i < s.End {
				v.plan[i] = v.checked(i, s.Verdict)
			}
		}
	}
	v.touched = append(v.touched, Range{s.From, s.End})
}
