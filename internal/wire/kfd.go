// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// This file is AMD's part of the contract: queues that a process announces, and orders
// that it carries out on them.

// Limits of what the driver takes, and so of what a client can truly say.
const (
	kfdTypes       = 64 // of CREATE_QUEUE: later drivers know more than today's five
	kfdMaxPriority = 15 // of a queue
	kfdMinRing     = 1024
	kfdMaskBits    = KFDMaskWords * 32
)

func (e *KFDEvent) check() error {
	switch {
	case e.Kind == KFDGone:
		return nil
	case e.Kind != KFDQueue:
		return malformed("queue event kind %d", e.Kind)
	case e.GPUID == 0, e.Type >= kfdTypes, e.Priority > kfdMaxPriority, e.Late > 1:
		return malformed("queue %d on GPU %d of type %d with priority %d", e.ID, e.GPUID, e.Type, e.Priority)
	case e.RingBytes < kfdMinRing || e.RingBytes&(e.RingBytes-1) != 0:
		return malformed("queue %d with a ring of %d bytes", e.ID, e.RingBytes)
	}
	return nil
}

// DecodeKFD reads a KFD packet and returns its events.
func DecodeKFD(packet []byte) ([]KFDEvent, error) {
	f, err := DecodeFrame(packet)
	if err != nil {
		return nil, err
	}
	if f.Type != FrameKFD {
		return nil, malformed("type %d, want %d", f.Type, FrameKFD)
	}
	if len(packet) < OffKFDEvents {
		return nil, malformed("KFD frame with %d bytes", len(packet))
	}
	n := binary.NativeEndian.Uint32(packet[OffKFDCount:])
	if n == 0 || n > MaxKFDEvents {
		return nil, malformed("%d queue events", n)
	}
	if want := OffKFDEvents + int(n)*SizeOfKFDEvent; len(packet) != want {
		return nil, malformed("%d queue events in %d bytes, want %d", n, len(packet), want)
	}
	events := make([]KFDEvent, n)
	for i := range events {
		events[i].get(packet[OffKFDEvents+i*SizeOfKFDEvent:])
		if err := events[i].check(); err != nil {
			return nil, err
		}
	}
	return events, nil
}

// EncodeKFD makes a KFD packet of at most MaxKFDEvents events.
func EncodeKFD(events []KFDEvent) ([]byte, error) {
	if len(events) == 0 || len(events) > MaxKFDEvents {
		return nil, malformed("%d queue events", len(events))
	}
	b := make([]byte, OffKFDEvents+len(events)*SizeOfKFDEvent)
	f := frame(FrameKFD, len(b))
	f.put(b)
	binary.NativeEndian.PutUint32(b[OffKFDCount:], uint32(len(events)))
	for i := range events {
		events[i].put(b[OffKFDEvents+i*SizeOfKFDEvent:])
	}
	return b, nil
}

// EncodeOrder makes an ORDER packet; the frame is filled in.
func EncodeOrder(o Order) []byte {
	b := make([]byte, SizeOfOrder)
	o.Frame = frame(FrameOrder, len(b))
	o.put(b)
	return b
}

// DecodeOrder reads an ORDER packet, as a client does.
func DecodeOrder(packet []byte) (*Order, error) {
	if err := decode(packet, FrameOrder, SizeOfOrder); err != nil {
		return nil, err
	}
	o := &Order{}
	o.get(packet)
	switch o.Kind {
	case OrderPause, OrderResume:
		if o.Queues == 0 || o.Queues > OrderBoth {
			return nil, malformed("order for queues %#x", o.Queues)
		}
	case OrderPriority:
		if o.Priority < -1 || o.Priority > kfdMaxPriority {
			return nil, malformed("order for priority %d", o.Priority)
		}
	case OrderCUMask:
		if o.MaskBits%32 != 0 || o.MaskBits > kfdMaskBits {
			return nil, malformed("order for a mask of %d bits", o.MaskBits)
		}
	default:
		return nil, malformed("order kind %d", o.Kind)
	}
	return o, nil
}

// EncodeDone makes a DONE packet; the frame is filled in.
func EncodeDone(d Done) []byte {
	b := make([]byte, SizeOfDone)
	d.Frame = frame(FrameDone, len(b))
	d.put(b)
	return b
}

// DecodeDone reads a DONE packet.
func DecodeDone(packet []byte) (*Done, error) {
	if err := decode(packet, FrameDone, SizeOfDone); err != nil {
		return nil, err
	}
	d := &Done{}
	d.get(packet)
	if d.Result > MaxKFDQueues || d.Result < -4095 {
		return nil, malformed("result %d", d.Result)
	}
	return d, nil
}
