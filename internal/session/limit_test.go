// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

func TestLimits(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { c.Session.MaxSessionsPerUID = 2; c.Loop.UID = 0 })
	_, b := h.Client(t, 0, 0), h.Client(t, 0, 0)
	if _, err := sessiontest.Dial(h.Path, wire.Hello{}); err == nil || !strings.Contains(err.Error(), "limit of uid") {
		t.Errorf("third client: %v", err)
	}
	_ = b.Conn.Close()
	sessiontest.Await(t, "place is free", func() bool { return h.Server.Stats().Sessions == 1 })
	sessiontest.Await(t, "third joins", func() bool {
		c, err := sessiontest.Dial(h.Path, wire.Hello{})
		if err == nil {
			t.Cleanup(c.Close)
		}
		return err == nil
	})
	if h.MayHave(1000, 5) == "" || h.MayHave(0, 5) != "" || h.MayHave(1000, 0) != "" {
		t.Error("priority rule")
	}
}

// Another user of a root daemon may not raise its priority.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to be two users")
	}
	h := sessiontest.Start(t, nil)
	_ = os.Chmod(filepath.Dir(h.Path), 0o755)
	_ = os.Chmod(h.Path, 0o666)
	type result struct {
		c   *sessiontest.Client
		err error
	}
	done := make(chan result)
	go func() {
		// Only this thread becomes the other user; it is not unlocked and so ends with the goroutine.
		runtime.LockOSThread()
		const nobody = 65534
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); e != 0 {
			done <- result{err: e}
			return
		}
		c, err := sessiontest.Dial(h.Path, wire.Hello{Hint: wire.Hint{Said: wire.HintPriority, Priority: 9}})
		done <- result{c, err}
	}()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	defer r.c.Close()
	v, err := h.Clients(context.Background())
	if err != nil || len(v) != 1 || v[0].UID != 65534 || v[0].Hint.Priority != 0 || v[0].PriorityNote == "" {
		t.Errorf("%+v %v", v, err)
	}
}
