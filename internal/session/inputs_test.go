// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/engine"
	"xsched/internal/identity"
	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
)

// The engine knows the nice value of a program from its start and follows changes: CHPF ranks by it.
func TestNiceIsFollowed(t *testing.T) {
	program := exec.Command("sleep", "60")
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = program.Process.Kill()
		_ = program.Wait()
	}()
	pid := program.Process.Pid
	if err := unix.Setpriority(unix.PRIO_PROCESS, pid, 3); err != nil {
		t.Fatal(err)
	}
	h := sessiontest.Start(t, func(c *sessiontest.Config) {
		c.Engine.Policy = "CHPF"
		c.Session.Peer = func(*net.UnixConn) (identity.Peer, error) {
			fd, err := unix.PidfdOpen(pid, 0)
			return identity.Peer{PID: pid, User: identity.OnHost(os.Getuid()), PIDFD: fd}, err
		}
	})
	c := h.Client(t, 0, 0)
	c.Queue(0)
	sessiontest.Await(t, "the engine knows its first value", func() bool { return h.Known(t).Hint.Nice == 3 })
	if rank := h.Known(t).Rank; rank != -3 {
		t.Errorf("rank %d under CHPF", rank)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, pid, 11); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "renice is followed", func() bool { q := h.Known(t); return q.Hint.Nice == 11 && q.Rank == -11 })
}

// extremes reports whether a queue at priority 0 has a tiny slice, and one above it a second.
func extremes(h *sessiontest.Fixture) (low, high bool) {
	_ = h.Engine(context.Background(), func(e *engine.Engine) {
		for _, q := range e.Snapshot(0) {
			if q.Queue.Hint.Priority == 0 {
				low = low || q.Desired.Slice != 0 && q.Desired.Slice.Microseconds() < 100
			} else {
				high = q.Desired.Slice.Seconds() >= 1
			}
		}
	})
	return low, high
}

// Beside an unmanaged program the low queue is suspended, because a tiny timeslice makes no progress.
func TestUnmanagedReachesTheEngine(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Separate(c) })
	high, low := h.Client(t, 5, 0), h.Client(t, 0, 0)
	for _, c := range []*sessiontest.Client{high, low} {
		c.HandOver(t)
		c.Queue(0)
	}
	slice := func() (low, high bool) { return extremes(h) }
	low.Busy(0, true)
	high.Busy(0, true)
	sessiontest.Await(t, "slices protect the high", func() bool { low, high := slice(); return low && high })
	if err := h.AddUnmanaged(context.Background(), []model.DeviceID{sessiontest.GPU}); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "no tiny slice beside a stranger", func() bool { low, high := slice(); return !low && !high })
	if err := h.SetUnmanaged(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "slices again", func() bool { low, high := slice(); return low && high })
}

// A client that the device does not let the daemon control may run with any timeslice. Beside it a
// tiny one makes no progress.
func TestNoTinySliceBesideLooseClient(t *testing.T) {
	for name, end := range map[string]func(*sessiontest.Hardware, *sessiontest.Client){
		"the device obeys again": func(hw *sessiontest.Hardware, _ *sessiontest.Client) { hw.Refuse.Store(false) },
		"the client leaves":      func(_ *sessiontest.Hardware, c *sessiontest.Client) { c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Separate(c) })
			high, low, loose := h.Client(t, 5, 0), h.Client(t, 0, 0), h.Client(t, 0, 0)
			for _, c := range []*sessiontest.Client{high, low, loose} {
				c.HandOver(t)
				c.Queue(0)
				c.Busy(0, true)
			}
			sliced := func() bool { low, high := extremes(h); return low && high }
			sessiontest.Await(t, "slices protect the high", sliced)
			hw := h.Hardware(2)
			sessiontest.Await(t, "a slice for every low", func() bool { return hw.Now().Slice != 0 })
			hw.Refuse.Store(true)
			loose.Busy(0, false) // it gets its own slice again
			var since time.Time  // a starvation grant is shorter
			sessiontest.Await(t, "no tiny slice for a while", func() bool {
				if low, high := extremes(h); low || high || since.IsZero() {
					since = time.Now()
				}
				return time.Since(since) > 300*time.Millisecond
			})
			end(hw, loose)
			sessiontest.Await(t, "slices again", sliced)
		})
	}
}

// Every hint of a process or a queue reaches the engine.
func TestEveryHintReachesTheEngine(t *testing.T) {
	for _, whose := range []string{"process", "queue"} {
		h := sessiontest.Start(t, nil)
		c := h.Client(t, 0, 0)
		c.Queue(0)
		sessiontest.Await(t, "the queue is known", func() bool { return h.Known(t).PID != 0 })
		for _, f := range model.HintFields() {
			if whose == "queue" && (f.Name == "level" || f.Name == "per_queue") {
				continue // the process's
			}
			value := model.HintValue{Number: f.Max}
			if f.Kind == model.HintName {
				value = model.HintValue{Text: "ranks"}
			}
			var change model.HintChange
			change.Set(f.Name, value)
			var err error
			if whose == "process" {
				_, err = h.SetHint(context.Background(), os.Getpid(), true, change, nil)
			} else {
				_, err = h.SetQueueHint(context.Background(), os.Getpid(), 0, true, change, func(*model.Hint) error { return nil })
			}
			if err != nil {
				t.Fatal(err)
			}
			hint := h.Known(t).Hint
			got := f.Value(&hint)
			got.Text = strings.TrimPrefix(got.Text, strconv.Itoa(os.Getuid())+"/") // a gang is its user's
			if got != value {
				t.Errorf("%s of a %s: the engine has %v, not %v", f.Name, whose, got, value)
			}
		}
		h.Close()
	}
}
