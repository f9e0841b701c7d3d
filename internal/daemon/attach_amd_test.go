// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"testing"
	"time"

	vamd "xsched/internal/virtual/amd"
	"xsched/internal/virtual/amd/kfdtest"
)

// An AMD process without the shim is suspended, resumed and released manually.
func TestAttachAMD(t *testing.T) {
	w := newWorld(t)
	w.serve(t, onAMD)
	d := kfdtest.ServeIn(t, vamd.DefaultConfig(), w.dir)
	p := d.Target(t)
	reply, err := w.ctl.Suspend(ctx, p.PID)
	if err != nil || !reply.Attached || reply.Level != 3 {
		t.Fatalf("%+v %v", reply, err)
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
	list, err := w.ctl.List(ctx)
	if err != nil || len(list.Processes) != 1 || len(list.Processes[0].Queues) != 1 || list.Processes[0].Queues[0].Device != "0000:01:00.0" {
		t.Errorf("%+v %v", list, err)
	}
	if _, err := w.ctl.Resume(ctx, p.PID); err != nil {
		t.Fatal(err)
	}
	p.Ask("f")
	if _, err := w.ctl.Detach(ctx, p.PID); err != nil {
		t.Fatal(err)
	}
	p.Ask("w")
	p.Ask("f")
	await(t, "gone from the list", func() bool {
		list, err := w.ctl.List(ctx)
		return err == nil && len(list.Processes) == 0
	})
	// A second attach ends with the process.
	if _, err := w.ctl.Attach(ctx, p.PID); err != nil {
		t.Fatal(err)
	}
	p.Send("q")
	await(t, "gone with its end", func() bool {
		list, err := w.ctl.List(ctx)
		return err == nil && len(list.Processes) == 0
	})
}
