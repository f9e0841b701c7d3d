// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/loop"
	"xsched/internal/session"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// mostOfOneUser is the memory, in MB, that one user can make the daemon use, without the objects that
// drivers remember (TestObjectsOfOneUser). docs/operations.md states the sum: 300 MB.
const mostOfOneUser = 265

// TestLongMemoryOfOneUser: one user has everything that it may have: all sessions, a page full of queues in
// each, on two GPUs and on as many invented devices as a program may have. Another user's program runs.
func TestLongMemoryOfOneUser(t *testing.T) {
	raiseFiles(t)
	uids := []int{1001}
	for range session.MaxSessionsPerUID {
		uids = append(uids, 1000)
	}
	h := sessiontest.Start(t, func(c *sessiontest.Config) {
		sessiontest.Users(c, uids...)
		invent(c, driver.ClaimUnlisted)
	})
	other := h.Client(t, 0, wire.LevelBlock)
	other.Queue(0)
	before := inUse()
	for range session.MaxSessionsPerUID {
		c := h.Client(t, 0, wire.LevelBlock)
		for slot := range wire.MaxQueues {
			gpu := uint32(1 + slot%2)
			if slot >= wire.MaxQueues-loop.MaxGPUs+2 {
				gpu = uint32(slot)
			}
			c.Page.CreateQueue(slot, 0, gpu<<8)
		}
		c.Ring()
	}
	const all = session.MaxSessionsPerUID * wire.MaxQueues
	var s loop.Stats
	sessiontest.Await(t, "all queues have a place, or none", func() bool {
		s = h.Loop.Stats()
		return s.Queues+s.Merged+s.RefusedQueues == 1+all
	})
	if _, err := h.Clients(t.Context()); err != nil { // a reader's copy
		t.Fatal(err)
	}
	const mb = 1 << 20
	heap, pages := (inUse()-before)/mb, session.MaxSessionsPerUID*wire.PageBytes/mb
	t.Logf("%d queues, %d merged, %d refused: %d MB, and %d MB of shared pages", s.Queues, s.Merged, s.RefusedQueues, heap, pages)
	if heap+pages > mostOfOneUser {
		t.Errorf("one user costs %d MB, at most %d are stated", heap+pages, mostOfOneUser)
	}
}

// inUse returns the memory of objects and stacks, without garbage.
func inUse() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapInuse + m.StackInuse)
}

// raiseFiles allows as many open files as a thousand clients need.
func raiseFiles(t *testing.T) {
	t.Helper()
	const needed = 16 * session.MaxSessionsPerUID
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	if lim.Max < needed {
		t.Skipf("needs %d open files, and %d are allowed", needed, lim.Max)
	}
	was := lim
	lim.Cur = needed
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &was) })
}
