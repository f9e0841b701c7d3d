// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"xsched/internal/clock"
	"xsched/internal/engine"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// users makes the nth client a process of its own, of the nth user, on root's daemon.
func users(c *Config, uids ...int) {
	var n atomic.Int64
	c.UID = 0
	c.peer = func(conn *net.UnixConn) (credentials, error) {
		cr, err := peer(conn)
		i := n.Add(1)
		cr.pid += int(i) << 23
		cr.uid = uids[int(i-1)%len(uids)]
		return cr, err
	}
}

func (f *fixture) joinGang(t testing.TB, gang string, priority int32) *client {
	t.Helper()
	hello := wire.Hello{Hint: wire.Hint{Said: wire.HintPriority | wire.HintLevel | wire.HintGang, Priority: int64(priority), Level: int64(wire.LevelBlock)}}
	copy(hello.Hint.Gang[:], gang)
	c, err := dial(f.path, hello)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	c.queue(0)
	return c
}

// A gang is one user's: the name alone neither lends a stranger the priority of
// somebody else's gang nor stops that gang with it.
func TestGangsAreAUsersOwn(t *testing.T) {
	h := startHub(t, func(c *Config, _ *engine.Config) { users(c, 0, 1000, 0, 1001) })
	ctx := context.Background()
	root := h.joinGang(t, "train", 10)
	stranger := h.joinGang(t, "train", 0)
	second := h.joinGang(t, "train", 10)
	await(t, "queues are known", func() bool { return h.Stats().Queues == 3 })
	root.busy(0, true)
	stranger.busy(0, true)
	await(t, "the stranger waits", func() bool { return stranger.held(0) })
	if root.held(0) || second.held(0) {
		t.Error("root's gang is held")
	}
	all, err := h.Sessions(ctx)
	if err != nil || len(all) != 3 {
		t.Fatalf("%d sessions, %v", len(all), err)
	}
	for _, v := range all {
		if v.Hint.Gang != "train" || v.Queues[0].Hint.Gang != "train" {
			t.Errorf("uid %d: gang %q, its queue's %q", v.UID, v.Hint.Gang, v.Queues[0].Hint.Gang)
		}
	}
	// Held by hand: the stranger's own affair.
	if err := h.SetHeld(ctx, all[1].PID, true); err != nil {
		t.Fatal(err)
	}
	await(t, "the engine knows", func() bool { return stranger.held(0) })
	for range 3 {
		_ = h.Engine(ctx, func(*engine.Engine) {})
	}
	if root.held(0) {
		t.Error("a stranger stopped root's gang")
	}
	// Also when the name comes later, for the process and for a queue.
	stranger.hint(t, wire.QueueAll, wire.Hint{Said: wire.HintUtilization | wire.HintGang, Utilization: 7, Gang: [64]byte{'t', 'r', 'a', 'i', 'n'}}, "")
	stranger.hint(t, 0, wire.Hint{Said: wire.HintGang, Gang: [64]byte{'t', 'r', 'a', 'i', 'n'}}, "")
	await(t, "the hint is taken", func() bool {
		all, _ := h.Sessions(ctx)
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

// A connection from before the end whose HELLO comes after it is refused, and
// nobody waits for it.
func TestLateHelloDoesNotHoldUpTheEnd(t *testing.T) {
	h := startHub(t, nil)
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: h.path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	await(t, "connected", func() bool {
		h.Hub.mu.Lock()
		defer h.Hub.mu.Unlock()
		return len(h.pending) == 1
	})
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		h.Close()
	}()
	await(t, "closing", func() bool {
		h.Hub.mu.Lock()
		defer h.Hub.mu.Unlock()
		return h.closing
	})
	_, _ = conn.Write(wire.EncodeHello(wire.Hello{PID: 1}))
	if c, err := welcome(conn); err == nil {
		c.close()
		t.Error("it was welcomed")
	} else if !strings.Contains(err.Error(), "stopping") {
		t.Error(err)
	}
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Fatal("the hub does not end")
	}
	if n := h.count(); n != 0 || !h.hardware(0).closed.Load() {
		t.Errorf("%d sessions left, hardware closed: %v", n, h.hardware(0).closed.Load())
	}
}

// What somebody who may has given is in force, and stays.
func TestGrantedPriority(t *testing.T) {
	h := startHub(t, func(c *Config, _ *engine.Config) { users(c, 1000) })
	ctx := context.Background()
	c := h.join(t, 9, wire.LevelBlock)
	c.queue(0)
	await(t, "the queue is known", func() bool { return h.Stats().Queues == 1 })
	inForce := func() model.Priority {
		t.Helper()
		v := h.only(t)
		var told model.Priority
		_ = h.Engine(ctx, func(e *engine.Engine) { told = e.Snapshot(clock.Now())[0].Queue.Hint.Priority })
		if told != v.Hint.Priority || told != v.Queues[0].Hint.Priority {
			t.Errorf("the engine has %d, the process %d, the queue %d", told, v.Hint.Priority, v.Queues[0].Hint.Priority)
		}
		return told
	}
	if p := inForce(); p != 0 || h.only(t).PriorityNote == "" {
		t.Errorf("priority %d by its own wish", p)
	}
	pid := h.only(t).PID
	give := func(p model.Priority) {
		t.Helper()
		if _, err := h.SetHint(ctx, pid, true, toPriority(p)); err != nil {
			t.Fatal(err)
		}
	}
	give(50)
	if p := inForce(); p != 50 || h.only(t).PriorityNote != "" {
		t.Errorf("priority %d, note %q", p, h.only(t).PriorityNote)
	}
	k := uint32(0)
	frame := func(w wire.Hint) {
		t.Helper()
		k++
		w.Said |= wire.HintK
		w.K = int64(k)
		c.hint(t, wire.QueueAll, w, "")
		await(t, "the hint is taken", func() bool { return h.only(t).Hint.K == int(k) })
	}
	frame(wire.Hint{})
	if p := inForce(); p != 50 {
		t.Errorf("a hint about something else left priority %d", p)
	}
	frame(wire.Hint{Said: wire.HintPriority, Priority: -5})
	frame(wire.Hint{Said: wire.HintPriority, Priority: 200})
	if p := inForce(); p != 50 || h.only(t).PriorityNote == "" {
		t.Errorf("it took priority %d, note %q", p, h.only(t).PriorityNote)
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
	lock, err := TakeLock(dir)
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
	if lock, err = TakeLock(dir); err != nil {
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
	if lock, err := TakeLock(dir); err == nil {
		lock.Release()
		t.Error("somebody else's file was taken")
	} else if !strings.Contains(err.Error(), "65534") {
		t.Error(err)
	}
}

// Many queues by one ring: they come by and by, all of them.
func TestManyQueuesByOneRing(t *testing.T) {
	h := startHub(t, nil)
	c := h.join(t, 0, 0)
	for i := range 200 {
		c.page.CreateQueue(i, 0, 1<<8)
	}
	c.ring()
	await(t, "all queues are known", func() bool { return h.Stats().Queues == 200 })
	for i := range 200 {
		c.page.DestroyQueue(i)
	}
	c.ring()
	await(t, "and all gone", func() bool { return h.Stats().Queues == 0 })
}

// However many queues change at once, a worker's wish is added up once, and never
// while the process has more GPUs than it may.
func TestChangesAreAddedUpOnce(t *testing.T) {
	h := startHub(t, nil)
	c := h.join(t, 0, wire.LevelInterrupt)
	c.handOver(t)
	const n = 60
	for i := range n {
		c.page.CreateQueue(i, 0, 1<<8)
	}
	c.ring()
	await(t, "all queues are known at level 3", func() bool {
		v := h.only(t)
		return len(v.Queues) == n && v.Queues[0].Level == model.LevelInterrupt
	})
	for _, on := range []bool{true, false} {
		var times uint64
		if err := h.call(context.Background(), func(l *loop) {
			for _, s := range l.sessions {
				for i := range n {
					c.page.SetBusy(i, on, l.now())
				}
				before := l.retargets
				l.scan(l.now(), s)
				times = l.retargets - before
			}
		}); err != nil {
			t.Fatal(err)
		}
		if times != 1 {
			t.Errorf("added up %d times", times)
		}
	}
	for i := range n {
		c.page.DestroyQueue(i)
	}
	for i := range 2 * maxGPUs {
		c.page.CreateQueue(n+i, 0, uint32(i+1)<<8)
	}
	c.ring()
	await(t, "as many GPUs as one may have", func() bool { return h.Stats().Queues == maxGPUs })
	for i := range maxGPUs {
		c.page.DestroyQueue(n + i)
	}
	c.ring()
	await(t, "the others have their place", func() bool {
		v := h.only(t)
		return len(v.Queues) == maxGPUs && v.Queues[0].Index >= n+maxGPUs
	})
}
