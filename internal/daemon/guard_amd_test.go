// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"testing"
	"time"

	vamd "xsched/internal/virtual/amd"
	"xsched/internal/virtual/amd/kfdtest"
)

// A hung engine leaves no process suspended, a debugged one included. After recovery the suspension
// is applied again.
func TestLongAttachAMDEngineWedged(t *testing.T) {
	w := newWorld(t)
	w.serve(t, onAMD)
	d := kfdtest.ServeIn(t, vamd.DefaultConfig(), w.dir)
	p := d.Target(t)
	if _, err := w.ctl.Suspend(ctx, p.PID); err != nil {
		t.Fatal(err)
	}
	await(t, "suspended", func() bool {
		stats, err := w.ctl.Stats(ctx)
		return err == nil && stats.Suspends == 1
	})
	p.Ask("w")
	time.Sleep(30 * time.Millisecond)
	if got := p.Ask("r"); got != "R 0" {
		t.Errorf("a suspended process has %s", got)
	}
	if _, err := w.ctl.Wedge(ctx, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	p.Ask("f")
	if took := time.Since(start); took > 4*time.Second {
		t.Errorf("the process ran only after %v, when the engine was back", took)
	}
	await(t, "suspended again", func() bool {
		before := p.Ask("r")
		p.Ask("w")
		time.Sleep(10 * time.Millisecond)
		return p.Ask("r") == before
	})
	if _, err := w.ctl.Detach(ctx, p.PID); err != nil {
		t.Fatal(err)
	}
	p.Ask("f")
}
