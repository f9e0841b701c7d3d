// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/driver"
	"xsched/internal/driver/amd"
	"xsched/internal/engine"
	"xsched/internal/model"
	"xsched/internal/seqpacket"
	"xsched/internal/wire"
)

const testGPUID = 63420

// amdHub is a hub on a machine with one GPU of AMD's at testGPU.
func amdHub(t *testing.T) *fixture {
	t.Helper()
	root := t.TempDir()
	node := filepath.Join(root, amd.VirtualRoot, amd.SysfsRoot, "topology/nodes/1")
	if err := os.MkdirAll(node, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"gpu_id": "63420\n", "properties": "location_id 256\ndomain 0\n"} {
		if err := os.WriteFile(filepath.Join(node, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	metrics := &driver.Metrics{}
	return startHub(t, func(c *Config, e *engine.Config) {
		strangers(c)
		e.Mode = model.ModeSuspend
		c.Metrics = metrics
		place := driver.Place{Dir: root, Virtual: true}
		c.NewHardware = driver.OpenAll([]driver.Driver{amd.New()}, driver.Options{Place: place, Metrics: metrics}, amd.Name).NewSession
	})
}

// shim carries out orders as the library does, and says what it was told.
type shim struct {
	*client
	mu     sync.Mutex
	paused bool
	orders int
	result int32 // of the next ones; 0: one queue is as wanted
	mute   bool
}

func (s *shim) obey() {
	for {
		packet, fds, err := receive(s.conn, make([]byte, wire.FrameMaxBytes+1))
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
			if _, deadline := s.page.Lease(); deadline == 0 || clock.Now() > deadline {
				result = -int32(unix.ESTALE)
			}
		}
		if result == 0 {
			result, s.paused = 1, o.Kind == amd.OrderPause
		}
		mute := s.mute
		s.mu.Unlock()
		if !mute {
			_, _ = s.conn.Write(amd.EncodeDone(amd.Done{Sequence: o.Sequence, Result: result, BeginNS: 1000, EndNS: 301000}))
		}
	}
}

func (s *shim) isPaused() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.paused }
func (s *shim) count() int     { s.mu.Lock(); defer s.mu.Unlock(); return s.orders }
func (s *shim) set(f func())   { s.mu.Lock(); defer s.mu.Unlock(); f() }

func (f *fixture) shim(t *testing.T, priority int32) *shim {
	t.Helper()
	s := &shim{client: f.join(t, priority, wire.LevelAuto)}
	_ = s.conn.SetReadDeadline(time.Time{})
	s.queue(0)
	go s.obey()
	return s
}

func (s *shim) announce(t *testing.T, events ...amd.KFDEvent) {
	t.Helper()
	packet, err := amd.EncodeKFD(events)
	if err == nil {
		_, err = s.conn.Write(packet)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func computeQueue(id uint32) amd.KFDEvent {
	return amd.KFDEvent{Kind: amd.KFDQueue, ID: id, GPUID: testGPUID, Type: 2, Ring: 0x1000, RingBytes: 4096, Priority: 7}
}

func TestOrders(t *testing.T) {
	h := amdHub(t)
	low, high := h.shim(t, -10), h.shim(t, 10)
	low.busy(0, true)
	high.busy(0, true)
	await(t, "low is held at the gate first", func() bool { return low.held(0) })
	low.announce(t, computeQueue(3), amd.KFDEvent{Kind: amd.KFDQueue, ID: 4, GPUID: testGPUID, Type: 1, RingBytes: 4096})
	await(t, "level 2: its queues are paused, the gate opens", func() bool { return low.isPaused() && !low.held(0) })
	v, err := h.Sessions(context.Background())
	if err != nil || v[0].Queues[0].Level != model.LevelDeactivate || v[0].Queues[0].Route != amd.RouteOwner || v[1].Queues[0].Route != "gate" {
		t.Fatalf("%+v %v", v, err)
	}
	await(t, "counted", func() bool { return h.metrics.Suspends.Load() == 1 })
	_, at, _ := h.metrics.DriverSuspendTime.Quantiles(0.5)
	if at[0] < 250*time.Microsecond || at[0] > 350*time.Microsecond {
		t.Errorf("the driver took %v, the program said 300us", at[0])
	}
	high.busy(0, false)
	await(t, "low runs", func() bool { return !low.isPaused() })
	await(t, "lease ends", func() bool { _, d := low.page.Lease(); return d == 0 })

	// A driver that fails is asked again.
	low.set(func() { low.result = -int32(unix.ETIME) })
	before := low.count()
	high.busy(0, true)
	await(t, "asked again", func() bool { return low.count() >= before+2 })
	low.set(func() { low.result = 0 })
	await(t, "paused at last", low.isPaused)

	// The program had to help itself: paused anew under a new lease.
	epoch, _ := low.page.Lease()
	low.set(func() { low.paused = false })
	low.page.SetRecovered(epoch)
	await(t, "paused again", low.isPaused)

	// Its last compute queue goes: level 1 is what is left.
	low.announce(t, amd.KFDEvent{Kind: amd.KFDGone, ID: 3})
	await(t, "held at the gate", func() bool { return low.held(0) })
}

// A program that never answers holds nobody up but itself, and its end is seen.
func TestOrderWithoutAnswer(t *testing.T) {
	h := amdHub(t)
	low, high := h.shim(t, -10), h.shim(t, 10)
	low.announce(t, computeQueue(0))
	low.busy(0, true)
	await(t, "level 2", func() bool {
		v, err := h.Sessions(context.Background())
		return err == nil && len(v) == 2 && len(v[0].Queues) == 1 && v[0].Queues[0].Level == model.LevelDeactivate
	})
	low.set(func() { low.mute = true })
	high.busy(0, true)
	await(t, "told", func() bool { return low.count() == 1 })
	await(t, "shown as stuck", func() bool {
		for _, target := range h.Stats().Targets {
			if target.StuckSince != 0 {
				return true
			}
		}
		return false
	})
	_ = low.conn.Close()
	await(t, "gone", func() bool { return h.Stats().Sessions == 1 })
}

func TestCloseResumesOwners(t *testing.T) {
	h := amdHub(t)
	low := h.shim(t, 0)
	low.announce(t, computeQueue(0))
	low.busy(0, true)
	await(t, "level 2", func() bool {
		v, err := h.Sessions(context.Background())
		return err == nil && len(v[0].Queues) == 1 && v[0].Queues[0].Level == model.LevelDeactivate
	})
	v, _ := h.Sessions(context.Background())
	if err := h.SetHeld(context.Background(), v[0].PID, true); err != nil {
		t.Fatal(err)
	}
	await(t, "paused", low.isPaused)
	h.Close()
	// The connection ends, which the library takes as the order to set itself free.
	if _, err := low.conn.Write(amd.EncodeDone(amd.Done{})); !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, os.ErrClosed) {
		t.Errorf("the connection is still there: %v", err)
	}
}

// What a client says about its queues is bounded and checked, and answers that nobody
// waits for are nothing.
func TestHostileQueues(t *testing.T) {
	h := amdHub(t)
	c := h.shim(t, 0)
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
		if _, err := c.conn.Write(amd.EncodeDone(amd.Done{Sequence: i, Result: 5})); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "all read", func() bool {
		q, err := h.all()[0].hw.HardwareQueues(context.Background())
		return err == nil && len(q) == amd.MaxKFDQueues
	})
	for i := range uint32(4) { // of a GPU that is not there, and of none of its kinds
		c.announce(t, amd.KFDEvent{Kind: amd.KFDGone, ID: i}, amd.KFDEvent{Kind: amd.KFDQueue, ID: i, GPUID: 1 + i, Type: 5 + i, RingBytes: 1 << 31})
	}
	await(t, "still there", func() bool { v, err := h.Sessions(context.Background()); return err == nil && len(v) == 1 })
	bad, _ := amd.EncodeKFD([]amd.KFDEvent{{Kind: 7}})
	if _, err := c.conn.Write(bad); err != nil {
		t.Fatal(err)
	}
	await(t, "malformed: ended", func() bool { return h.Stats().Sessions == 0 })
}

// A program with queues and no hooks gets a queue of its own; one whose hooks are there after all
// loses it, and one that announces a queue there never gets it back.
func TestBareQueues(t *testing.T) {
	h := amdHub(t)
	c := &shim{client: h.join(t, 0, wire.LevelAuto)}
	_ = c.conn.SetReadDeadline(time.Time{})
	go c.obey()
	queues := func() []QueueView {
		v, err := h.Sessions(context.Background())
		if err != nil || len(v) != 1 {
			return nil
		}
		return v[0].Queues
	}
	c.announce(t, computeQueue(0))
	await(t, "a queue for its hardware queues", func() bool {
		q := queues()
		return len(q) == 1 && q[0].Index >= wire.MaxQueues && q[0].Level == model.LevelDeactivate && !q[0].Busy
	})
	bare, err := h.Bare(context.Background())
	if err != nil || len(bare) != 1 {
		t.Fatalf("%+v %v", bare, err)
	}
	if err := h.Observe(context.Background(), bare[0].ID, true); err != nil {
		t.Fatal(err)
	}
	await(t, "busy", func() bool { q := queues(); return len(q) == 1 && q[0].Busy })
	if err := h.SetHeld(context.Background(), bare[0].PID, true); err != nil {
		t.Fatal(err)
	}
	await(t, "paused", c.isPaused)
	if err := h.SetHeld(context.Background(), bare[0].PID, false); err != nil {
		t.Fatal(err)
	}
	await(t, "resumed", func() bool { return !c.isPaused() })
	c.queue(0)
	await(t, "its own takes the place", func() bool { q := queues(); return len(q) == 1 && q[0].Index == 0 })
	c.page.DestroyQueue(0)
	c.ring()
	await(t, "none is left", func() bool { return len(queues()) == 0 })
	c.announce(t, computeQueue(1))
	if bare, err := h.Bare(context.Background()); err != nil || len(bare) != 0 {
		t.Errorf("%+v %v", bare, err)
	}
	c.close()
	await(t, "gone", func() bool { return h.Stats().Sessions == 0 })
	if n := h.loop.bare.Load(); n != 0 {
		t.Errorf("%d bare queues are left", n)
	}
}
