// SPDX-License-Identifier: Apache-2.0

package pair

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"xsched/internal/api"
	"xsched/internal/bench"
	"xsched/internal/control"
	"xsched/internal/control/client"
)

// suspending is a daemon that has a program suspended for so many answers.
type suspending struct {
	control.Control
	left atomic.Int64
}

func (s *suspending) Stats(context.Context, control.Caller) (control.Stats, error) {
	return control.Stats{Suspends: 2, Resumes: 1, Targets: []control.TargetStats{{PID: 1}, {PID: 2, Suspended: s.left.Add(-1) >= 0}}}, nil
}

// TestResumed checks that a program counts as lost if it stays suspended, and not by counts.
func TestResumed(t *testing.T) {
	t.Parallel()
	for answers, want := range map[int64]bool{0: true, 3: true, 1 << 40: false} {
		socket := filepath.Join(t.TempDir(), "control")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		daemon := &suspending{}
		daemon.left.Store(answers)
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- api.Serve(ctx, l, daemon, api.Options{Log: slog.New(slog.DiscardHandler)}) }()
		limit := time.Minute
		if !want {
			limit = 50 * time.Millisecond
		}
		c := colocation{rig: &bench.Rig{Daemon: client.New(socket)}}
		if got := c.resumed(t.Context(), limit); got != want {
			t.Errorf("suspended for %d answers: resumed %v", answers, got)
		}
		cancel()
		<-served
	}
}
