// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"os"
	"runtime"
	"testing"

	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// heapKiB returns what the program's objects take. The detector of data races has memory of its own.
func heapKiB() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc >> 10)
}

// TestLongRefusedSessionsKeepMemory: 100,000 sessions that are refused cost no memory. Each refusal comes
// after HELLO or before it.
func TestLongRefusedSessionsKeepMemory(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { c.Session.MaxSessions = 1 })
	c, err := sessiontest.Dial(h.Path, wire.Hello{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	refuse := func(n int) {
		for range n {
			if c, err := sessiontest.Dial(h.Path, wire.Hello{}); err == nil {
				c.Close()
				t.Fatal("a session beyond the limit was accepted")
			}
			if c, err := sessiontest.DialVersion(h.Path, wire.Hello{}, 1); err == nil {
				c.Close()
				t.Fatal("a session of version 1 was accepted")
			}
		}
	}
	refuse(5000)
	rounds := 50000
	if raceEnabled {
		rounds = 10000 // the detector makes each eight times as long
	}
	before, files := heapKiB(), openFiles(t)
	refuse(rounds)
	after := heapKiB()
	if after > before+before/10+4096 {
		t.Errorf("%d KiB after %d refused sessions, %d KiB before", after, 2*rounds, before)
	}
	if now := openFiles(t); now > files+8 {
		t.Errorf("%d open files, %d before", now, files)
	}
	t.Logf("%d KiB before, %d KiB after", before, after)
}

func openFiles(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
