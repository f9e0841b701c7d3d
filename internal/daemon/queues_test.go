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

// goroutinesIn counts the goroutines that are in a function.
func goroutinesIn(function string) int {
	b := make([]byte, 8<<20)
	b = b[:runtime.Stack(b, true)]
	return strings.Count(string(b), function+"(")
}

// Questions to a device that does not answer wait for one answer, however many ask and go: they
// pile up neither here nor in front of the next stop of the same program.
func TestQuestionsToAHungDeviceAreOne(t *testing.T) {
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
		t.Fatal("nobody traces it")
	}
	_ = unix.Kill(tracer, unix.SIGSTOP) // it is ended for that after a second, and replaced
	most := 0
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
		short, cancel := context.WithTimeout(ctx, 2*time.Millisecond)
		_, err := w.ctl.Queues(short, p.PID)
		cancel()
		if err == nil {
			t.Fatal("a device that hangs has answered")
		}
		most = max(most, goroutinesIn("Daemon).hardwareQueues"))
	}
	if most != 1 {
		t.Errorf("%d questions were under way at once, want 1", most)
	}
	// Whoever asks later gets an answer, as soon as there is one.
	await(t, "an answer", func() bool { q, err := w.ctl.Queues(ctx, p.PID); return err == nil && len(q.Queues) > 0 })
}
