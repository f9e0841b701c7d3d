// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"xsched/internal/clock"
	"xsched/internal/engine"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/session"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

func joinGang(t testing.TB, f *sessiontest.Fixture, gang string, priority int32) *sessiontest.Client {
	t.Helper()
	hello := wire.Hello{Hint: wire.Hint{Said: wire.HintPriority | wire.HintLevel | wire.HintGang, Priority: int64(priority), Level: int64(wire.LevelBlock)}}
	copy(hello.Hint.Gang[:], gang)
	c, err := sessiontest.Dial(f.Path, hello)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.Queue(0)
	return c
}

// A gang belongs to one user: another user can't use its priority, nor suspend it, by its name.
func TestGangsAreAUsersOwn(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Users(c, 0, 1000, 0, 1001) })
	ctx := context.Background()
	root := joinGang(t, h, "train", 10)
	stranger := joinGang(t, h, "train", 0)
	second := joinGang(t, h, "train", 10)
	sessiontest.Await(t, "queues are known", func() bool { return h.Loop.Stats().Queues == 3 })
	root.Busy(0, true)
	stranger.Busy(0, true)
	sessiontest.Await(t, "the stranger waits", func() bool { return stranger.Held(0) })
	if root.Held(0) || second.Held(0) {
		t.Error("root's gang is held")
	}
	all, err := h.Clients(ctx)
	if err != nil || len(all) != 3 {
		t.Fatalf("%d sessions, %v", len(all), err)
	}
	for _, v := range all {
		if v.Hint.Gang != "train" || v.Queues[0].Hint.Gang != "train" {
			t.Errorf("uid %d: gang %q, its queue's %q", v.User.UID, v.Hint.Gang, v.Queues[0].Hint.Gang)
		}
	}
	// Holding the other user's process does not hold root's gang.
	if err := h.SetHeld(ctx, all[1].PID, true); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "the engine knows", func() bool { return stranger.Held(0) })
	for range 3 {
		_ = h.Engine(ctx, func(*engine.Engine) {})
	}
	if root.Held(0) {
		t.Error("a stranger stopped root's gang")
	}
	// The same holds for a later hint about the process or a queue.
	stranger.Hint(t, wire.QueueAll, wire.Hint{Said: wire.HintUtilization | wire.HintGang, Utilization: 7, Gang: [64]byte{'t', 'r', 'a', 'i', 'n'}}, "")
	stranger.Hint(t, 0, wire.Hint{Said: wire.HintGang, Gang: [64]byte{'t', 'r', 'a', 'i', 'n'}}, "")
	sessiontest.Await(t, "the hint is taken", func() bool {
		all, _ := h.Clients(ctx)
		return all[1].Hint.Utilization == 7
	})
	var names []string
	_ = h.Engine(ctx, func(e *engine.Engine) {
		for _, q := range e.Snapshot(clock.Now()) {
			names = append(names, q.Queue.Hint.Gang)
		}
	})
	if got := strings.Join(names, " "); strings.Count(got, "0/train") != 3 || strings.Count(got, "1000/train") != 1 {
		t.Errorf("gangs %s", got)
	}
}

// A connection whose HELLO arrives after Close is refused, and does not delay Close.
func TestLateHelloDoesNotHoldUpTheEnd(t *testing.T) {
	h := sessiontest.Start(t, nil)
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: h.Path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	sessiontest.Await(t, "connected", func() bool { return h.Pending() == 1 })
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		h.Close()
	}()
	sessiontest.Await(t, "closing", h.Closing)
	_, _ = conn.Write(wire.EncodeHello(wire.Hello{PID: 1}))
	if c, err := sessiontest.Welcome(conn); err == nil {
		c.Close()
		t.Error("it was welcomed")
	} else if !strings.Contains(err.Error(), "stopping") {
		t.Error(err)
	}
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Fatal("Close does not return")
	}
	if n := h.Server.Stats().Sessions; n != 0 || !h.Hardware(0).Closed.Load() {
		t.Errorf("%d sessions left, hardware closed: %v", n, h.Hardware(0).Closed.Load())
	}
}

// A priority that an authorised caller has granted takes effect and stays.
func TestGrantedPriority(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Users(c, 1000) })
	ctx := context.Background()
	c := h.Client(t, 9, wire.LevelBlock)
	c.Queue(0)
	sessiontest.Await(t, "the queue is known", func() bool { return h.Loop.Stats().Queues == 1 })
	inForce := func() model.Priority {
		t.Helper()
		v := h.Only(t)
		var told model.Priority
		_ = h.Engine(ctx, func(e *engine.Engine) { told = e.Snapshot(clock.Now())[0].Queue.Hint.Priority })
		if told != v.Hint.Priority || told != v.Queues[0].Hint.Priority {
			t.Errorf("the engine has %d, the process %d, the queue %d", told, v.Hint.Priority, v.Queues[0].Hint.Priority)
		}
		return told
	}
	if p := inForce(); p != 0 || h.Only(t).PriorityNote == "" {
		t.Errorf("priority %d by its own wish", p)
	}
	pid := h.Only(t).PID
	give := func(p model.Priority) {
		t.Helper()
		if _, err := h.SetHint(ctx, pid, true, toPriority(p), nil); err != nil {
			t.Fatal(err)
		}
	}
	give(50)
	if p := inForce(); p != 50 || h.Only(t).PriorityNote != "" {
		t.Errorf("priority %d, note %q", p, h.Only(t).PriorityNote)
	}
	k := uint32(0)
	frame := func(w wire.Hint) {
		t.Helper()
		k++
		w.Said |= wire.HintK
		w.K = int64(k)
		c.Hint(t, wire.QueueAll, w, "")
		sessiontest.Await(t, "the hint is taken", func() bool { return h.Only(t).Hint.K == int(k) })
	}
	frame(wire.Hint{})
	if p := inForce(); p != 50 {
		t.Errorf("a hint about something else left priority %d", p)
	}
	frame(wire.Hint{Said: wire.HintPriority, Priority: -5})
	frame(wire.Hint{Said: wire.HintPriority, Priority: 200})
	if p := inForce(); p != 50 || h.Only(t).PriorityNote == "" {
		t.Errorf("it took priority %d, note %q", p, h.Only(t).PriorityNote)
	}
	give(10)
	frame(wire.Hint{Said: wire.HintPriority, Priority: 50})
	if p := inForce(); p != 10 {
		t.Errorf("it kept priority %d", p)
	}
	give(-3)
	frame(wire.Hint{Said: wire.HintPriority, Priority: 50})
	if p := inForce(); p != 0 {
		t.Errorf("nothing is granted any more, and it has %d", p)
	}
}

func TestLockIsOursAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "lock")
	mode := func() os.FileMode {
		t.Helper()
		st, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		return st.Mode()
	}
	lock, err := session.TakeLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if mode() != 0o600 {
		t.Errorf("a new lock has mode %v", mode())
	}
	lock.Release()
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_ = os.Chmod(path, 0o666)
	if lock, err = session.TakeLock(dir); err != nil {
		t.Fatal(err)
	}
	if mode() != 0o600 {
		t.Errorf("one that was there has mode %v", mode())
	}
	lock.Release()
	if os.Geteuid() != 0 {
		return
	}
	_ = os.WriteFile(path, nil, 0o600)
	if err := os.Chown(path, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if lock, err := session.TakeLock(dir); err == nil {
		lock.Release()
		t.Error("the file of another user was used")
	} else if !strings.Contains(err.Error(), "65534") {
		t.Error(err)
	}
}

// Queues announced with one ring are all added, over several heartbeats.
func TestManyQueuesByOneRing(t *testing.T) {
	h := sessiontest.Start(t, nil)
	c := h.Client(t, 0, 0)
	for i := range 200 {
		c.Page.CreateQueue(i, 0, 1<<8)
	}
	c.Ring()
	sessiontest.Await(t, "all queues are known", func() bool { return h.Loop.Stats().Queues == 200 })
	for i := range 200 {
		c.Page.DestroyQueue(i)
	}
	c.Ring()
	sessiontest.Await(t, "and all gone", func() bool { return h.Loop.Stats().Queues == 0 })
}

// TestPinned: a program can't lift what the administrator has set for it.
func TestPinned(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Users(c, 1000) })
	ctx := context.Background()
	c := h.Client(t, 0, wire.LevelBlock)
	c.Queue(0)
	sessiontest.Await(t, "the queue is known", func() bool { return h.Loop.Stats().Queues == 1 })
	pid := h.Only(t).PID
	var change model.HintChange
	change.Set("utilization", model.HintValue{Number: 20})
	change.Set("priority", model.HintValue{Number: -7})
	if _, err := h.EditHint(ctx, loop.HintEdit{PID: pid, Change: change, Raises: true, Pins: true}); err != nil {
		t.Fatal(err)
	}
	set := func(change model.HintChange) error {
		_, err := h.SetHint(ctx, pid, true, change, nil)
		return err
	}
	if err := set(change); err != nil {
		t.Fatal(err)
	}
	inForce := func() (int, model.Priority) {
		var got model.Hint
		_ = h.Engine(ctx, func(e *engine.Engine) { got = e.Snapshot(clock.Now())[0].Queue.Hint })
		return got.Utilization, got.Priority
	}
	for i, frame := range []wire.Hint{
		{Said: wire.HintUtilization | wire.HintPriority, Utilization: 100},
		{Said: wire.HintUtilization | wire.HintPriority, Utilization: 0, Priority: 5},
	} {
		for _, queue := range []uint32{wire.QueueAll, 0} {
			frame.Said |= wire.HintK
			frame.K = int64(2*i + 1)
			c.Hint(t, queue, frame, "")
		}
		sessiontest.Await(t, "the hint is taken", func() bool { return h.Only(t).Hint.K == 2*i+1 })
		if share, priority := inForce(); share != 20 || priority != -7 {
			t.Errorf("after hint %d of the program: share %d, priority %d", i, share, priority)
		}
	}
	var own model.HintChange
	own.Set("utilization", model.HintValue{Number: 90})
	if err := set(own); !errors.Is(err, loop.ErrPinned) {
		t.Errorf("its user sets another share: %v", err)
	}
	var back model.HintChange
	back.Set("utilization", model.HintValue{})
	if _, err := h.EditHint(ctx, loop.HintEdit{PID: pid, Change: back, Raises: true, Pins: true}); err != nil {
		t.Fatal(err)
	}
	if err := set(own); err != nil {
		t.Errorf("after the administrator let go: %v", err)
	}
	if share := h.Only(t).Hint.Utilization; share != 90 { // of the process; its queue has its own
		t.Errorf("share %d", share)
	}
}
