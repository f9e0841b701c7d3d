// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// TestDevicesAreIndependent: a decision on a device depends only on the queues, the
// policy and the mode there. An engine with all devices decides as engines with one
// device each. Gangs are the exception, and so is HHPF, which ranks a queue by the
// priorities of its process on all devices.
func TestDevicesAreIndependent(t *testing.T) {
	n := min(*histories/4, 1000)
	if raceEnabled || testing.Short() {
		n = 60
	}
	for _, name := range policy.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mixed := 0
			for seed := range uint64(n) {
				s := seeded{rand.New(rand.NewPCG(seed, 77+uint64(policy.Number(name)))), t, seed}
				mixed += independent(s, name)
			}
			if mixed < n {
				t.Errorf("only %d changes by one of two busy devices in %d histories", mixed, n)
			}
		})
	}
}

// plainSource makes histories without what links devices.
type plainSource struct {
	seeded
	name string
}

func (s plainSource) pick(what string, n int) int {
	i := s.seeded.pick(what, n)
	switch {
	case what == "hint" && i == 8: // gang
		return 0
	case what == "rare" && i == 2 && s.name == "HHPF": // a hint for one queue
		return 1
	case what == "hint" && i == 9 && s.name == "HHPF": // per queue
		return 1
	}
	return i
}

func independent(s seeded, name string) (mixed int) {
	m := newMachine(plainSource{s, name}, name, false)
	devices := []model.DeviceID{0, 1}
	m.shards = map[model.DeviceID]*Engine{}
	for _, id := range devices {
		var err error
		if m.shards[id], err = New(m.e.Config()); err != nil {
			s.Fatal(err)
		}
	}
	for range 30 + s.pick("steps", 60) {
		m.step()
		if s.pick("setting", 12) == 0 {
			m.setDevice(pickOf(s, "device", devices...))
		}
		if s.pick("decide", 4) == 0 {
			continue
		}
		where := map[model.QueueID]model.DeviceID{}
		for _, q := range m.queues {
			where[q.ID] = q.Device
		}
		changes, wake := m.e.Decide(m.now)
		m.wake = wake
		if len(changes) > 0 && len(m.e.devices) > 1 {
			mixed++
		}
		earliest := model.Never
		for _, id := range devices {
			mine := slices.DeleteFunc(slices.Clone(changes), func(d model.Desired) bool { return where[d.Queue] != id })
			alone, due := m.shards[id].Decide(m.now)
			if !slices.Equal(mine, alone) {
				s.Fatalf("%s, device %s: %v beside others, %v alone", m.e, id, mine, alone)
			}
			earliest = min(earliest, due)
		}
		if wake != earliest {
			s.Fatalf("%s: wake %d, of the devices %d", m.e, wake, earliest)
		}
	}
	return mixed
}

// setDevice changes the policy or the mode of one device, or returns it to the default.
func (m *machine) setDevice(id model.DeviceID) {
	var err error
	switch m.pick("which setting", 4) {
	case 0:
		name := pickOf(m, "device policy", policy.Names()...)
		if name == "HHPF" {
			name = "HPF"
		}
		m.all(func(e *Engine) { err = e.SetDevicePolicy(id, name) })
	case 1:
		mode := pickOf(m, "device mode", model.Modes...)
		m.all(func(e *Engine) { err = e.SetDeviceMode(id, mode, model.LevelDeactivate) })
	case 2:
		m.all(func(e *Engine) { err = e.SetDevicePolicy(id, "") })
	case 3:
		m.all(func(e *Engine) { err = e.SetDeviceMode(id, "", 0) })
	}
	if err != nil {
		m.Fatal(err)
	}
}

// TestMixedSettings: histories with gangs and with settings per device are
// deterministic, survive a rebuild, and replay exactly from their events.
func TestMixedSettings(t *testing.T) {
	n := min(*histories/4, 400)
	if raceEnabled || testing.Short() {
		n = 40
	}
	for seed := range uint64(n) {
		s := seeded{rand.New(rand.NewPCG(seed, 4711)), t, seed}
		m := newMachine(s, "", true)
		replay, err := New(m.e.Config())
		if err != nil {
			t.Fatal(err)
		}
		m.e.Observe(func(ev *Event) {
			changes, wake, err := replay.Do(ev)
			if err != nil || ev.Kind == EventDecide && (!slices.Equal(changes, ev.Changes) || wake != ev.Wake) {
				s.Fatalf("replay of %+v: %v, %d, %v", ev, changes, wake, err)
			}
		})
		for range 60 {
			m.step()
			if s.pick("setting", 8) == 0 {
				m.setDevice(1) // an event about device 0 is about the default
			}
			m.decide()
		}
		if !reflect.DeepEqual(replay.Config(), m.e.Config()) {
			s.Fatalf("configuration after replay: %+v, want %+v", replay.Config(), m.e.Config())
		}
	}
}

// TestDeviceSettings: a device keeps its own policy and mode when the default
// changes, loses them on request, and has them before its first queue.
func TestDeviceSettings(t *testing.T) {
	e, err := New(DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	want := func(id model.DeviceID, policy string, mode model.Mode) {
		t.Helper()
		all := e.Config()
		if c := all.On(id); c.Policy != policy || c.Mode != mode {
			t.Errorf("device %d: %s, %s; want %s, %s", id, c.Policy, c.Mode, policy, mode)
		}
	}
	do(e.SetDevicePolicy(1, "fifo"))
	do(e.SetDeviceMode(2, model.ModeOff, 0))
	two := func(device model.DeviceID) (low, high model.QueueID) {
		low, high = model.QueueID{Session: model.SessionID(device) * 10}, model.QueueID{Session: model.SessionID(device)*10 + 1}
		e.AddQueue(1, model.Queue{ID: low, PID: int(low.Session), Device: device, Level: model.LevelInterrupt, Busy: true})
		e.AddQueue(2, model.Queue{ID: high, PID: int(high.Session), Device: device, Level: model.LevelInterrupt, Busy: true, Hint: model.Hint{Priority: 10}})
		return low, high
	}
	suspended := map[model.QueueID]bool{}
	decide := func(now model.Time) {
		changes, _ := e.Decide(now)
		for _, c := range changes {
			suspended[c.Queue] = c.Suspend != 0
		}
	}
	fifoLow, fifoHigh := two(1)
	offLow, offHigh := two(2)
	hpfLow, hpfHigh := two(3)
	decide(3)
	for id, want := range map[model.QueueID]bool{fifoLow: false, fifoHigh: true, offLow: false, offHigh: false, hpfLow: true, hpfHigh: false} {
		if suspended[id] != want {
			t.Errorf("queue %v: suspended %v, want %v", id, suspended[id], want)
		}
	}
	do(e.SetPolicy("rr"))
	do(e.SetMode(model.ModeSuspend, 0))
	want(1, "FIFO", model.ModeSuspend)
	want(2, "RR", model.ModeOff)
	want(3, "RR", model.ModeSuspend)
	do(e.SetDevicePolicy(1, ""))
	do(e.SetDeviceMode(2, "", 0))
	want(1, "RR", model.ModeSuspend)
	want(2, "RR", model.ModeSuspend)
	if n := len(e.Config().Devices); n != 0 {
		t.Errorf("%d settings left", n)
	}
	if e.SetDevicePolicy(1, "nope") == nil || e.SetDeviceMode(1, model.ModeLevel, 0) == nil || e.SetDeviceMode(1, "nope", 0) == nil {
		t.Error("a bad setting was accepted")
	}
	for id := range model.DeviceID(maxSettings) {
		do(e.SetDevicePolicy(id, "fifo"))
	}
	if e.SetDevicePolicy(maxSettings, "fifo") == nil {
		t.Error("no limit of settings")
	}
	if err := e.SetDevicePolicy(0, ""); err != nil {
		t.Error(err)
	}
}

// TestGangAcrossSettings: a gang follows the policy of its leading device where the
// mode suspends, and runs natively on a device in mode off.
func TestGangAcrossSettings(t *testing.T) {
	e, err := New(DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	add := func(session model.SessionID, device model.DeviceID, gang string, priority model.Priority) {
		e.AddQueue(model.Time(session), model.Queue{
			ID: model.QueueID{Session: session}, PID: int(session), Device: device, Level: model.LevelInterrupt, Busy: true,
			Hint: model.Hint{Gang: gang, Priority: priority},
		})
	}
	add(1, 1, "g", 0)
	add(2, 2, "g", 0)
	add(3, 3, "g", 0)
	// More queues on device 3 than elsewhere: it would lead if its mode suspended.
	add(4, 3, "", -5)
	add(5, 3, "", -5)
	// A competitor on device 1 makes it lead the gang and suspends it.
	add(6, 1, "", 10)
	if err := e.SetDeviceMode(3, model.ModeOff, 0); err != nil {
		t.Fatal(err)
	}
	told := map[model.SessionID]model.Level{}
	changes, _ := e.Decide(7)
	for _, c := range changes {
		told[c.Queue.Session] = c.Suspend
	}
	if told[1] == 0 || told[2] == 0 {
		t.Errorf("the gang on devices 1 and 2 at levels %v, %v: want both suspended", told[1], told[2])
	}
	if told[3] != 0 {
		t.Error("suspended on a device in mode off")
	}
	// FIFO on the leading device lets the gang finish on both, once it has its turn.
	if err := e.SetDevicePolicy(1, "FIFO"); err != nil {
		t.Fatal(err)
	}
	for i, busy := range []bool{false, true} {
		now := model.Time(8 + i)
		e.SetBusy(now, model.QueueID{Session: 6}, busy)
		changes, _ = e.Decide(now)
		for _, c := range changes {
			told[c.Queue.Session] = c.Suspend
		}
	}
	if told[1] != 0 || told[2] != 0 || told[6] == 0 {
		t.Errorf("under FIFO: gang at %v and %v, competitor at %v", told[1], told[2], told[6])
	}
}
