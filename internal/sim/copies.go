// SPDX-License-Identifier: Apache-2.0

package sim

// seeCopies models how the daemon finds programs that only copy (internal/loop).
func (r *rank) seeCopies() {
	was := r.copies.Only
	r.copies.See(r.inst.cell.now, r.page.launches, r.page.copies, r.page.busy())
	if r.copies.Only != was {
		r.inst.cell.engine.SetCopying(r.inst.cell.now, r.id, r.copies.Only)
		r.inst.cell.dirty = true
	}
}

// tellLaunch models the doorbell that a program rings at its next launch if it was asked to.
func (r *rank) tellLaunch() {
	if r.copies.Ask {
		r.ring()
	}
}
