// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"testing"
	"time"

	"xsched/internal/control"
)

// node is a GPU with a rank and a program of higher priority, sampled four times a second.
type node struct {
	Ranks
	rank, other control.Process
	now         int64
}

func newNode() *node {
	queue := func() []control.Queue { return []control.Queue{{Device: "gpu", Busy: true, State: "running"}} }
	return &node{
		Ranks: Ranks{Threshold: 250 * time.Millisecond},
		rank:  control.Process{Session: 1, Namespace: "ml", Group: "job", Priority: -10, GroupPriority: -10, Queues: queue()},
		other: control.Process{Session: 2, Priority: 10, Queues: queue()},
	}
}

// after lets the other program use a part of the GPU until the next sample.
func (n *node) after(part float64, state string) Rank {
	n.now += 250 * ms
	n.other.Queues[0].RanNS += int64(part * float64(250*ms))
	n.rank.Queues[0].State, n.rank.GroupHeld = state, state == "held"
	return n.See(n.now, []control.Process{n.rank, n.other})[Key{"ml", "job"}]
}

func TestRanks(t *testing.T) {
	n := newNode()
	if got := n.after(1, "suspended"); got.Need {
		t.Error("the first sample tells nothing")
	}
	for i, step := range []struct {
		part  float64
		state string
		need  bool
	}{
		{0.02, "suspended", false}, // a sample in the middle of one of many short requests
		{0.02, "yielding", false},
		{0.8, "suspended", false},
		{1, "running", false},
		{0.97, "yielding", true},
		{1, "held", true},
		{0.6, "held", true},
		{0.3, "held", false},
		{0.6, "held", false}, // not enough to ask again
		{0.95, "held", true}, // held for another node, and this one needs it too
		{0.95, "running", false},
		{1, "suspended", true},
		{0, "running", false},
	} {
		got := n.after(step.part, step.state)
		if got.Need != step.need || got.Need && got.Priority != -10 {
			t.Errorf("step %d, %+v: %+v", i, step, got)
		}
	}
	// A program of lower or equal priority is no reason, and neither is a rank without work.
	n.other.Priority = -10
	if got := n.after(1, "suspended"); got.Need {
		t.Errorf("equal priority: %+v", got)
	}
	n.other.Priority, n.rank.Queues[0].Busy = 10, false
	if got := n.after(1, "suspended"); got.Need {
		t.Errorf("without work: %+v", got)
	}
	n.rank.Queues[0].Busy = true
	n.Threshold = time.Second
	for i := range 4 {
		if got := n.after(1, "suspended"); got.Need != (i == 3) {
			t.Errorf("sample %d of a longer threshold: %+v", i, got)
		}
	}
	n.rank.Group = ""
	if all := n.See(n.now+250*ms, []control.Process{n.rank, n.other}); len(all) != 0 {
		t.Errorf("without a group: %+v", all)
	}
}

// TestRanksOfOneGroup checks a group with a service beside the rank that it keeps from running: only the
// rank asks, in whatever order the daemon lists them.
func TestRanksOfOneGroup(t *testing.T) {
	for _, serviceFirst := range []bool{false, true} {
		n := newNode()
		n.other.Namespace, n.other.Group = n.rank.Namespace, n.rank.Group
		see := func(state string) Rank {
			n.now += 250 * ms
			n.other.Queues[0].RanNS += 250 * ms
			n.rank.Queues[0].State, n.rank.GroupHeld = state, state == "held"
			all := []control.Process{n.rank, n.other}
			if serviceFirst {
				all[0], all[1] = all[1], all[0]
			}
			return n.See(n.now, all)[Key{"ml", "job"}]
		}
		see("running")
		for _, state := range []string{"suspended", "held", "held"} {
			if got := see(state); got != (Rank{Need: true, Priority: -10}) {
				t.Errorf("service first %v, rank %s: %+v", serviceFirst, state, got)
			}
		}
	}
}

// TestRankBelowItsGrant checks that a rank which has lowered itself asks with the granted priority: the
// daemons compare holds with that.
func TestRankBelowItsGrant(t *testing.T) {
	n := newNode()
	n.rank.Priority = -50
	n.after(1, "suspended")
	if got := n.after(1, "suspended"); got != (Rank{Need: true, Priority: -10}) {
		t.Errorf("%+v", got)
	}
}
