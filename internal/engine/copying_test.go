// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"xsched/internal/model"
)

// copier is an engine with a high queue, low ones of processes of their own, and what they were told last.
type copier struct {
	*Engine
	t    *testing.T
	now  model.Time
	want map[model.QueueID]model.Desired
}

func newCopier(t *testing.T, policy string, priorities ...int) *copier {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Policy = policy
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c := &copier{Engine: e, t: t, want: map[model.QueueID]model.Desired{}}
	for i, p := range priorities {
		e.AddQueue(0, model.Queue{
			ID: copierID(i), PID: 100 + i, Device: 1, Level: model.LevelInterrupt, Slices: true,
			Hint: model.Hint{Priority: model.Priority(p)},
		})
	}
	c.step()
	return c
}

func copierID(i int) model.QueueID { return model.QueueID{Session: model.SessionID(1 + i)} }

// step decides and returns the number of changes.
func (c *copier) step() int {
	c.now = c.now.Add(time.Millisecond)
	changes, _ := c.Decide(c.now)
	for _, d := range changes {
		c.want[d.Queue] = d
	}
	return len(changes)
}

func (c *copier) busy(i int, busy bool) int {
	c.SetBusy(c.now, copierID(i), busy)
	return c.step()
}

func (c *copier) copying(i int, copying bool) {
	c.SetCopying(c.now, copierID(i), copying)
	c.step()
}

// TestCopyingIsLeftAlone: whatever the policy, a low that only copies runs with the driver's slice, and nothing
// changes for anybody when it or the high gets work. Its first kernel makes it an ordinary low.
func TestCopyingIsLeftAlone(t *testing.T) {
	for _, policy := range []string{"HPF", "HHPF", "RR", "CFS", "FIFO", "SLO", "MLFQ"} {
		c := newCopier(t, policy, 10, 0)
		c.busy(1, true)
		c.copying(1, true)
		changes := 0
		for i := range 20 {
			changes += c.busy(0, i%2 == 0) + c.busy(1, i%3 == 0)
		}
		if low, high := c.want[copierID(1)], c.want[copierID(0)]; changes != 0 || low.Suspend != 0 || low.Slice != 0 || policy == "HPF" && high.Slice != 0 || !c.Copying(copierID(1)) {
			t.Errorf("%s: %d changes; low %+v, high %+v", policy, changes, low, high)
		}
		if s := c.Stats(); s.Preemptions[model.LevelInterrupt] > 1 { // before it was known
			t.Errorf("%s: %+v", policy, s)
		}
		if policy != "HPF" {
			continue
		}
		c.busy(0, true)
		c.busy(1, true)
		c.copying(1, false)
		if low, high := c.want[copierID(1)], c.want[copierID(0)]; low.Slice != DefaultConfig().LowSlice || high.Slice != DefaultConfig().HighSlice {
			t.Errorf("after its first kernel: low %+v, high %+v", low, high)
		}
		for _, q := range c.Snapshot(c.now) {
			if q.Queue.ID == copierID(1) && (!q.Waiting || q.Queue.WaitSince < c.now.Add(-time.Millisecond)) {
				t.Errorf("its wait began before its first kernel: %+v", q.Queue)
			}
		}
	}
}

// TestCopyingLimits: what takes part in decisions although it only copies.
func TestCopyingLimits(t *testing.T) {
	c := newCopier(t, "HPF", 10, 0)
	c.busy(1, true)
	c.busy(0, true)
	c.copying(0, true)
	if c.Copying(copierID(0)) || c.want[copierID(1)].Slice != DefaultConfig().LowSlice {
		t.Error("the highest queue is left alone: its next kernel would wait")
	}

	c = newCopier(t, "HPF", 10, 0)
	c.AddQueue(c.now, model.Queue{ID: copierID(5), PID: 101, Device: 1, Level: model.LevelInterrupt, Slices: true})
	c.busy(1, true)
	c.copying(1, true)
	c.SetBusy(c.now, copierID(5), true)
	c.step()
	if c.Copying(copierID(1)) {
		t.Error("a queue is left alone although its process has kernels")
	}
	c.SetBusy(c.now, copierID(5), false)
	c.step()
	if !c.Copying(copierID(1)) {
		t.Error("a queue is not left alone although its process only copies")
	}
	c.SetHeld(c.now, 101, true)
	c.step()
	if c.want[copierID(1)].Suspend == 0 {
		t.Error("a process that only copies can't be suspended by hand")
	}
	c.RemoveQueue(c.now, copierID(1))
	c.step()
	if c.device(1).copying != 0 {
		t.Error("a queue that left still counts")
	}
}

// TestCopyingBesideALow: a low with a tiny slice progresses beside one that only copies.
func TestCopyingBesideALow(t *testing.T) {
	c := newCopier(t, "HPF", 10, 0, 0)
	c.busy(2, true)
	c.copying(2, true)
	c.busy(1, true)
	for _, q := range c.Snapshot(c.now) {
		if q.Waiting || q.Queue.ID == copierID(1) && q.Desired.Slice != DefaultConfig().LowSlice || q.Desired.Suspend != 0 {
			t.Errorf("%+v", q)
		}
	}
}
