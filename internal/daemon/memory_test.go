// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"xsched/internal/clock"
	"xsched/internal/control"
	"xsched/internal/daemon"
	"xsched/internal/identity"
	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

const gib = model.Bytes(1 << 30)

// memoryDevice has no PCI address, so no driver has to confirm it.
var memoryDevice = model.MakeDeviceID(wire.NoPCIDomain, 0, 0, 0)

// mover is a program of this process with 64 GiB, of which 61 can move. It carries out orders at once, unless
// result says otherwise.
type mover struct {
	*sessiontest.Client
	memory wire.DeviceMemory
	result uint32
	stop   func()
}

func startMover(t *testing.T, w *world, result uint32) *mover {
	t.Helper()
	c, err := sessiontest.Dial(filepath.Join(w.dir, control.ClientSocket), wire.Hello{PID: uint32(os.Getpid())})
	if err != nil {
		t.Fatal(err)
	}
	m := &mover{Client: c, result: result, memory: wire.DeviceMemory{Device: memoryDevice, Used: 64 * gib, Movable: 61 * gib}}
	m.memory.Fixed[wire.FixedPool], m.memory.Fixed[wire.FixedSmall] = 2*gib, gib
	c.Page.CreateQueue(0, wire.NoPCIDomain, 0)
	c.Page.SetMemory(&m.memory)
	c.Ring()
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-quit:
				return
			case <-time.After(time.Millisecond):
				m.obey()
			}
		}
	}()
	m.stop = func() { close(quit); <-ended; c.Close() }
	return m
}

func (m *mover) obey() {
	d := m.Page.MemoryDemand(0)
	if d.Sequence == m.memory.Order {
		return
	}
	e := &m.memory
	e.Order, e.Result, e.MoveBegun = d.Sequence, m.result, clock.Now()
	switch {
	case m.result != wire.MoveDone:
	case d.Want == wire.WantOut:
		e.Away, e.Residency, e.Out, e.MoveBytes, e.Moved, e.Room = e.Away+d.Bytes, wire.Away, e.Out+1, d.Bytes, d.Bytes, e.Room+d.Bytes
		e.BytesOut += d.Bytes
	case d.Want == wire.WantBack:
		e.Away, e.Residency, e.Back, e.Room = 0, wire.Resident, e.Back+1, 0
	}
	e.MoveEnded = e.MoveBegun.Add(time.Second)
	m.Page.SetMemory(e)
	m.Ring()
}

// only is the memory of the only program.
func (w *world) onlyMemory(t *testing.T) control.Memory {
	t.Helper()
	l, err := w.ctl.List(ctx)
	if err != nil || len(l.Processes) != 1 || len(l.Processes[0].Memory) != 1 {
		return control.Memory{}
	}
	return l.Processes[0].Memory[0]
}

// TestEvict: by its user or root only, seen everywhere, recorded, and kept over a restart of the daemon.
func TestEvict(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(w.dir, "state.json")
	serve := func() (stop func() error) {
		return w.serve(t, func(o *daemon.Options) { o.HostMemory, o.KeepFile = 200*gib, file })
	}
	stop := serve()
	m := startMover(t, w, wire.MoveDone)
	pid := os.Getpid()
	await(t, "its memory is known", func() bool { return w.onlyMemory(t).MovableBytes == int64(61*gib) })
	if text := w.onlyMemory(t); text.Text() != "64GiB, movable 61GiB (rest: 2GiB pool, 1GiB small)" {
		t.Error(text.Text())
	}
	other := control.Caller{User: identity.OnHost(4242), PID: 1}
	for name, err := range map[string]error{
		"evict":   errorOf(w.daemon.Control().Evict(ctx, other, control.EvictRequest{PID: pid})),
		"restore": errorOf(w.daemon.Control().Restore(ctx, other, control.ProcessRequest{PID: pid})),
	} {
		if !errors.Is(err, control.ErrNotAllowed) {
			t.Errorf("%s by another user: %v", name, err)
		}
	}
	if _, err := w.ctl.Evict(ctx, control.EvictRequest{PID: pid, Device: "0000:77:00.0"}); !errors.Is(err, control.ErrNotFound) {
		t.Errorf("on another GPU: %v", err)
	}
	if _, err := w.ctl.Evict(ctx, control.EvictRequest{PID: pid, Bytes: int64(40 * gib)}); err != nil {
		t.Fatal(err)
	}
	await(t, "40 GiB are away", func() bool { return w.onlyMemory(t).AwayBytes == int64(40*gib) })
	if e := w.onlyMemory(t); !e.Evicted || e.Residency != control.MemoryAway || !strings.Contains(e.Text(), "40GiB away by hand") {
		t.Errorf("%+v", e)
	}
	l, err := w.ctl.List(ctx)
	if err != nil || l.Processes[0].State != control.StateAway {
		t.Errorf("state %v, %v", l.Processes[0].State, err)
	}
	_ = stop()
	m.stop()
	stop = serve()
	m = startMover(t, w, wire.MoveDone)
	await(t, "out again after a restart", func() bool { return w.onlyMemory(t).AwayBytes == int64(40*gib) })
	if _, err := w.ctl.Restore(ctx, pid); err != nil {
		t.Fatal(err)
	}
	await(t, "back", func() bool { return w.onlyMemory(t).AwayBytes == 0 })
	var moves string
	me := control.Caller{User: identity.OnHost(os.Getuid()), PID: pid}
	await(t, "both moves are in the journal", func() bool {
		moves = texts(t, w.daemon.Control(), me, pid, control.JournalMove)
		return strings.Count(moves, "\n") == 2
	})
	if !strings.Contains(moves, "40GiB of test left ") || !strings.Contains(moves, " by hand\n40GiB of test returned to ") || !strings.Contains(moves, " GB/s)") {
		t.Errorf("%q", moves)
	}
	if changes := texts(t, w.daemon.Control(), me, pid, control.JournalChange); !strings.Contains(changes, "ordered memory of test back") {
		t.Errorf("%q", changes)
	}
	m.stop()
	_ = stop()
	stop = serve()
	m = startMover(t, w, wire.MoveDone)
	await(t, "known", func() bool { return w.onlyMemory(t).MovableBytes > 0 })
	time.Sleep(200 * time.Millisecond)
	if w.onlyMemory(t).AwayBytes != 0 {
		t.Error("it leaves again, although it was restored")
	}
	m.stop()
	_ = stop()
}

// TestEvictFails: each result of the library is one line with cause and remedy.
func TestEvictFails(t *testing.T) {
	for result, want := range map[uint32]string{
		wire.MoveBusy:      "did not end within 2 s; try again",
		wire.MoveCapturing: "capturing a graph; try again",
		wire.MoveHostFull:  "raise --host-memory",
		wire.MoveFailed:    "the driver refused a step; see",
		wire.MoveNothing:   "no movable memory; start it with",
		wire.MoveRefused:   "the library does not see, so it can't move; see",
	} {
		w := newWorld(t)
		stop := w.serve(t, func(o *daemon.Options) { o.HostMemory = 200 * gib })
		m := startMover(t, w, result)
		await(t, "known", func() bool { return w.onlyMemory(t).MovableBytes > 0 })
		if _, err := w.ctl.Evict(ctx, control.EvictRequest{PID: os.Getpid()}); err != nil {
			t.Fatal(err)
		}
		await(t, "the failure", func() bool { return w.onlyMemory(t).EvictFailed != "" })
		if e := w.onlyMemory(t); !strings.Contains(e.EvictFailed, want) || strings.Contains(e.EvictFailed, "\n") || e.Evicted {
			t.Errorf("result %d: %+v", result, e)
		}
		m.stop()
		_ = stop()
	}
	w := newWorld(t)
	w.serve(t, func(o *daemon.Options) { o.HostMemory = 10 * gib })
	m := startMover(t, w, wire.MoveDone)
	defer m.stop()
	await(t, "known", func() bool { return w.onlyMemory(t).MovableBytes > 0 })
	if _, err := w.ctl.Evict(ctx, control.EvictRequest{PID: os.Getpid()}); err != nil {
		t.Fatal(err)
	}
	await(t, "the budget is too small", func() bool { return strings.Contains(w.onlyMemory(t).EvictFailed, "--host-memory") })
	st, err := w.ctl.Stats(ctx)
	if err != nil || st.HostMemoryBytes != int64(10*gib) || st.HostMemoryGranted > st.HostMemoryBytes {
		t.Errorf("%+v, %v", st, err)
	}
}

func errorOf[T any](_ T, err error) error { return err }
