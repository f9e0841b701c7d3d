// SPDX-License-Identifier: Apache-2.0

package amd

import "xsched/internal/wire"

// Limits of the driver's arguments, which bound valid client input.
const (
	kfdTypes       = 64 // of CREATE_QUEUE; later drivers know more than today's five
	kfdMaxPriority = 15 // of a queue
	kfdMinRing     = 1024
	kfdMaskBits    = KFDMaskWords * 32
)

func (e *KFDEvent) check() error {
	switch {
	case e.Kind == KFDGone:
		return nil
	case e.Kind != KFDQueue:
		return wire.Malformed("queue event kind %d", e.Kind)
	case e.GPUID == 0, e.Type >= kfdTypes, e.Priority > kfdMaxPriority, e.Late > 1:
		return wire.Malformed("queue %d on GPU %d of type %d with priority %d", e.ID, e.GPUID, e.Type, e.Priority)
	case e.RingBytes < kfdMinRing || e.RingBytes&(e.RingBytes-1) != 0:
		return wire.Malformed("queue %d with a ring of %d bytes", e.ID, e.RingBytes)
	}
	return nil
}

// DecodeKFD returns the events of a KFD packet.
func DecodeKFD(packet []byte) ([]KFDEvent, error) {
	n, err := wire.DecodeList(packet, FrameKFD, OffKFDCount, OffKFDEvents, SizeOfKFDEvent, MaxKFDEvents)
	if err != nil {
		return nil, err
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

// EncodeKFD encodes at most MaxKFDEvents events.
func EncodeKFD(events []KFDEvent) ([]byte, error) {
	b, err := wire.EncodeList(FrameKFD, len(events), OffKFDCount, OffKFDEvents, SizeOfKFDEvent, MaxKFDEvents)
	if err != nil {
		return nil, err
	}
	for i := range events {
		events[i].put(b[OffKFDEvents+i*SizeOfKFDEvent:])
	}
	return b, nil
}

// EncodeOrder encodes an ORDER packet and fills in its frame.
func EncodeOrder(o Order) []byte {
	b := make([]byte, SizeOfOrder)
	o.Frame = wire.NewFrame(FrameOrder, len(b))
	o.put(b)
	return b
}

// DecodeOrder decodes an ORDER packet, as a client does.
func DecodeOrder(packet []byte) (*Order, error) {
	if err := wire.Decode(packet, FrameOrder, SizeOfOrder); err != nil {
		return nil, err
	}
	o := &Order{}
	o.get(packet)
	switch o.Kind {
	case OrderPause, OrderResume:
		if o.Queues == 0 || o.Queues > OrderBoth {
			return nil, wire.Malformed("order for queues %#x", o.Queues)
		}
	case OrderPriority:
		if o.Priority < -1 || o.Priority > kfdMaxPriority {
			return nil, wire.Malformed("order for priority %d", o.Priority)
		}
	case OrderCUMask:
		if o.MaskBits%32 != 0 || o.MaskBits > kfdMaskBits {
			return nil, wire.Malformed("order for a mask of %d bits", o.MaskBits)
		}
	default:
		return nil, wire.Malformed("order kind %d", o.Kind)
	}
	return o, nil
}

// EncodeDone encodes a DONE packet and fills in its frame.
func EncodeDone(d Done) []byte {
	b := make([]byte, SizeOfDone)
	d.Frame = wire.NewFrame(FrameDone, len(b))
	d.put(b)
	return b
}

// DecodeDone decodes a DONE packet.
func DecodeDone(packet []byte) (*Done, error) {
	if err := wire.Decode(packet, FrameDone, SizeOfDone); err != nil {
		return nil, err
	}
	d := &Done{}
	d.get(packet)
	if d.Result > MaxKFDQueues || d.Result < -4095 {
		return nil, wire.Malformed("result %d", d.Result)
	}
	return d, nil
}
