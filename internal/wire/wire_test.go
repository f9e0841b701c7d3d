// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/model"
	"xsched/internal/wire/wiretest"
)

func TestOffsetsMatchC(t *testing.T) {
	wiretest.Offsets(t, "../..", "wire_gen.go", "shim/include/xsched/wire.h",
		Header{}, Queue{}, Progress{}, Frame{}, Hello{}, Welcome{}, Refused{}, Hint{}, HintFrame{}, Request{}, Requests{}, Lease{}, Leases{}, MemoryDevice{}, MemoryOrder{}, Memory{})
}

// TestGateLine: every launch reads the gate, so only the daemon writes the gate's cache line.
func TestGateLine(t *testing.T) {
	const cacheLine = 64
	daemon := map[string]bool{"Gate": true, "InFlight": true, "Batch": true, "Quiet": true, "Tell": true}
	queue := reflect.TypeFor[Queue]()
	for f := range queue.Fields() {
		if !strings.HasPrefix(f.Name, "Rsv") && daemon[f.Name] != (f.Offset < cacheLine) {
			t.Errorf("%s at %d: the daemon's fields, and no others, are in the first %d bytes", f.Name, f.Offset, cacheLine)
		}
	}
	if HeaderBytes%cacheLine != 0 || QueueBytes%cacheLine != 0 || ProgressOffset%cacheLine != 0 || ProgressBytes != cacheLine {
		t.Error("queues and their progress do not begin with a cache line")
	}
}

// TestPageOfVersion4: it ends before the progress, which reads as zero.
func TestPageOfVersion4(t *testing.T) {
	p, fd, err := NewPageVersion(1, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	defer func() { _ = unix.Close(fd) }()
	c := ClientPage{p}
	c.CreateQueue(MaxQueues-1, 0, 1<<8)
	c.SetTally(MaxQueues-1, 3, 4)
	c.SetFed(MaxQueues-1, 5)
	q := p.Queue(MaxQueues - 1)
	if len(p.mem) != PageBytes4 || q.Submitted != 7 || q.FedNS != 5 || q.Launches != 0 || q.Copies != 0 || q.Waits != 0 {
		t.Errorf("%d bytes, %+v", len(p.mem), q)
	}
	if w, err := DecodeWelcome(EncodeWelcome(1, 4)); err != nil || w.PageBytes != PageBytes4 || w.Frame.Version != 4 {
		t.Errorf("%+v, %v", w, err)
	}
}

func TestFrames(t *testing.T) {
	h := Hello{PID: 7, Hint: Hint{Said: HintPriority | HintLevel, Level: 3, Priority: -5}}
	copy(h.Command[:], "a\x1b[2Jb")
	b := EncodeHello(h)
	got, err := DecodeHello(b)
	if err != nil || got.PID != 7 || got.Hint.Priority != -5 || got.CommandString() != "a [2Jb" {
		t.Fatalf("hello: %+v %v", got, err)
	}
	w, err := DecodeWelcome(EncodeWelcome(9, Version))
	if err != nil || w.SessionID != 9 || w.PageBytes != PageBytes {
		t.Fatalf("welcome: %+v %v", w, err)
	}
	ref, err := DecodeRefused(EncodeRefused(3, strings.Repeat("x", 500)))
	if err != nil || ref.ClientVersion != 3 || len(ref.ReasonString()) != ReasonBytes-1 {
		t.Fatalf("refused: %+v %v", ref, err)
	}
}

func TestFramesRefuse(t *testing.T) {
	good := EncodeHello(Hello{})
	edit := func(b []byte, off int, v byte) []byte {
		c := bytes.Clone(b)
		c[off] = v
		return c
	}
	noNUL := bytes.Clone(good)
	for i := OffHelloCommand; i < OffHelloCommand+CommandBytes; i++ {
		noNUL[i] = 'x'
	}
	for name, b := range map[string][]byte{
		"empty": nil, "short": good[:10], "cut": good[:len(good)-1], "long": make([]byte, FrameMaxBytes+1),
		"magic": edit(good, 0, 0), "type": edit(good, 8, 99), "bytes": edit(good, 12, 1),
		"level": edit(good, OffHelloHint+OffHintLevel, 4), "priority": edit(good, OffHelloHint+OffHintPriority+1, 2), "nul": noNUL,
	} {
		if _, err := DecodeHello(b); !errors.Is(err, ErrFrame) {
			t.Errorf("hello %s: %v", name, err)
		}
	}
	var ve *VersionError
	_, err := DecodeHello(edit(good, 4, 77))
	if !errors.As(err, &ve) || ve.Theirs != 77 || ve.Ours != Version || !strings.Contains(err.Error(), "77") {
		t.Errorf("version: %v", err)
	}
}

// A hint of an older, shorter version is widened with zeros, in HELLO and HINT alike.
func TestWiden(t *testing.T) {
	packet := EncodeHello(Hello{Hint: Hint{Said: HintPriority, Priority: 3}})
	at := OffHelloHint + SizeOfHint
	old := append(bytes.Clone(packet[:at-16]), packet[at:]...) // a version whose hint lacks two words
	got := widen(old, at-16, 16)
	if !bytes.Equal(got, packet) {
		t.Error("not the packet of the current version")
	}
	if short := widen(old[:20], at-16, 16); len(short) != 20 {
		t.Error("a short packet was widened")
	}
	for _, version := range []uint32{VersionMin, Version} {
		own := Stamp(bytes.Clone(packet), version)
		if want := SizeOfHello - SizeOfHint + hintBytes[version]; len(own) != want {
			t.Errorf("version %d: %d bytes, want %d", version, len(own), want)
		}
		h, err := DecodeHello(own)
		if err != nil || h.Frame.Version != version || h.Hint.Priority != 3 {
			t.Errorf("version %d: %+v %v", version, h, err)
		}
		if hintBytes[version] == 0 {
			t.Errorf("version %d has no hint", version)
		}
	}
}

// Fed trusts the client's wait time only within the busy period it belongs to.
func TestFed(t *testing.T) {
	for _, c := range []struct {
		name                string
		began, fed, changed uint64
		busy                bool
		want                time.Duration
	}{
		{name: "submitting, then waiting", began: 1000, fed: 3000, changed: 4000, want: 2000},
		{name: "waiting from the start", began: 1000, fed: 1000, changed: 4000, want: 1},
		{name: "waited for an earlier one", began: 1000, fed: 999, changed: 4000},
		{name: "never waited", began: 1000, changed: 4000},
		{name: "from the future", began: 1000, fed: 4001, changed: 4000},
		{name: "busy", began: 1000, fed: 3000, changed: 4000, busy: true},
		{name: "nonsense", began: 1, fed: 1<<64 - 1, changed: 1<<64 - 1, want: 1<<63 - 2},
	} {
		q := QueueView{ChangedNS: c.changed, FedNS: c.fed}
		if c.busy {
			q.Transitions = 1
		}
		if got := q.Fed(c.began); got != c.want {
			t.Errorf("%s: fed for %d, want %d", c.name, got, c.want)
		}
	}
}

func TestPage(t *testing.T) {
	p, fd, err := NewPage(42)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Ftruncate(fd, 0); err == nil {
		t.Error("page can be truncated")
	}
	p2, err := MapPage(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer p2.Release()
	c := ClientPage{p2}
	c.CreateQueue(3, 0, 1<<8|2<<3)
	if !c.SetBusy(3, true, 1234) || c.SetBusy(3, true, 1235) {
		t.Error("SetBusy misreports changes")
	}
	if p.QueueCount() != 4 {
		t.Errorf("count %d", p.QueueCount())
	}
	q := p.Queue(3)
	if !q.InUse() || !q.Busy() || q.ChangedNS != 1234 || q.Device.String() != "0000:01:02.0" {
		t.Errorf("queue %+v", q)
	}
	c.DestroyQueue(3)
	if q := p.Queue(3); q.InUse() {
		t.Errorf("destroyed queue %+v", q)
	}
	p.SetGate(3, GateHeld)
	p.SetLimits(3, 4, 2)
	if held, in, ba := c.Gate(3); !held || in != 4 || ba != 2 {
		t.Error("gate not seen")
	}
	p.SetGate(3, GateBatch) // one that holds no launch
	if held, _, _ := c.Gate(3); held || load32(p.mem, HeaderBytes+3*QueueBytes+OffQueueGate) != GateBatch {
		t.Error("batches not seen")
	}
	p.SetGate(3, GateOpen)
	p.WriteLease(5, 99)
	if e, d := c.Lease(); e != 5 || d != 99 {
		t.Error("lease not seen")
	}
	c.SetRecovered(5)
	if p.RecoveredEpoch() != 5 || p.Recoveries() != 1 {
		t.Error("recovery not seen")
	}
	gpu := q.Device
	lease := p.DeviceLease(2, gpu)
	lease.WriteLease(7, 55)
	c.DeviceLeases(func(i int, device model.DeviceID, e uint64, d model.Time) {
		if i != 2 || device != gpu || e != 7 || d != 55 {
			t.Errorf("lease %d of %v: epoch %d, deadline %d", i, device, e, d)
		}
	})
	c.SetDeviceRecovered(2, 7)
	if lease.RecoveredEpoch() != 7 || p.RecoveredEpoch() != 5 || p.Recoveries() != 1 || p.Counters().Recoveries != 2 {
		t.Error("recovery of a device not seen")
	}
	// Out-of-range slots are ignored.
	for _, i := range []int{-1, MaxQueues, 1 << 40} {
		p.SetGate(i, GateHeld)
		p.SetLimits(i, 1, 1)
		if q := p.Queue(i); q.Generation != 0 {
			t.Error("out of range slot reads as used")
		}
	}
	store64(c.mem, OffHeaderQueueCount, 1<<63)
	if p.QueueCount() != MaxQueues {
		t.Errorf("count %d not bounded", p.QueueCount())
	}
}

func TestMapPageRefusesUnsealed(t *testing.T) {
	fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	_ = unix.Ftruncate(fd, PageBytes)
	if _, err := MapPage(fd); err == nil {
		t.Error("an unsealed page was mapped")
	}
}

func FuzzFrame(f *testing.F) {
	f.Add(EncodeHello(Hello{}))
	f.Add(EncodeWelcome(1, Version))
	f.Add(EncodeHint(HintFrame{Queue: QueueAll, Hint: Hint{Said: HintAll, TimesliceUS: 100}}))
	f.Add(EncodeRefused(2, "no"))
	f.Add(Stamp(EncodeHello(Hello{}), VersionMin))
	f.Add(Stamp(EncodeHint(HintFrame{Queue: QueueAll}), VersionMin))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := DecodeHello(b); err == nil {
			own := Stamp(EncodeHello(*h), h.Frame.Version)
			policy := OffHelloHint + hintBytes[h.Frame.Version] // bytes after the end of a text differ
			if len(own) != len(b) || !bytes.Equal(own[:policy], b[:policy]) {
				t.Error("hello does not round-trip")
			}
			_, _ = h.CommandString(), h.PolicyString()
		}
		if h, err := DecodeHint(b); err == nil {
			if !bytes.Equal(Stamp(EncodeHint(*h), h.Frame.Version), b) {
				t.Error("hint does not round-trip")
			}
		}
		_, _ = DecodeWelcome(b)
		if r, err := DecodeRefused(b); err == nil {
			_ = r.ReasonString()
		}
	})
}

func FuzzPage(f *testing.F) {
	f.Add([]byte{1, 2, 3}, 0, 3)
	f.Add(bytes.Repeat([]byte{0xff}, 512), HeaderBytes, -1)
	f.Add(append([]byte{0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}, bytes.Repeat([]byte{0xff}, 240)...), MemoryOffset, 0)
	p, fd, err := NewPage(1)
	if err != nil {
		f.Fatal(err)
	}
	_ = unix.Close(fd)
	f.Fuzz(func(t *testing.T, b []byte, at, index int) {
		if at < 0 || at >= PageBytes {
			at = 0
		}
		copy(p.mem[at:], b)
		n := p.QueueCount()
		if n < 0 || n > MaxQueues {
			t.Fatalf("count %d", n)
		}
		for i := range n {
			q := p.Queue(i)
			_ = q.Device.String()
		}
		_ = p.Queue(index)
		p.SetGate(index, GateOpen)
		p.SetLimits(index, 1, 1)
		_ = p.Counters()
		_ = p.RecoveredEpoch()
		for _, m := range p.Memory() {
			if m.Away > m.Movable || m.Movable > m.Used || m.Used > memoryMost || m.Room > memoryMost || m.Residency > Returning || m.Result > MoveRefused || m.MoveBegun < 0 {
				t.Fatalf("%+v", m)
			}
			p.SetMemoryDemand(&m, &MemoryDemand{Sequence: 1, Want: WantOut})
		}
		seen := 0
		count, lost := p.Marks(uint64(index), func(Mark) { seen++ })
		if after := uint64(index); seen > RequestRing || count > after && uint64(seen)+lost != count-after {
			t.Fatalf("%d marks, %d lost, of %d", seen, lost, count)
		}
	})
}

// A page has the quota and the memory of each device; one of version 4 has neither.
func TestMemory(t *testing.T) {
	for _, version := range []uint32{VersionMin, Version} {
		p, fd, err := NewPageVersion(1, version)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(fd)
		if got := load64(p.mem, OffHeaderMemoryQuota); got != 0 || p.Memory() != nil {
			t.Errorf("version %d: a new page has quota %d and memory %v", version, got, p.Memory())
		}
		p.SetMemoryQuota(40 << 30)
		if got := load64(p.mem, OffHeaderMemoryQuota); version == Version && got != 40<<30 || version < Version && got != 0 {
			t.Errorf("version %d: quota %d", version, got)
		}
		if version == Version {
			p.SetMemoryQuota(0)
			if got := load64(p.mem, OffHeaderMemoryQuota); got != MemoryNoQuota {
				t.Errorf("no quota is %#x", got)
			}
			for i, used := range []uint64{5, 1<<64 - 1} { // the second is nonsense
				at := MemoryOffset + i*SizeOfMemoryDevice
				store32(p.mem, at+OffMemoryDevicePCIBusSlot, uint32(i+1)<<8)
				store64(p.mem, at+OffMemoryDeviceUsed, used)
				store64(p.mem, at+OffMemoryDeviceKnown, 1)
			}
			got := p.Memory()
			if len(got) != 2 || got[0].Used != 5 || got[0].Device != model.MakeDeviceID(0, 1, 0, 0) || got[1].Used < 0 {
				t.Errorf("%+v", got)
			}
		}
		p.Release()
	}
}
