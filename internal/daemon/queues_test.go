// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	vamd "xsched/internal/virtual/amd"
	"xsched/internal/virtual/amd/kfdtest"
)

// goroutinesIn counts the goroutines in a function.
func goroutinesIn(function string) int {
	b := make([]byte, 8<<20)
	b = b[:runtime.Stack(b, true)]
	return strings.Count(string(b), function+"(")
}

// Queries of a hung device share one request. They pile up neither in the daemon nor ahead of the
// program's next suspension.
func TestHungDeviceHasOneQuery(t *testing.T) {
	w := newWorld(t)
	d := kfdtest.ServeIn(t, vamd.DefaultConfig(), w.dir)
	p := d.Target(t)
	w.serve(t, onAMD)
	if _, err := w.ctl.Attach(ctx, p.PID); err != nil {
		t.Fatal(err)
	}
	if q, err := w.ctl.Queues(ctx, p.PID); err != nil || len(q.Queues) == 0 {
		t.Fatalf("%+v %v", q, err)
	}
	tracer := tracerOf(p.PID)
	if tracer == 0 {
		t.Fatal("the process has no tracer")
	}
	_ = unix.Kill(tracer, unix.SIGSTOP) // the daemon ends and replaces it after a second
	most := 0
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
		short, cancel := context.WithTimeout(ctx, 2*time.Millisecond)
		_, err := w.ctl.Queues(short, p.PID)
		cancel()
		if err == nil {
			t.Fatal("a hung device answered")
		}
		most = max(most, goroutinesIn("queries).hardwareQueues"))
	}
	if most != 1 {
		t.Errorf("%d concurrent queries, want 1", most)
	}
	// Later callers get an answer as soon as the device responds.
	await(t, "an answer", func() bool { q, err := w.ctl.Queues(ctx, p.PID); return err == nil && len(q.Queues) > 0 })
}
