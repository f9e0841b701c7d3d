// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"testing"
	"time"

	"xsched/internal/clock"
	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
)

// The engine learns how a request was fed only if the loop saw both of its transitions in time.
func TestFedIsLearntFromWholeRequests(t *testing.T) {
	const ms = time.Millisecond
	h := sessiontest.Start(t, nil)
	c := h.Client(t, 10, 0)
	c.Queue(0)
	sessiontest.Await(t, "it is quiet", func() bool { return c.Page.Quiet(0) })
	err := h.Call(t.Context(), func() {
		known, now := h.OnlyClient(), clock.Now()
		id := model.QueueID{Session: known.ID}
		pass := func(d time.Duration) model.Time { now = now.Add(d); return now }
		learnt := func(what string, inRow int8) {
			t.Helper()
			for _, st := range h.EngineOnLoop().Snapshot(now) {
				if st.Queue.ID == id && st.Queue.Feeding.InRow != inRow {
					t.Errorf("%s: %+v, want %d in a row", what, st.Queue.Feeding, inRow)
				}
			}
		}
		request := func(sees bool) {
			c.Page.SetBusy(0, true, pass(ms))
			if sees {
				h.ScanAt(now, known)
			}
			c.Page.SetFed(0, pass(3*ms))
			c.Page.SetBusy(0, false, pass(ms/10))
		}
		// Quiet: its work was seen late, so that it looks like a short one.
		c.Page.SetBusy(0, true, pass(ms))
		pass(17 * ms)
		h.SampleAt(now)
		c.Page.SetFed(0, pass(2*ms))
		c.Page.SetBusy(0, false, pass(ms/10))
		other := model.QueueID{Session: 99}
		h.EngineOnLoop().AddQueue(now, model.Queue{ID: other, PID: 99, Device: sessiontest.GPU})
		h.EndQuietAt(now)
		if known.QueueQuiet(0) {
			t.Error("quiet beside another one")
		}
		learnt("seen late", 0)
		request(false)
		h.ScanAt(now, known)
		learnt("not seen", 0)
		request(true)
		h.ScanAt(now, known)
		learnt("one", 1)
		request(true)
		request(false)
		h.ScanAt(now, known)
		learnt("two seen as one", 1)
		request(true)
		h.ScanAt(now, known)
		learnt("another", 2)
		c.Page.SetBusy(0, true, pass(ms))
		pass(4 * ms)
		h.ScanAt(now, known)
		c.Page.SetFed(0, pass(3*ms))
		c.Page.SetBusy(0, false, pass(ms/10))
		h.ScanAt(now, known)
		learnt("its beginning was seen late", 2)
		c.Page.SetBusy(0, true, pass(ms))
		h.ScanAt(now, known)
		c.Page.SetFed(0, pass(3*ms))
		c.Page.SetBusy(0, false, pass(ms/10))
		pass(4 * ms)
		h.ScanAt(now, known)
		learnt("its end was seen late", 2)
		h.EngineOnLoop().RemoveQueue(now, other)
	})
	if err != nil {
		t.Fatal(err)
	}
}
