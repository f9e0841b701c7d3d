// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"errors"

	"xsched/internal/model"
)

// This file changes hints on request of a user, and keeps those of the administrator about other users'
// programs. Without that, the next hint of a program would lift its quota.

// ErrPinned reports a hint that the administrator has set.
var ErrPinned = errors.New("the administrator has set this hint")

// HintEdit is a change of the hints of a process, or of one queue of it, which is scheduled separately
// from then on. A refused edit changes nothing.
type HintEdit struct {
	PID    int
	Queue  *uint32 // nil: the process
	Change model.HintChange
	// Raises: the caller is authorised to grant the priorities. They become the highest that the process
	// may have.
	Raises bool
	// Pins: the caller is the administrator. Neither the process nor its user can change these hints. A
	// priority becomes the highest that they can set. The value 0 of any other hint lets them choose again.
	Pins bool
	// Check, unless nil, receives the new hint and may refuse; it runs on the loop.
	Check func(hint *model.Hint) error
}

// EditHint applies an edit and returns the hint in force.
func (l *Loop) EditHint(ctx context.Context, e HintEdit) (hint model.Hint, err error) {
	found := e.Queue == nil
	err = l.edit(ctx, e.PID, func(c *Client) error {
		if e.Queue == nil {
			hint, err = e.process(l, c)
			return err
		}
		q := c.queues[*e.Queue]
		if q == nil || q.host != nil {
			return nil
		}
		found = true
		hint, err = e.queue(l, c, q)
		return err
	})
	if err == nil && !found {
		err = ErrUnknownQueue
	}
	return hint, err
}

// SetHint is EditHint for a process.
func (l *Loop) SetHint(ctx context.Context, pid int, raises bool, change model.HintChange, check func(hint *model.Hint) error) (model.Hint, error) {
	return l.EditHint(ctx, HintEdit{PID: pid, Change: change, Raises: raises, Check: check})
}

// SetQueueHint is EditHint for a queue.
func (l *Loop) SetQueueHint(ctx context.Context, pid int, index uint32, raises bool, change model.HintChange, check func(*model.Hint) error) (model.Hint, error) {
	return l.EditHint(ctx, HintEdit{PID: pid, Queue: &index, Change: change, Raises: raises, Check: check})
}

// process edits the hint of a process.
func (e *HintEdit) process(l *Loop, c *Client) (hint model.Hint, err error) {
	if e.Pins {
		pinned, ceiling := c.pinned, c.ceiling
		if highest, said := e.Change.Top(); said {
			c.ceiling = &highest
		}
		c.pinned.Pin(&e.Change)
		c.fix()
		defer func() {
			if err != nil {
				c.pinned, c.ceiling = pinned, ceiling
				c.fix()
			}
		}()
	}
	hint = c.hint
	e.Change.Apply(&hint)
	granted := c.terms.Grant.Pinned.Restored(&e.Change) // the default is that of the grant
	granted.Apply(&hint)
	if hint.Utilization == 0 {
		l.limitShare(c, &hint)
	}
	if err := e.check(&hint); err != nil {
		return hint, err
	}
	if c.pins(&c.fixed, c.highest(), hint) || c.exceeds(&hint) {
		return hint, ErrPinned
	}
	c.hint = hint
	c.set.Merge(&e.Change)
	asked, said := e.Change.Top()
	if e.Raises && c.terms.Grant.Ceiling == nil { // a grant decides, and may end
		c.granted = min(top(&hint), max(c.granted, asked)) // a rule's priority is no grant of the caller
		if limit := l.Cap(c.User, c.groups()); !limit.On || c.granted <= limit.Priority {
			c.granted = model.PriorityDefault // the user's own limit suffices, as long as it stays
		}
	}
	if said {
		c.priorityNote = ""
	}
	l.updateHints(l.now(), c)
	return hint, nil
}

// queue edits the hint of one queue.
func (e *HintEdit) queue(l *Loop, c *Client, q *queue) (hint model.Hint, err error) {
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
	hint = l.effectiveHint(c, q)
	e.Change.Apply(&hint)
	if err := e.check(&hint); err != nil {
		return hint, err
	}
	highest := c.highest()
	if c.pins(&c.fixed, nil, hint) || c.pins(&q.pinned, nil, hint) ||
		said && highest != nil && asked > max(*highest, q.granted) || c.exceeds(&hint) && !q.pinned.Has("utilization") {
		return hint, ErrPinned
	}
	set := q.set
	set.Merge(&e.Change)
	c.setQueueHint(q, set)
	if e.Raises && c.terms.Grant.Ceiling == nil {
		q.granted = min(top(&hint), max(c.granted, q.granted, asked))
	}
	hint = l.effectiveHint(c, q)
	l.engine.SetQueueHint(l.now(), q.id, c.engineHint(hint))
	l.updateLevels(c) // separate queues only support level 1
	return hint, nil
}

func (e *HintEdit) check(hint *model.Hint) error {
	if e.Check == nil {
		return nil
	}
	return e.Check(hint)
}

// pins reports that a hint differs from what the administrator has set.
func (c *Client) pins(pinned *model.HintChange, ceiling *model.Priority, hint model.Hint) bool {
	kept := hint
	pinned.Apply(&kept)
	if kept != hint {
		return true
	}
	raises := func(to, from model.Priority) bool { return ceiling != nil && to > *ceiling && to > from }
	return raises(hint.Priority, c.hint.Priority) || raises(hint.LaxPriority, c.hint.LaxPriority) ||
		raises(hint.CriticalPriority, c.hint.CriticalPriority)
}
