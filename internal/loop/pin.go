// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"errors"

	"xsched/internal/model"
)

// This file keeps hints of the administrator about other users' programs. Without it, the next hint of
// a program would lift its quota.

// ErrPinned reports a hint that the administrator has set.
var ErrPinned = errors.New("the administrator has set this hint")

// Pin keeps hints of the administrator about a process, or about one queue of it: neither its user nor
// the process itself can change them. A priority becomes the highest that they can set. The value 0
// of any other hint lets them choose again. The caller then sets the hints themselves.
func (l *Loop) Pin(ctx context.Context, pid int, queue *uint32, change model.HintChange) error {
	top, said := change.Top()
	return l.edit(ctx, pid, func(c *Client) error {
		if queue == nil {
			if c.pinned.Pin(&change); said {
				c.ceiling = &top
			}
			c.fix()
			return nil
		}
		if q := c.queues[*queue]; q != nil {
			if q.pinned.Pin(&change); said {
				q.granted = top
			}
		}
		return nil
	})
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
