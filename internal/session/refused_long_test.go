// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// resident returns the memory of this process in KiB, with the server and without its garbage.
func resident(t *testing.T) int {
	t.Helper()
	runtime.GC()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(text), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(line)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib
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
	before, files := resident(t), openFiles(t)
	refuse(50000)
	after := resident(t)
	if after > before+before/10+4096 {
		t.Errorf("%d KiB after 100,000 refused sessions, %d KiB before", after, before)
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
