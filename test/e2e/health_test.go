// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// deadWithin is when a dead engine looks dead to a probe: its limit of one second, and the probe.
const deadWithin = 2 * time.Second

// TestWedgedEngineLooksDead: while the engine's loop hangs, health and status name it, and the exit
// code of health is that of a failed probe. Afterwards all is well again.
func TestWedgedEngineLooksDead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if out := w.must("health"); out != "ok\n" {
		t.Errorf("health of a new daemon: %q", out)
	}
	const wedged = 4 * time.Second
	from := time.Now()
	if _, err := w.client.Wedge(t.Context(), wedged); err != nil {
		t.Fatal(err)
	}
	var out string
	var err error
	for err == nil && time.Since(from) < wedged {
		out, err = w.xsched("health")
	}
	if took := time.Since(from); err == nil || !strings.Contains(out, "engine loop") || took > deadWithin {
		t.Errorf("a wedged engine looks dead after %v: %q, %v", took, out, err)
	}
	if out, err := w.xsched("status"); err == nil || !strings.Contains(out, "engine loop") {
		t.Errorf("status of a wedged engine: %q, %v", out, err)
	}
	eventually(t, soon, "the engine works again", func() bool { _, err := w.xsched("health"); return err == nil })
}

// TestLongFrozenDaemonLooksDead: a probe of a stopped daemon fails within its limit.
func TestLongFrozenDaemonLooksDead(t *testing.T) {
	w := newWorld(t)
	if err := w.serve.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	from := time.Now()
	out, err := w.xsched("health")
	if took := time.Since(from); err == nil || took > 5*time.Second {
		t.Errorf("the probe of a stopped daemon ends after %v: %q, %v", took, out, err)
	}
	if err := w.serve.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, "the daemon answers again", func() bool { _, err := w.xsched("health"); return err == nil })
}
