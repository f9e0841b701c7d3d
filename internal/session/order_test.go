// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/driver"
	"xsched/internal/driver/amd"
	"xsched/internal/engine"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/seqpacket"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

const testGPUID = 63420

// startAMD starts a server on a host with one AMD GPU at sessiontest.GPU.
func startAMD(t *testing.T) *sessiontest.Fixture {
	t.Helper()
	return startAMDIn(t, t.TempDir())
}

func startAMDIn(t *testing.T, root string) *sessiontest.Fixture {
	t.Helper()
	node := filepath.Join(root, amd.VirtualRoot, amd.SysfsRoot, "topology/nodes/1")
	if err := os.MkdirAll(node, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"gpu_id": "63420\n", "properties": "location_id 256\ndomain 0\n"} {
		if err := os.WriteFile(filepath.Join(node, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return sessiontest.Start(t, func(c *sessiontest.Config) {
		sessiontest.Separate(c)
		c.Engine.Mode = model.ModeSuspend
		place := driver.Place{Dir: root, Virtual: true}
		set := driver.OpenAll([]driver.Driver{amd.New()}, driver.Options{Place: place, Metrics: c.Loop.Metrics}, amd.Name)
		c.Session.NewHardware = func(o driver.SessionOptions) driver.Session {
			listQueue(t, filepath.Join(root, amd.VirtualRoot, amd.SysfsRoot), o.PID)
			return set.NewSession(o)
		}
	})
}

// listQueue makes the driver list a queue of a process.
func listQueue(t *testing.T, sysfs string, pid int) {
	t.Helper()
	folder := filepath.Join(sysfs, "proc", strconv.Itoa(pid), "queues/0")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"gpuid": "63420\n", "type": "0\n", "size": "4096\n"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPhantomOnAMD: a queue that the driver does not list does not compete, whatever the client announces.
func TestPhantomOnAMD(t *testing.T) {
	root := t.TempDir()
	h := startAMDIn(t, root)
	c := h.Client(t, 0, wire.LevelAuto)
	pid, sysfs := h.Only(t).PID, filepath.Join(root, amd.VirtualRoot, amd.SysfsRoot)
	if err := os.RemoveAll(filepath.Join(sysfs, "proc")); err != nil {
		t.Fatal(err)
	}
	c.Queue(0)
	c.Busy(0, true)
	competes := func() bool {
		n := 0
		_ = h.Engine(context.Background(), func(e *engine.Engine) { n = len(e.Snapshot(clock.Now())) })
		return n == 1
	}
	sessiontest.Await(t, "the queue is known", func() bool { return len(h.Only(t).Queues) == 1 })
	(&shim{Client: c}).announce(t, computeQueue(0))
	time.Sleep(100 * time.Millisecond)
	if competes() || !strings.Contains(h.Only(t).Queues[0].Reason, "not verified") {
		t.Errorf("process %d: a queue competes without proof: %+v", pid, h.Only(t).Queues[0])
	}
	// A suspension by hand does not need the proof.
	hold := func(on bool) {
		t.Helper()
		if err := h.SetHeld(t.Context(), pid, on); err != nil {
			t.Fatal(err)
		}
		sessiontest.Await(t, "the gate follows the hand", func() bool { return c.Held(0) == on })
	}
	hold(true)
	hold(false)
	listQueue(t, sysfs, pid)
	sessiontest.Await(t, "it competes with proof", competes)
	(&shim{Client: c}).announce(t, amd.KFDEvent{Kind: amd.KFDGone, ID: 0})
	sessiontest.Await(t, "the proof is withdrawn", func() bool { return !competes() && !c.Held(0) })
	hold(true)
	c.Queue(1)
	sessiontest.Await(t, "a later queue is held too", func() bool { return c.Held(1) })
}

// shim executes orders as the library does, and records them.
type shim struct {
	*sessiontest.Client
	mu     sync.Mutex
	paused bool
	orders int
	result int32 // of the next ones; 0: one queue is as wanted
	mute   bool
}

func (s *shim) obey() {
	for {
		packet, fds, err := sessiontest.Receive(s.Conn)
		seqpacket.CloseAll(fds)
		if err != nil {
			return
		}
		o, err := amd.DecodeOrder(packet)
		if err != nil {
			return
		}
		s.mu.Lock()
		s.orders++
		result := s.result
		if o.Kind == amd.OrderPause {
			if _, deadline := s.Lease(); deadline == 0 || clock.Now() > deadline {
				result = -int32(unix.ESTALE)
			}
		}
		if result == 0 {
			result, s.paused = 1, o.Kind == amd.OrderPause
		}
		mute := s.mute
		s.mu.Unlock()
		if !mute {
			_, _ = s.Conn.Write(amd.EncodeDone(amd.Done{Sequence: o.Sequence, Result: result, BeginNS: 1000, EndNS: 301000}))
		}
	}
}

func (s *shim) isPaused() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.paused }
func (s *shim) count() int     { s.mu.Lock(); defer s.mu.Unlock(); return s.orders }
func (s *shim) set(f func())   { s.mu.Lock(); defer s.mu.Unlock(); f() }

func newShim(t *testing.T, f *sessiontest.Fixture, priority int32) *shim {
	t.Helper()
	s := &shim{Client: f.Client(t, priority, wire.LevelAuto)}
	_ = s.Conn.SetReadDeadline(time.Time{})
	s.Queue(0)
	go s.obey()
	return s
}

func (s *shim) announce(t *testing.T, events ...amd.KFDEvent) {
	t.Helper()
	packet, err := amd.EncodeKFD(events)
	if err == nil {
		_, err = s.Conn.Write(packet)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func computeQueue(id uint32) amd.KFDEvent {
	return amd.KFDEvent{Kind: amd.KFDQueue, ID: id, GPUID: testGPUID, Type: 2, Ring: 0x1000, RingBytes: 4096, Priority: 7}
}

func TestOrders(t *testing.T) {
	h := startAMD(t)
	low, high := newShim(t, h, -10), newShim(t, h, 10)
	high.announce(t, computeQueue(0))
	low.Busy(0, true)
	high.Busy(0, true)
	low.announce(t, computeQueue(3), amd.KFDEvent{Kind: amd.KFDQueue, ID: 4, GPUID: testGPUID, Type: 1, RingBytes: 4096})
	sessiontest.Await(t, "level 2: its queues are paused, the gate opens", func() bool { return low.isPaused() && !low.Held(0) })
	v, err := h.Clients(context.Background())
	if err != nil || v[0].Queues[0].Level != model.LevelDeactivate || v[0].Queues[0].Route != amd.RouteOwner {
		t.Fatalf("%+v %v", v, err)
	}
	sessiontest.Await(t, "counted", func() bool { return h.Metrics.Suspends.Load() == 1 })
	_, at, _ := h.Metrics.DriverSuspendTime.Quantiles(0.5)
	if at[0] < 250*time.Microsecond || at[0] > 350*time.Microsecond {
		t.Errorf("the driver took %v, the program said 300us", at[0])
	}
	high.Busy(0, false)
	sessiontest.Await(t, "low runs", func() bool { return !low.isPaused() })
	sessiontest.Await(t, "lease ends", func() bool { _, d := low.Lease(); return d == 0 })

	// A driver that fails is asked again.
	low.set(func() { low.result = -int32(unix.ETIME) })
	before := low.count()
	high.Busy(0, true)
	sessiontest.Await(t, "asked again", func() bool { return low.count() >= before+2 })
	low.set(func() { low.result = 0 })
	sessiontest.Await(t, "paused at last", low.isPaused)

	// The program had to help itself: paused anew under a new lease.
	epoch, _ := low.Lease()
	low.set(func() { low.paused = false })
	low.Recovered(epoch)
	sessiontest.Await(t, "paused again", low.isPaused)

	// Its last compute queue goes: it does not compete any more.
	low.announce(t, amd.KFDEvent{Kind: amd.KFDGone, ID: 3})
	sessiontest.Await(t, "not verified", func() bool {
		v, err := h.Clients(context.Background())
		return err == nil && strings.Contains(v[0].Queues[0].Reason, "not verified") && !low.Held(0)
	})
}

// A program that never replies delays no other program, and its end is detected.
func TestOrderWithoutAnswer(t *testing.T) {
	h := startAMD(t)
	low, high := newShim(t, h, -10), newShim(t, h, 10)
	high.announce(t, computeQueue(0))
	low.announce(t, computeQueue(0))
	low.Busy(0, true)
	sessiontest.Await(t, "level 2", func() bool {
		v, err := h.Clients(context.Background())
		return err == nil && len(v) == 2 && len(v[0].Queues) == 1 && v[0].Queues[0].Level == model.LevelDeactivate
	})
	low.set(func() { low.mute = true })
	high.Busy(0, true)
	sessiontest.Await(t, "told", func() bool { return low.count() == 1 })
	sessiontest.Await(t, "shown as stuck", func() bool {
		for _, target := range h.Server.Stats().Targets {
			if target.StuckSince != 0 {
				return true
			}
		}
		return false
	})
	_ = low.Conn.Close()
	sessiontest.Await(t, "gone", func() bool { return h.Server.Stats().Sessions == 1 })
}

func TestCloseResumesOwners(t *testing.T) {
	h := startAMD(t)
	low := newShim(t, h, 0)
	low.announce(t, computeQueue(0))
	low.Busy(0, true)
	sessiontest.Await(t, "level 2", func() bool {
		v, err := h.Clients(context.Background())
		return err == nil && len(v[0].Queues) == 1 && v[0].Queues[0].Level == model.LevelDeactivate
	})
	v, _ := h.Clients(context.Background())
	if err := h.SetHeld(context.Background(), v[0].PID, true); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "paused", low.isPaused)
	h.Close()
	// The connection ends, which the library takes as the order to set itself free.
	if _, err := low.Conn.Write(amd.EncodeDone(amd.Done{})); !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, os.ErrClosed) {
		t.Errorf("the connection is still there: %v", err)
	}
}

// Announcements of queues are limited and validated, and unexpected replies are ignored.
func TestHostileQueues(t *testing.T) {
	h := startAMD(t)
	c := newShim(t, h, 0)
	for id := range uint32(amd.MaxKFDQueues + 100) {
		if id%amd.MaxKFDEvents != 0 {
			continue
		}
		var events []amd.KFDEvent
		for i := range uint32(amd.MaxKFDEvents) {
			events = append(events, computeQueue(id+i))
		}
		c.announce(t, events...)
	}
	for i := range uint64(50) {
		if _, err := c.Conn.Write(amd.EncodeDone(amd.Done{Sequence: i, Result: 5})); err != nil {
			t.Fatal(err)
		}
	}
	sessiontest.Await(t, "all read", func() bool {
		q, err := h.HardwareQueues(context.Background(), os.Getpid()+1<<23)
		return err == nil && len(q) == amd.MaxKFDQueues
	})
	for i := range uint32(4) { // of a GPU that is not there, and of none of its kinds
		c.announce(t, amd.KFDEvent{Kind: amd.KFDGone, ID: i}, amd.KFDEvent{Kind: amd.KFDQueue, ID: i, GPUID: 1 + i, Type: 5 + i, RingBytes: 1 << 31})
	}
	sessiontest.Await(t, "still there", func() bool { v, err := h.Clients(context.Background()); return err == nil && len(v) == 1 })
	bad, _ := amd.EncodeKFD([]amd.KFDEvent{{Kind: 7}})
	if _, err := c.Conn.Write(bad); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "malformed: ended", func() bool { return h.Server.Stats().Sessions == 0 })
}

// A bare client gets one queue. It loses that queue for good when it announces a queue itself.
func TestBareQueues(t *testing.T) {
	h := startAMD(t)
	c := &shim{Client: h.Client(t, 0, wire.LevelAuto)}
	_ = c.Conn.SetReadDeadline(time.Time{})
	go c.obey()
	queues := func() []loop.QueueView {
		v, err := h.Clients(context.Background())
		if err != nil || len(v) != 1 {
			return nil
		}
		return v[0].Queues
	}
	c.announce(t, computeQueue(0))
	sessiontest.Await(t, "a queue for its hardware queues", func() bool {
		q := queues()
		return len(q) == 1 && q[0].Index >= wire.MaxQueues && q[0].Level == model.LevelDeactivate && !q[0].Busy
	})
	bare, err := h.Unhooked(context.Background())
	if err != nil || len(bare) != 1 {
		t.Fatalf("%+v %v", bare, err)
	}
	if err := h.Observe(bare[0].User, bare[0].ID, true); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "busy", func() bool { q := queues(); return len(q) == 1 && q[0].Busy })
	if err := h.SetHeld(context.Background(), bare[0].PID, true); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "paused", c.isPaused)
	if err := h.SetHeld(context.Background(), bare[0].PID, false); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "resumed", func() bool { return !c.isPaused() })
	c.Queue(0)
	sessiontest.Await(t, "its own takes the place", func() bool { q := queues(); return len(q) == 1 && q[0].Index == 0 })
	c.Page.DestroyQueue(0)
	c.Ring()
	sessiontest.Await(t, "none is left", func() bool { return len(queues()) == 0 })
	c.announce(t, computeQueue(1))
	if bare, err := h.Unhooked(context.Background()); err != nil || len(bare) != 0 {
		t.Errorf("%+v %v", bare, err)
	}
	c.Close()
	sessiontest.Await(t, "gone", func() bool { return h.Server.Stats().Sessions == 0 })
	if n := h.Loop.Stats().Queues; n != 0 {
		t.Errorf("%d queues are left", n)
	}
}
