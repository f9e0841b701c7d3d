// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestOffsetsMatchC asks the C compiler where everything is.
func TestOffsetsMatchC(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("needs gcc")
	}
	gen, err := os.ReadFile("wire_gen.go")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\s*((?:SizeOf|Off)\w+)\s*=\s*(\d+)$`).FindAllStringSubmatch(string(gen), -1) {
		want[m[1]] = m[2]
	}
	var c strings.Builder
	c.WriteString("#include <stddef.h>\n#include <stdio.h>\n#include \"xsched/wire.h\"\nint main(void){\n")
	var hdr []byte
	for _, name := range []string{"wire.h", "wire_hints_gen.h"} {
		text, err := os.ReadFile("../../shim/include/xsched/" + name)
		if err != nil {
			t.Fatal(err)
		}
		hdr = append(hdr, text...)
	}
	for _, st := range []any{Header{}, Queue{}, Frame{}, Hello{}, Welcome{}, Refused{}, RMEvent{}, RM{}, Hint{}, HintFrame{}, Request{}, Requests{}, KFDEvent{}, KFD{}, Order{}, Done{}} {
		rt := reflect.TypeOf(st)
		cname := "xsw_" + snake(rt.Name())
		fmt.Fprintf(&c, "printf(\"SizeOf%s %%zu\\n\", sizeof(struct %s));\n", rt.Name(), cname)
		if want["SizeOf"+rt.Name()] != fmt.Sprint(rt.Size()) {
			t.Errorf("Go lays %s out in %d bytes, generated %s", rt.Name(), rt.Size(), want["SizeOf"+rt.Name()])
		}
		for f := range rt.Fields() {
			cf := snake(f.Name)
			if strings.HasPrefix(cf, "rsv") {
				cf = "_" + cf
			}
			if !bytes.Contains(hdr, []byte(cf)) {
				t.Errorf("field %s.%s has no C name %s", rt.Name(), f.Name, cf)
			}
			fmt.Fprintf(&c, "printf(\"Off%s%s %%zu\\n\", offsetof(struct %s, %s));\n", rt.Name(), f.Name, cname, cf)
			if want["Off"+rt.Name()+f.Name] != fmt.Sprint(f.Offset) {
				t.Errorf("Go has %s.%s at %d, generated %s", rt.Name(), f.Name, f.Offset, want["Off"+rt.Name()+f.Name])
			}
		}
	}
	c.WriteString("return 0;}\n")
	dir := t.TempDir()
	src, bin := filepath.Join(dir, "o.c"), filepath.Join(dir, "o")
	if err := os.WriteFile(src, []byte(c.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(gcc, "-std=c11", "-I../../shim/include", "-o", bin, src).CombinedOutput(); err != nil {
		t.Fatalf("compile: %v\n%s", err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.SplitSeq(strings.TrimSpace(string(out)), "\n") {
		name, val, _ := strings.Cut(line, " ")
		if want[name] != val {
			t.Errorf("%s: C says %s, Go says %s", name, val, want[name])
		}
		n++
	}
	if n != len(want) {
		t.Errorf("C printed %d values, the generated file has %d", n, len(want))
	}
}

func snake(s string) string {
	for _, w := range []string{"PCI", "PID", "RM", "ID", "NS", "US", "SLO", "KFD", "GPU"} {
		s = strings.ReplaceAll(s, w, w[:1]+strings.ToLower(w[1:]))
	}
	return strings.ToLower(regexp.MustCompile(`([a-z0-9])([A-Z])`).ReplaceAllString(s, "${1}_${2}"))
}

func TestFrames(t *testing.T) {
	h := Hello{PID: 7, Hint: Hint{Said: HintPriority | HintLevel, Level: 3, Priority: -5}}
	copy(h.Command[:], "a\x1b[2Jb")
	b := EncodeHello(h)
	got, err := DecodeHello(b)
	if err != nil || got.PID != 7 || got.Hint.Priority != -5 || got.CommandString() != "a [2Jb" {
		t.Fatalf("hello: %+v %v", got, err)
	}
	ev := []RMEvent{{Kind: RMAlloc, Client: 1, Parent: 2, Object: 3, ObjectClass: 4, Value: 5}, {Kind: RMFree}}
	r, err := EncodeRM(ev)
	if err != nil {
		t.Fatal(err)
	}
	back, err := DecodeRM(r)
	if err != nil || !reflect.DeepEqual(back, ev) {
		t.Fatalf("rm: %v %v", back, err)
	}
	w, err := DecodeWelcome(EncodeWelcome(9))
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
	rm, _ := EncodeRM([]RMEvent{{Kind: RMFree}})
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
	for name, b := range map[string][]byte{
		"count 0": edit(rm, OffRMCount, 0), "count 65": edit(rm, OffRMCount, 65), "count 2": edit(rm, OffRMCount, 2),
		"kind": edit(rm, OffRMEvents, 9), "hello": good,
	} {
		if _, err := DecodeRM(b); !errors.Is(err, ErrFrame) {
			t.Errorf("rm %s: %v", name, err)
		}
	}
	var ve *VersionError
	_, err := DecodeHello(edit(good, 4, 77))
	if !errors.As(err, &ve) || ve.Theirs != 77 || ve.Ours != Version || !strings.Contains(err.Error(), "77") {
		t.Errorf("version: %v", err)
	}
}

func TestQueueFrames(t *testing.T) {
	queue := KFDEvent{Kind: KFDQueue, ID: 3, GPUID: 63420, Type: 2, Ring: 0x7f0000000000, RingBytes: 4096, Priority: 7, Late: 1}
	b, err := EncodeKFD([]KFDEvent{queue, {Kind: KFDGone, ID: 4}})
	if err != nil {
		t.Fatal(err)
	}
	back, err := DecodeKFD(b)
	if err != nil || len(back) != 2 || back[0] != queue || back[1].ID != 4 {
		t.Fatalf("kfd: %+v %v", back, err)
	}
	o, err := DecodeOrder(EncodeOrder(Order{Sequence: 9, Kind: OrderPause, GPUID: 1, Queues: OrderCompute}))
	if err != nil || o.Sequence != 9 || o.GPUID != 1 {
		t.Fatalf("order: %+v %v", o, err)
	}
	d, err := DecodeDone(EncodeDone(Done{Sequence: 9, Result: -110, BeginNS: 1, EndNS: 2}))
	if err != nil || d.Result != -110 || d.EndNS != 2 {
		t.Fatalf("done: %+v %v", d, err)
	}
	for name, e := range map[string]KFDEvent{
		"kind": {Kind: 3}, "no GPU": {Kind: KFDQueue, RingBytes: 4096}, "type": {Kind: KFDQueue, GPUID: 1, Type: 64, RingBytes: 4096},
		"ring": {Kind: KFDQueue, GPUID: 1, RingBytes: 4097}, "no ring": {Kind: KFDQueue, GPUID: 1},
		"priority": {Kind: KFDQueue, GPUID: 1, RingBytes: 4096, Priority: 16}, "late": {Kind: KFDQueue, GPUID: 1, RingBytes: 4096, Late: 2},
	} {
		b, _ := EncodeKFD([]KFDEvent{e})
		if _, err := DecodeKFD(b); !errors.Is(err, ErrFrame) {
			t.Errorf("queue with bad %s: %v", name, err)
		}
	}
	for name, o := range map[string]Order{
		"kind": {Kind: 9}, "queues": {Kind: OrderPause, Queues: 4}, "no queues": {Kind: OrderResume},
		"priority": {Kind: OrderPriority, Priority: 16}, "mask": {Kind: OrderCUMask, MaskBits: 33}, "long mask": {Kind: OrderCUMask, MaskBits: 2048},
	} {
		if _, err := DecodeOrder(EncodeOrder(o)); !errors.Is(err, ErrFrame) {
			t.Errorf("order with bad %s: %v", name, err)
		}
	}
	for _, result := range []int32{MaxKFDQueues + 1, -4096} {
		if _, err := DecodeDone(EncodeDone(Done{Result: result})); !errors.Is(err, ErrFrame) {
			t.Errorf("result %d: %v", result, err)
		}
	}
	cut := bytes.Clone(b[:len(b)-1])
	for name, b := range map[string][]byte{"cut": cut, "empty": b[:OffKFDEvents], "hello": EncodeHello(Hello{})} {
		if _, err := DecodeKFD(b); !errors.Is(err, ErrFrame) {
			t.Errorf("kfd %s: %v", name, err)
		}
	}
}

// What a client says about when it began to wait is believed only inside the busy time that it belongs to.
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
	p.SetGate(3, true)
	p.SetLimits(3, 4, 2)
	if held, in, ba := c.Gate(3); !held || in != 4 || ba != 2 {
		t.Error("gate not seen")
	}
	p.SetGate(3, false)
	p.WriteLease(5, 99)
	if e, d := c.Lease(); e != 5 || d != 99 {
		t.Error("lease not seen")
	}
	c.SetRecovered(5)
	if p.RecoveredEpoch() != 5 || p.Recoveries() != 1 {
		t.Error("recovery not seen")
	}
	// Out of range: nothing happens.
	for _, i := range []int{-1, MaxQueues, 1 << 40} {
		p.SetGate(i, true)
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
	rm, _ := EncodeRM([]RMEvent{{Kind: RMClient}, {Kind: RMAlloc}})
	f.Add(rm)
	f.Add(EncodeWelcome(1))
	f.Add(EncodeHint(HintFrame{Queue: QueueAll, Hint: Hint{Said: HintAll, TimesliceUS: 100}}))
	f.Add(EncodeRefused(2, "no"))
	kfd, _ := EncodeKFD([]KFDEvent{{Kind: KFDQueue, GPUID: 1, RingBytes: 4096}, {Kind: KFDGone}})
	f.Add(kfd)
	f.Add(EncodeOrder(Order{Kind: OrderCUMask, MaskBits: 64}))
	f.Add(EncodeDone(Done{Result: 3}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := DecodeHello(b); err == nil {
			if !bytes.Equal(EncodeHello(*h)[:OffHelloPolicy], b[:OffHelloPolicy]) {
				t.Error("hello does not round-trip")
			}
			_, _ = h.CommandString(), h.PolicyString()
		}
		if ev, err := DecodeRM(b); err == nil {
			if len(ev) > MaxRMEvents {
				t.Error("too many events")
			}
		}
		if h, err := DecodeHint(b); err == nil {
			if !bytes.Equal(EncodeHint(*h), b) {
				t.Error("hint does not round-trip")
			}
		}
		if ev, err := DecodeKFD(b); err == nil {
			if again, err := EncodeKFD(ev); err != nil || len(again) != len(b) {
				t.Error("queue events do not round-trip")
			}
		}
		if o, err := DecodeOrder(b); err == nil && !bytes.Equal(EncodeOrder(*o), b) {
			t.Error("order does not round-trip")
		}
		if d, err := DecodeDone(b); err == nil && !bytes.Equal(EncodeDone(*d), b) {
			t.Error("answer does not round-trip")
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
		p.SetGate(index, false)
		p.SetLimits(index, 1, 1)
		_ = p.Counters()
		_ = p.RecoveredEpoch()
		seen := 0
		count, lost := p.Marks(uint64(index), func(Mark) { seen++ })
		if after := uint64(index); seen > RequestRing || count > after && uint64(seen)+lost != count-after {
			t.Fatalf("%d marks, %d lost, of %d", seen, lost, count)
		}
	})
}
