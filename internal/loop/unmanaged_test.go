// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"sync/atomic"
	"testing"
	"time"

	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// A GPU counts as shared until a scan has shown the opposite. The first queue requests the scan.
func TestSharedUntilScanned(t *testing.T) {
	var scans atomic.Int64
	h := sessiontest.Start(t, func(c *sessiontest.Config) {
		sessiontest.Separate(c)
		c.Loop.Scan = func() { scans.Add(1) }
	})
	shared := func() (out bool) {
		_ = h.Call(t.Context(), func() { out = h.SharedWithUnmanaged(sessiontest.GPU) })
		return out
	}
	first := h.Client(t, 0, wire.LevelAuto)
	first.Queue(0)
	sessiontest.Await(t, "a scan is requested", func() bool { return scans.Load() == 1 })
	if !shared() {
		t.Error("the GPU does not count as shared before the scan")
	}
	if err := h.SetUnmanaged(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	first.Queue(1)
	h.Client(t, 0, wire.LevelAuto).Queue(0)
	time.Sleep(20 * time.Millisecond)
	if n := scans.Load(); n != 1 || shared() {
		t.Errorf("after the scan: %d scans, shared %v", n, shared())
	}
}
