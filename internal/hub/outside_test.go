// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"xsched/internal/engine"
	"xsched/internal/model"
)

// told is the first queue as the engine knows it.
func (f *fixture) told(t testing.TB) model.Queue {
	t.Helper()
	var q model.Queue
	err := f.Engine(context.Background(), func(e *engine.Engine) {
		if all := e.Snapshot(0); len(all) > 0 {
			q = all[0].Queue
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// A program's nice value is known from the start, and followed while it runs: CHPF ranks by it.
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
	h := startHub(t, func(c *Config, e *engine.Config) {
		e.Policy = "CHPF"
		c.peer = func(*net.UnixConn) (credentials, error) {
			fd, err := unix.PidfdOpen(pid, 0)
			return credentials{pid: pid, uid: os.Getuid(), pidfd: fd}, err
		}
	})
	c := h.join(t, 0, 0)
	c.queue(0)
	await(t, "the engine knows its first value", func() bool { return h.told(t).Hint.Nice == 3 })
	if rank := h.told(t).Rank; rank != -3 {
		t.Errorf("rank %d under CHPF", rank)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, pid, 11); err != nil {
		t.Fatal(err)
	}
	await(t, "renice is followed", func() bool { q := h.told(t); return q.Hint.Nice == 11 && q.Rank == -11 })
}

// Beside a program that nobody manages the low is stopped instead of having a slice in which it gets nothing done.
func TestUnmanagedReachesTheEngine(t *testing.T) {
	h := startHub(t, func(c *Config, _ *engine.Config) { strangers(c) })
	high, low := h.join(t, 5, 0), h.join(t, 0, 0)
	for _, c := range []*client{high, low} {
		c.handOver(t)
		c.queue(0)
	}
	slice := func() (low, high bool) {
		_ = h.Engine(context.Background(), func(e *engine.Engine) {
			for _, q := range e.Snapshot(0) {
				tiny := q.Desired.Slice != 0 && q.Desired.Slice.Microseconds() < 100
				if q.Queue.Hint.Priority == 0 {
					low = tiny
				} else {
					high = q.Desired.Slice.Seconds() >= 1
				}
			}
		})
		return low, high
	}
	low.busy(0, true)
	high.busy(0, true)
	await(t, "slices protect the high", func() bool { low, high := slice(); return low && high })
	if err := h.SetUnmanaged(context.Background(), testGPU, true); err != nil {
		t.Fatal(err)
	}
	await(t, "no tiny slice beside a stranger", func() bool { low, high := slice(); return !low && !high })
	if err := h.SetUnmanaged(context.Background(), testGPU, false); err != nil {
		t.Fatal(err)
	}
	await(t, "slices again", func() bool { low, high := slice(); return low && high })
}

// Every hint that is set, for a process or for a queue, is what the engine decides with.
func TestEveryHintReachesTheEngine(t *testing.T) {
	for _, whose := range []string{"process", "queue"} {
		h := startHub(t, nil)
		c := h.join(t, 0, 0)
		c.queue(0)
		await(t, "the queue is known", func() bool { return h.told(t).PID != 0 })
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
				_, err = h.SetHint(context.Background(), os.Getpid(), true, func(_ SessionView, hint *model.Hint) error {
					change.Apply(hint)
					return nil
				})
			} else {
				_, err = h.SetQueueHint(context.Background(), os.Getpid(), 0, true, change, func(*model.Hint) error { return nil })
			}
			if err != nil {
				t.Fatal(err)
			}
			hint := h.told(t).Hint
			got := f.Value(&hint)
			got.Text = strings.TrimPrefix(got.Text, strconv.Itoa(os.Getuid())+"/") // a gang is its user's
			if got != value {
				t.Errorf("%s of a %s: the engine has %v, not %v", f.Name, whose, got, value)
			}
		}
		h.Close()
	}
}
