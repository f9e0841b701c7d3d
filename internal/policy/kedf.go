// SPDX-License-Identifier: Apache-2.0

package policy

import "xsched/internal/model"

// KEDF serves the K earliest deadlines at the same time. K is the largest that any queue
// of the device asks for, 1 if none does: then it is EDF. Those K share the device
// with slices longer than the driver's.
type KEDF struct{ EDF }

var (
	_ Policy = KEDF{}
	_ Keyer  = KEDF{}
)

// kedfMost bounds K: more at once is sharing, and other policies do that better.
const kedfMost = 64

// Name implements Policy.
func (KEDF) Name() string { return "KEDF" }

// Decide implements Policy.
func (k KEDF) Decide(now model.Time, v *View) (model.Plan, model.Time) {
	width := min(v.Width, kedfMost)
	if width < 2 {
		return k.EDF.Decide(now, v)
	}
	first := v.Eligible.Next(0)
	if first < 0 {
		return v.Base(Span{0, len(v.Queues), model.Verdict{}}), model.Never
	}
	var chosen [kedfMost]int
	n := v.leastOf(v.Ready, chosen[:width])
	// Idle ones stay enabled while there is room: they start without being continued first.
	for i := v.Running.Next(0); i >= 0 && n < width; i = v.Running.Next(i + 1) {
		if v.Eligible.Has(i) && !v.Ready.Has(i) {
			chosen[n] = i
			n++
		}
	}
	if n == 0 {
		chosen[0], n = first, 1
	}
	rest := model.Verdict{Limit: v.Eligible.CountIn(first, len(v.Queues), n+1) > n}
	plan := v.Base(Span{0, len(v.Queues), rest})
	turn := model.Verdict{Run: true, Limit: rest.Limit, Slice: v.Knobs.Timeslice}
	if !v.CanSuspend {
		turn.Slice = v.Knobs.ShareMax
	}
	for _, i := range chosen[:n] {
		v.Set(i, turn)
	}
	return plan, model.Never
}
