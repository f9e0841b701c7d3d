// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"testing"
	"time"

	"xsched/internal/model"
)

// What a page tells about how a request was fed is learnt if all of the request was seen in time and beside others, and only then.
func TestFedIsLearntFromWholeRequests(t *testing.T) {
	const ms = time.Millisecond
	h := startHub(t, nil)
	c := h.join(t, 10, 0)
	c.queue(0)
	await(t, "it is quiet", func() bool { return c.page.Quiet(0) })
	err := h.call(h.ctx, func(l *loop) {
		var s *Session
		for _, s = range l.sessions {
		}
		q := s.queues[0]
		now := l.now()
		pass := func(d time.Duration) model.Time { now = now.Add(d); return now }
		learnt := func(what string, inRow int8) {
			t.Helper()
			for _, st := range l.engine.Snapshot(now) {
				if st.Queue.ID == q.id && st.Queue.Feeding.InRow != inRow {
					t.Errorf("%s: %+v, want %d in a row", what, st.Queue.Feeding, inRow)
				}
			}
		}
		request := func(sees bool) {
			c.page.SetBusy(0, true, pass(ms))
			if sees {
				l.scan(now, s)
			}
			c.page.SetFed(0, pass(3*ms))
			c.page.SetBusy(0, false, pass(ms/10))
		}
		// Quiet: its work was seen late, so that it looks like a short one.
		c.page.SetBusy(0, true, pass(ms))
		pass(17 * ms)
		l.sample(now)
		c.page.SetFed(0, pass(2*ms))
		c.page.SetBusy(0, false, pass(ms/10))
		other := model.QueueID{Session: 99}
		l.engine.AddQueue(now, model.Queue{ID: other, PID: 99, Device: q.device})
		l.rouse(now)
		if q.quiet {
			t.Error("quiet beside another one")
		}
		learnt("seen late", 0)
		request(false)
		l.scan(now, s)
		learnt("not seen", 0)
		request(true)
		l.scan(now, s)
		learnt("one", 1)
		request(true)
		request(false)
		l.scan(now, s)
		learnt("two seen as one", 1)
		request(true)
		l.scan(now, s)
		learnt("another", 2)
		c.page.SetBusy(0, true, pass(ms))
		pass(4 * ms)
		l.scan(now, s)
		c.page.SetFed(0, pass(3*ms))
		c.page.SetBusy(0, false, pass(ms/10))
		l.scan(now, s)
		learnt("its beginning was seen late", 2)
		c.page.SetBusy(0, true, pass(ms))
		l.scan(now, s)
		c.page.SetFed(0, pass(3*ms))
		c.page.SetBusy(0, false, pass(ms/10))
		pass(4 * ms)
		l.scan(now, s)
		learnt("its end was seen late", 2)
		l.engine.RemoveQueue(now, other)
	})
	if err != nil {
		t.Fatal(err)
	}
}
