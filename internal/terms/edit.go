// SPDX-License-Identifier: Apache-2.0

package terms

import (
	"errors"

	"xsched/internal/model"
)

// ErrPinned reports a hint that the administrator has set.
var ErrPinned = errors.New("the administrator has set this hint")

// Edit is a change of the hints of a process, or of one queue of it, which is scheduled separately
// from then on. A refused edit changes nothing. The hints of the administrator about other users'
// programs stay: otherwise the next hint of a program would lift its quota.
type Edit struct {
	PID    int
	Queue  *uint32 // nil: the process
	Change model.HintChange
	// Raises: the caller is authorised to grant the priorities. They become the highest that the process
	// may have.
	Raises bool
	// Pins: the caller is the administrator. Neither the process nor its user can change these hints. A
	// priority becomes the highest that they can set. The value 0 of any other hint lets them choose again.
	Pins bool
	// Check, unless nil, receives the new hint and may refuse; it runs on the engine's thread.
	Check func(hint *model.Hint) error
}

// EditProcess edits the hint of a process and returns the result.
func (p *Process) EditProcess(e *Edit) (hint model.Hint, err error) {
	if e.Pins {
		pinned, ceiling := p.pinned, p.ceiling
		if highest, said := e.Change.Top(); said {
			p.ceiling = &highest
		}
		p.pinned.Pin(&e.Change)
		p.fix()
		defer func() {
			if err != nil {
				p.pinned, p.ceiling = pinned, ceiling
				p.fix()
			}
		}()
	}
	hint = p.Hint
	e.Change.Apply(&hint)
	granted := p.Terms.Grant.Pinned.Restored(&e.Change) // the default is that of the grant
	granted.Apply(&hint)
	if hint.Utilization == 0 {
		p.limitShare(&hint)
	}
	if hint.Memory == 0 {
		p.limitMemory(&hint)
	}
	if err := e.check(&hint); err != nil {
		return hint, err
	}
	if p.contradicts(&p.fixed, p.highest(), hint) || p.exceeds(&hint) {
		return hint, ErrPinned
	}
	p.Hint = hint
	p.set.Merge(&e.Change)
	asked, said := e.Change.Top()
	if e.Raises && p.Terms.Grant.Ceiling == nil { // a grant decides, and may end
		p.granted = min(top(&hint), max(p.granted, asked)) // a rule's priority is no grant of the caller
		if limit := p.book.Cap(p.user, p.groups); !limit.On || p.granted <= limit.Priority {
			p.granted = model.PriorityDefault // the user's own limit suffices, as long as it stays
		}
	}
	if said {
		p.Note = ""
	}
	return hint, nil
}

// EditQueue edits the hint of one queue and returns the result.
func (p *Process) EditQueue(q *Queue, e *Edit) (hint model.Hint, err error) {
	asked, said := e.Change.Top()
	if e.Pins {
		pinned, granted := q.pinned, q.granted
		if q.pinned.Pin(&e.Change); said {
			q.granted = asked
		}
		defer func() {
			if err != nil {
				q.pinned, q.granted = pinned, granted
			}
		}()
	}
	hint = p.Effective(q)
	e.Change.Apply(&hint)
	if err := e.check(&hint); err != nil {
		return hint, err
	}
	highest := p.highest()
	if p.contradicts(&p.fixed, nil, hint) || p.contradicts(&q.pinned, nil, hint) ||
		said && highest != nil && asked > max(*highest, q.granted) || p.exceeds(&hint) && !q.pinned.Has("utilization") {
		return hint, ErrPinned
	}
	q.set.Merge(&e.Change)
	if e.Raises && p.Terms.Grant.Ceiling == nil {
		q.granted = min(top(&hint), max(p.granted, q.granted, asked))
	}
	return p.Effective(q), nil
}

func (e *Edit) check(hint *model.Hint) error {
	if e.Check == nil {
		return nil
	}
	return e.Check(hint)
}

// contradicts reports that a hint differs from what the administrator has set.
func (p *Process) contradicts(pinned *model.HintChange, ceiling *model.Priority, hint model.Hint) bool {
	kept := hint
	pinned.Apply(&kept)
	if kept != hint {
		return true
	}
	raises := func(to, from model.Priority) bool { return ceiling != nil && to > *ceiling && to > from }
	return raises(hint.Priority, p.Hint.Priority) || raises(hint.LaxPriority, p.Hint.LaxPriority) ||
		raises(hint.CriticalPriority, p.Hint.CriticalPriority)
}

func top(h *model.Hint) model.Priority {
	return max(h.Priority, h.LaxPriority, h.CriticalPriority)
}
