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

// TestLongFrozenGuardianLooksDead: a guardian service that is stopped looks dead although no program is
// attached. Its own probe fails, and status and health of the daemon name it with a remedy.
func TestLongFrozenGuardianLooksDead(t *testing.T) {
	w := newWorld(t)
	service := w.startService()
	if out := w.must("health", "--guardian"); out != "ok\n" {
		t.Errorf("health of a new guardian: %q", out)
	}
	if err := service.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if out, err := w.xsched("health", "--guardian"); err == nil {
		t.Errorf("a stopped guardian answers a probe: %q", out)
	}
	eventually(t, 30*time.Second, "health names the guardian", func() bool {
		out, err := w.xsched("health") // a restart of the daemon does not help, so the probe succeeds
		return err == nil && strings.HasPrefix(out, "ok\nguardian process: the last sign of life was")
	})
	if out, err := w.xsched("status"); err == nil || !strings.Contains(out, "guardian process") || !strings.Contains(out, "systemctl restart xsched-guardian") {
		t.Errorf("status next to a stopped guardian: %q, %v", out, err)
	}
	if err := service.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, "the guardian answers again", func() bool { return w.must("health") == "ok\n" })
}
