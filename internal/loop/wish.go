// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"xsched/internal/driver"
	"xsched/internal/identity"
	"xsched/internal/model"
)

// together is a set of workers that begin the same operation by one decision. They share one call of
// the driver where it can. Only programs of one user do: a call of several travels on the descriptor of
// one of them.
type together struct {
	gpu    model.DeviceID
	user   identity.User
	level  model.Level // 0: resume
	wishes []driver.Wish
}

// wish collects a suspension or resumption of the current decision.
func (l *Loop) wish(c *Client, gpu model.DeviceID, w *driver.Worker, want model.Desired) {
	one := driver.Wish{Worker: w, Want: want}
	if want.Suspend != 0 {
		one.After = l.resumed[gpu]
	}
	for i := range l.wishes {
		if t := &l.wishes[i]; t.gpu == gpu && t.level == want.Suspend && t.user == c.User {
			t.wishes = append(t.wishes, one)
			return
		}
	}
	l.wishes = append(l.wishes, together{gpu, c.User, want.Suspend, []driver.Wish{one}})
}

// fulfil passes the collected wishes to the workers.
func (l *Loop) fulfil() {
	for _, t := range l.wishes {
		tried := driver.WantTogether(t.wishes)
		if t.level == 0 {
			l.resumed[t.gpu] = append(l.resumed[t.gpu], tried...)
		}
	}
	clear(l.wishes)
	l.wishes = l.wishes[:0]
}
