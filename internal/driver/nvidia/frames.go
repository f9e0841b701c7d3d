// SPDX-License-Identifier: Apache-2.0

package nvidia

import "xsched/internal/wire"

// DecodeRM returns the events of an RM packet.
func DecodeRM(packet []byte) ([]RMEvent, error) {
	n, err := wire.DecodeList(packet, FrameRM, OffRMCount, OffRMEvents, SizeOfRMEvent, MaxRMEvents)
	if err != nil {
		return nil, err
	}
	events := make([]RMEvent, n)
	for i := range events {
		events[i].get(packet[OffRMEvents+i*SizeOfRMEvent:])
		if k := events[i].Kind; k < RMClient || k > RMTimeslice {
			return nil, wire.Malformed("RM event kind %d", k)
		}
	}
	return events, nil
}

// EncodeRM encodes at most MaxRMEvents events.
func EncodeRM(events []RMEvent) ([]byte, error) {
	b, err := wire.EncodeList(FrameRM, len(events), OffRMCount, OffRMEvents, SizeOfRMEvent, MaxRMEvents)
	if err != nil {
		return nil, err
	}
	for i := range events {
		events[i].put(b[OffRMEvents+i*SizeOfRMEvent:])
	}
	return b, nil
}
