// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"xsched/internal/clock"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/residency"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

const gib = model.Bytes(1 << 30)

// mover acts as a shim whose memory moves at once.
type mover struct {
	*sessiontest.Client
	mu     sync.Mutex
	memory wire.DeviceMemory
	frozen atomic.Bool // carries out nothing
	done   []wire.MemoryDemand
}

// moves starts a client with movable memory, whose shim looks for orders every millisecond.
func moves(t *testing.T, h *sessiontest.Fixture, priority int32, used model.Bytes) *mover {
	t.Helper()
	m := &mover{Client: h.Client(t, priority, wire.LevelBlock)}
	m.Queue(0)
	m.change(func(e *wire.DeviceMemory) {
		e.Device, e.Used, e.Movable, e.Room = sessiontest.GPU, used, used, 100*gib-used
	})
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				m.obey()
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-ended })
	return m
}

// change changes what the client says, and rings.
func (m *mover) change(f func(*wire.DeviceMemory)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.memory)
	m.Page.SetMemory(&m.memory)
	m.Ring()
}

func (m *mover) now() wire.DeviceMemory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.memory
}

func (m *mover) obey() {
	d := m.Page.MemoryDemand(0)
	if m.frozen.Load() || d.Sequence == m.now().Order {
		return
	}
	m.change(func(e *wire.DeviceMemory) {
		m.done = append(m.done, d)
		e.Order, e.Pinned, e.Result = d.Sequence, d.Host, wire.MoveDone
		switch {
		case d.Want == wire.WantOut && d.Host < e.Away+d.Bytes:
			e.Result = wire.MoveHostFull
		case d.Want == wire.WantOut:
			e.Away, e.Residency, e.Out, e.Room = e.Away+d.Bytes, wire.Away, e.Out+1, e.Room+d.Bytes
		case d.Want == wire.WantBack:
			e.Away, e.Residency, e.Back, e.Room = 0, wire.Resident, e.Back+1, 100*gib-e.Used
		}
	})
}

func withHost(budget model.Bytes) func(*sessiontest.Config) {
	return func(c *sessiontest.Config) {
		sessiontest.Separate(c)
		c.Loop.HostMemory = budget
		c.Loop.Capacity = func(model.DeviceID) model.Bytes { return 100 * gib }
	}
}

// TestEvictAndRestore: by hand, out and back, also twice, and the moves are recorded.
func TestEvictAndRestore(t *testing.T) {
	h := sessiontest.Start(t, withHost(200*gib))
	m := moves(t, h, 0, 64*gib)
	pid := h.Only(t).PID
	if err := h.Evict(t.Context(), pid, sessiontest.GPU, residency.All); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "its memory is away", func() bool { return m.now().Away == 64*gib })
	time.Sleep(100 * time.Millisecond) // some heartbeats
	v := h.Only(t)
	if e := v.Memory[0]; !e.Evicted || e.Away != 64*gib || e.Failed {
		t.Errorf("%+v", e)
	}
	if err := h.Restore(t.Context(), pid); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "its memory is back", func() bool { return m.now().Away == 0 })
	var done []loop.MemoryMove
	sessiontest.Await(t, "both moves are recorded", func() bool {
		some, err := h.MemoryMoves(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		done = append(done, some...)
		return len(done) == 2
	})
	if out := done[0]; out.Want != residency.WantOut || !out.ByHand || out.Bytes != 64*gib || out.Who.PID != pid || out.Device != sessiontest.GPU {
		t.Errorf("%+v", out)
	}
	if v := h.Only(t); v.Memory[0].Evicted || v.Queues[0].Reason != "" {
		t.Errorf("%+v", v)
	}
}

// TestEvictWithoutHostMemory: nothing leaves, and the reason is known.
func TestEvictWithoutHostMemory(t *testing.T) {
	h := sessiontest.Start(t, withHost(10*gib))
	m := moves(t, h, 0, 64*gib)
	if err := h.Evict(t.Context(), h.Only(t).PID, 0, residency.All); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "the refusal", func() bool { return h.Only(t).Memory[0].Failed })
	if v := h.Only(t).Memory[0]; v.Why != residency.HostFull || m.now().Away != 0 {
		t.Errorf("%+v", v)
	}
}

// TestAllocationGetsRoom: an allocation of a more important program that finds no room is answered within a few
// milliseconds, and memory of another one leaves. The one of a program that cannot have any fails.
func TestAllocationGetsRoom(t *testing.T) {
	h := sessiontest.Start(t, withHost(200*gib))
	low := moves(t, h, -10, 80*gib)
	high := moves(t, h, 10, 0)
	asked := uint64(clock.Now())
	high.change(func(e *wire.DeviceMemory) { e.Used, e.Wanted, e.Request, e.Room = 60*gib, 60*gib, asked, 20*gib })
	sessiontest.Await(t, "an answer", func() bool { return high.Page.MemoryDemand(0).Answered == asked })
	if took := clock.Now().Sub(model.Time(asked)); took > 150*time.Millisecond {
		t.Errorf("the answer took %v; a program waits 200 ms for it", took)
	}
	if d := high.Page.MemoryDemand(0); d.Verdict != wire.VerdictWait {
		t.Errorf("verdict %v", d.Verdict)
	}
	sessiontest.Await(t, "room", func() bool { return low.now().Away == 40*gib })
	high.change(func(e *wire.DeviceMemory) { e.Wanted = 0 })
	again := asked + 1
	low.change(func(e *wire.DeviceMemory) { e.Waits = true })
	third := moves(t, h, -20, 0)
	third.change(func(e *wire.DeviceMemory) { e.Used, e.Wanted, e.Request, e.Room = 10*gib, 10*gib, again, 0 })
	sessiontest.Await(t, "a refusal", func() bool { return third.Page.MemoryDemand(0).Verdict == wire.VerdictFail })
	if low.now().Away != 40*gib {
		t.Errorf("%v away", low.now().Away)
	}
}

// TestMovingIsNotSuspended: a program is resumed before it moves, also one that is suspended by hand, and does not
// compete while its memory is away. Afterwards the suspension holds again.
func TestMovingIsNotSuspended(t *testing.T) {
	h := sessiontest.Start(t, withHost(200*gib))
	m := moves(t, h, 0, 64*gib)
	m.HandOver(t)
	m.Hint(t, wire.QueueAll, wire.Hint{Said: wire.HintLevel, Level: int64(model.LevelInterrupt)}, "")
	m.Busy(0, true)
	pid := h.Only(t).PID
	if err := h.SetHeld(t.Context(), pid, true); err != nil {
		t.Fatal(err)
	}
	suspended := func() bool { return h.Hardware(0).Now().Suspend != 0 }
	sessiontest.Await(t, "its hardware is suspended", suspended)
	m.mu.Lock()
	m.frozen.Store(true)
	m.mu.Unlock()
	if err := h.Evict(t.Context(), pid, 0, residency.All); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "the order", func() bool { return m.Page.MemoryDemand(0).Want == wire.WantOut })
	if suspended() || m.Held(0) {
		t.Errorf("it shall move while its hardware is suspended: %v, gate held: %v", suspended(), m.Held(0))
	}
	if v := h.Only(t); v.Queues[0].Competes {
		t.Error("it competes while it moves")
	}
	m.mu.Lock()
	m.frozen.Store(false)
	m.mu.Unlock()
	sessiontest.Await(t, "it is away", func() bool { return m.now().Away > 0 })
	if err := h.Restore(t.Context(), pid); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "it is back and suspended again", func() bool { return m.now().Away == 0 && suspended() })
}

// TestInventedResidency: a program that only claims to move is scheduled like every other.
func TestInventedResidency(t *testing.T) {
	h := sessiontest.Start(t, withHost(200*gib))
	m := moves(t, h, 0, 64*gib)
	m.frozen.Store(true)
	m.change(func(e *wire.DeviceMemory) { e.Residency = wire.Leaving })
	m.Busy(0, true)
	if err := h.SetHeld(t.Context(), h.Only(t).PID, true); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "its gate is closed", func() bool { return m.Held(0) })
	time.Sleep(100 * time.Millisecond)
	if !m.Held(0) || !h.Only(t).Queues[0].Competes {
		t.Error("what it says about its memory opens its gate")
	}
}

// TestInventedAbsence: a program that has work although its memory is said to be away is scheduled like every other.
func TestInventedAbsence(t *testing.T) {
	h := sessiontest.Start(t, withHost(200*gib))
	m := moves(t, h, 0, 64*gib)
	if err := h.Evict(t.Context(), h.Only(t).PID, 0, residency.All); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "it is away and does not compete", func() bool { return m.now().Away > 0 && !h.Only(t).Queues[0].Competes })
	time.Sleep(100 * time.Millisecond)
	if h.Only(t).Queues[0].Competes {
		t.Error("it competes while its memory is away")
	}
	m.Busy(0, true)
	sessiontest.Await(t, "it competes", func() bool { return h.Only(t).Queues[0].Competes })
	m.Busy(0, false)
	sessiontest.Await(t, "it does not compete any more", func() bool { return !h.Only(t).Queues[0].Competes })
}

// TestOtherDevice: host memory that was granted for a GPU which the client does not state any more is given back.
func TestOtherDevice(t *testing.T) {
	h := sessiontest.Start(t, withHost(200*gib))
	c := h.Client(t, 0, wire.LevelBlock)
	c.Queue(0)
	say := func(device model.DeviceID) {
		c.Page.SetMemory(&wire.DeviceMemory{Device: device, Used: 90 * gib, Movable: 90 * gib})
		c.Ring()
	}
	say(sessiontest.GPU)
	sessiontest.Await(t, "host memory is granted", func() bool { return h.Loop.Stats().HostGranted > 0 })
	granted := h.Loop.Stats().HostGranted
	say(model.MakeDeviceID(0, 2, 0, 0))
	time.Sleep(200 * time.Millisecond)
	if now := h.Loop.Stats().HostGranted; now != granted {
		t.Errorf("%v granted, before %v", now, granted)
	}
	c.Close()
	sessiontest.Await(t, "all of it is given back", func() bool { return h.Loop.Stats().HostGranted == 0 })
}

// TestManyMovers: one user's pages full of invented memory neither grow without a limit nor delay others.
func TestManyMovers(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) {
		withHost(200 * gib)(c)
		sessiontest.Users(c, 1000)
	})
	for range 80 {
		c := h.Client(t, 0, wire.LevelBlock)
		for i := range wire.MemoryDevices {
			c.Page.SetMemory(&wire.DeviceMemory{
				Entry: i, Device: sessiontest.GPU, Used: 1 << 62, Movable: 1 << 62, Away: 1 << 62, Residency: 77, Result: 99, Wanted: 1 << 62, Request: 5, Room: 1 << 62, Pinned: 1 << 62, Waits: true,
			})
		}
		c.Ring()
	}
	time.Sleep(300 * time.Millisecond)
	if s := h.Loop.Stats(); s.HostGranted > s.HostBudget || s.HostBudget != 200*gib {
		t.Errorf("%v granted of %v", s.HostGranted, s.HostBudget)
	}
	v, err := h.Clients(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range v {
		for _, e := range v[i].Memory {
			if e.Used > 1<<50 || e.Away > e.Movable || e.Residency > wire.Returning {
				t.Fatalf("%+v", e)
			}
		}
	}
}

// TestMovableHint: a hint of the program or of an operator makes what it allocates afterwards movable.
func TestMovableHint(t *testing.T) {
	h := sessiontest.Start(t, withHost(200*gib))
	c := h.Client(t, 0, wire.LevelBlock)
	pid := h.Only(t).PID
	if c.Page.Movable() {
		t.Error("movable at the start")
	}
	c.Hint(t, wire.QueueAll, wire.Hint{Said: wire.HintMovable, Movable: 1}, "")
	sessiontest.Await(t, "the program's hint", c.Page.Movable)
	if _, err := h.SetHint(t.Context(), pid, false, sessiontest.Change("movable", "false"), nil); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "the operator's hint", func() bool { return !c.Page.Movable() })
}

// TestEvictBeforeProof: an order about a GPU that the driver has not confirmed yet waits for that.
func TestEvictBeforeProof(t *testing.T) {
	h := sessiontest.Start(t, withHost(200*gib))
	c := h.Client(t, 0, wire.LevelBlock)
	h.Hardware(0).Verify.Store(true)
	c.Page.SetMemory(&wire.DeviceMemory{Device: sessiontest.GPU, Used: gib, Movable: gib})
	c.Ring()
	pid := h.Only(t).PID
	if err := h.Evict(t.Context(), pid, 0, residency.All); err != nil {
		t.Fatal(err)
	}
	time.Sleep(60 * time.Millisecond)
	if d := c.Page.MemoryDemand(0); d.Want != wire.WantNothing {
		t.Errorf("%+v", d)
	}
	c.HandOver(t)
	sessiontest.Await(t, "the order", func() bool { return c.Page.MemoryDemand(0).Want == wire.WantOut })
}

// TestRoomInManySteps: a program that allocates in many steps waits for no heartbeat in any of them.
func TestRoomInManySteps(t *testing.T) {
	h := sessiontest.Start(t, withHost(200*gib))
	low := moves(t, h, 0, 90*gib)
	high := moves(t, h, 10, 8*gib) // 2 GiB are free
	const steps = 6                // in each, as much leaves as has left before
	fast := 0
	for range steps {
		begun := time.Now()
		before := low.now().Away
		high.change(func(e *wire.DeviceMemory) {
			e.Wanted, e.Request, e.Room = 3*gib, uint64(clock.Now()), 2*gib
		})
		sessiontest.Await(t, "room", func() bool { return low.now().Away > before })
		if time.Since(begun) < wire.HeartbeatPeriodNS/2 {
			fast++
		}
		high.change(func(e *wire.DeviceMemory) { e.Wanted, e.Request = 0, 0 })
	}
	if fast < steps/2 {
		t.Errorf("%d of %d steps took less than half a heartbeat", fast, steps)
	}
}

// TestSizeIsAskedAgain: a driver that learns a GPU's size from its first program is asked again.
func TestSizeIsAskedAgain(t *testing.T) {
	var asked atomic.Int32
	h := sessiontest.Start(t, func(c *sessiontest.Config) {
		withHost(200 * gib)(c)
		c.Loop.Capacity = func(model.DeviceID) model.Bytes {
			if asked.Add(1) == 1 {
				return 0
			}
			return 100 * gib
		}
	})
	c := h.Client(t, 0, wire.LevelBlock)
	c.Queue(0)
	c.Page.SetMemory(&wire.DeviceMemory{Device: sessiontest.GPU, Used: 90 * gib, Movable: 90 * gib})
	c.Ring()
	sessiontest.Await(t, "host memory is granted ahead", func() bool { return c.Page.MemoryDemand(0).Host > 0 })
}
