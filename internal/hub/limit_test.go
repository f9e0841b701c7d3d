// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"xsched/internal/engine"
	"xsched/internal/wire"
)

func TestLimits(t *testing.T) {
	h := startHub(t, func(c *Config, _ *engine.Config) { c.MaxSessionsPerUID = 2; c.UID = 0 })
	_, b := h.join(t, 0, 0), h.join(t, 0, 0)
	if _, err := dial(h.path, wire.Hello{}); err == nil || !strings.Contains(err.Error(), "limit of uid") {
		t.Errorf("third client: %v", err)
	}
	_ = b.conn.Close()
	await(t, "place is free", func() bool { return h.count() == 1 })
	await(t, "third joins", func() bool {
		c, err := dial(h.path, wire.Hello{})
		if err == nil {
			t.Cleanup(c.close)
		}
		return err == nil
	})
	if h.mayHave(1000, 5) == "" || h.mayHave(0, 5) != "" || h.mayHave(1000, 0) != "" {
		t.Error("priority rule")
	}
}

// Two users on root's daemon: the other one may not raise itself.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to be two users")
	}
	h := startHub(t, nil)
	_ = os.Chmod(filepath.Dir(h.path), 0o755)
	_ = os.Chmod(h.path, 0o666)
	type result struct {
		c   *client
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
		c, err := dial(h.path, wire.Hello{Hint: wire.Hint{Said: wire.HintPriority, Priority: 9}})
		done <- result{c, err}
	}()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	defer r.c.close()
	v, err := h.Sessions(context.Background())
	if err != nil || len(v) != 1 || v[0].UID != 65534 || v[0].Hint.Priority != 0 || v[0].PriorityNote == "" {
		t.Errorf("%+v %v", v, err)
	}
}
