// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"bytes"
	"errors"
	"testing"

	"xsched/internal/wire"
	"xsched/internal/wire/wiretest"
)

func TestOffsetsMatchC(t *testing.T) {
	wiretest.Offsets(t, "../../..", "frames_gen.go", "shim/driver/kfd/frames.h", KFDEvent{}, KFD{}, Order{}, Done{})
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
		if _, err := DecodeKFD(b); !errors.Is(err, wire.ErrFrame) {
			t.Errorf("queue with bad %s: %v", name, err)
		}
	}
	for name, o := range map[string]Order{
		"kind": {Kind: 9}, "queues": {Kind: OrderPause, Queues: 4}, "no queues": {Kind: OrderResume},
		"priority": {Kind: OrderPriority, Priority: 16}, "mask": {Kind: OrderCUMask, MaskBits: 33}, "long mask": {Kind: OrderCUMask, MaskBits: 2048},
	} {
		if _, err := DecodeOrder(EncodeOrder(o)); !errors.Is(err, wire.ErrFrame) {
			t.Errorf("order with bad %s: %v", name, err)
		}
	}
	for _, result := range []int32{MaxKFDQueues + 1, -4096} {
		if _, err := DecodeDone(EncodeDone(Done{Result: result})); !errors.Is(err, wire.ErrFrame) {
			t.Errorf("result %d: %v", result, err)
		}
	}
	cut := bytes.Clone(b[:len(b)-1])
	for name, b := range map[string][]byte{"cut": cut, "empty": b[:OffKFDEvents], "hello": wire.EncodeHello(wire.Hello{})} {
		if _, err := DecodeKFD(b); !errors.Is(err, wire.ErrFrame) {
			t.Errorf("kfd %s: %v", name, err)
		}
	}
}

func FuzzFrames(f *testing.F) {
	b, _ := EncodeKFD([]KFDEvent{{Kind: KFDQueue, GPUID: 1, RingBytes: 4096}, {Kind: KFDGone}})
	f.Add(b)
	f.Add(EncodeOrder(Order{Kind: OrderCUMask, MaskBits: 64}))
	f.Add(EncodeDone(Done{Result: 3}))
	f.Add(wire.Stamp(EncodeDone(Done{Result: 3}), wire.Version-1))
	f.Fuzz(func(t *testing.T, b []byte) {
		if ev, err := DecodeKFD(b); err == nil {
			if again, err := EncodeKFD(ev); err != nil || len(again) != len(b) {
				t.Error("queue events do not round-trip")
			}
		}
		if o, err := DecodeOrder(b); err == nil && !bytes.Equal(wire.Stamp(EncodeOrder(*o), o.Frame.Version), b) {
			t.Error("order does not round-trip")
		}
		if d, err := DecodeDone(b); err == nil && !bytes.Equal(wire.Stamp(EncodeDone(*d), d.Frame.Version), b) {
			t.Error("answer does not round-trip")
		}
	})
}
