// SPDX-License-Identifier: Apache-2.0

// Package wire is the daemon's side of shim/include/xsched/wire.h: the frames
// of the client socket and the page shared with each client. What comes from a
// client is hostile until checked here.
package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrFrame marks every packet that is not a well-formed frame.
var ErrFrame = errors.New("malformed frame")

// VersionError is a peer that speaks another version of the contract.
type VersionError struct {
	Theirs, Ours uint32
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("wire version %d is not ours, %d", e.Theirs, e.Ours)
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrFrame, fmt.Sprintf(format, args...))
}

// DecodeFrame checks the common start of a packet and returns it. The version
// is checked before the length and the type: only the start is the same in all versions.
func DecodeFrame(packet []byte) (Frame, error) {
	var f Frame
	if len(packet) < SizeOfFrame {
		return f, malformed("%d bytes, want at least %d", len(packet), SizeOfFrame)
	}
	if len(packet) > FrameMaxBytes {
		return f, malformed("%d bytes, most is %d", len(packet), FrameMaxBytes)
	}
	f.get(packet)
	switch {
	case f.Magic != FrameMagic:
		return f, malformed("magic %#x", f.Magic)
	case f.Version != Version:
		return f, &VersionError{Theirs: f.Version, Ours: Version}
	case int(f.Bytes) != len(packet):
		return f, malformed("says %d bytes, has %d", f.Bytes, len(packet))
	case f.Type < FrameHello || f.Type > FrameHint && GroupOf(f.Type) == 0 || GroupOf(f.Type) > maxGroup:
		return f, malformed("type %d", f.Type)
	}
	return f, nil
}

// maxGroup bounds the number of drivers.
const maxGroup = 255

// GroupOf is the driver that a frame type belongs to; 0: none.
func GroupOf(typ uint32) uint32 { return typ / FrameGroup }

func decode(packet []byte, typ uint32, size int) error {
	f, err := DecodeFrame(packet)
	if err != nil {
		return err
	}
	if f.Type != typ {
		return malformed("type %d, want %d", f.Type, typ)
	}
	if len(packet) != size {
		return malformed("type %d with %d bytes, want %d", typ, len(packet), size)
	}
	return nil
}

// DecodeHello reads a HELLO packet.
func DecodeHello(packet []byte) (*Hello, error) {
	if err := decode(packet, FrameHello, SizeOfHello); err != nil {
		return nil, err
	}
	h := &Hello{}
	h.get(packet)
	switch {
	case h.Scheduler > SchedulerGlobal:
		return nil, malformed("scheduler %d", h.Scheduler)
	case bytes.IndexByte(h.Policy[:], 0) < 0:
		return nil, malformed("policy is not NUL-terminated")
	case bytes.IndexByte(h.Command[:], 0) < 0:
		return nil, malformed("command is not NUL-terminated")
	}
	if err := h.Hint.check(); err != nil {
		return nil, err
	}
	return h, nil
}

// CommandString is the command up to its NUL, with control characters taken out
// because it ends up on terminals.
func (v *Hello) CommandString() string { return cString(v.Command[:]) }

// ReasonString is the reason up to its NUL.
func (v *Refused) ReasonString() string { return cString(v.Reason[:]) }

func cString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	clean := make([]byte, 0, len(b))
	for _, c := range b {
		if c < ' ' || c == 0x7f {
			c = ' '
		}
		clean = append(clean, c)
	}
	return string(bytes.ToValidUTF8(clean, []byte("?")))
}

// DecodeRM reads an RM packet and returns its events.
func DecodeRM(packet []byte) ([]RMEvent, error) {
	f, err := DecodeFrame(packet)
	if err != nil {
		return nil, err
	}
	if f.Type != FrameRM {
		return nil, malformed("type %d, want %d", f.Type, FrameRM)
	}
	if len(packet) < OffRMEvents {
		return nil, malformed("RM frame with %d bytes", len(packet))
	}
	n := binary.NativeEndian.Uint32(packet[OffRMCount:])
	if n == 0 || n > MaxRMEvents {
		return nil, malformed("%d RM events", n)
	}
	if want := OffRMEvents + int(n)*SizeOfRMEvent; len(packet) != want {
		return nil, malformed("%d RM events in %d bytes, want %d", n, len(packet), want)
	}
	events := make([]RMEvent, n)
	for i := range events {
		events[i].get(packet[OffRMEvents+i*SizeOfRMEvent:])
		if k := events[i].Kind; k < RMClient || k > RMTimeslice {
			return nil, malformed("RM event kind %d", k)
		}
	}
	return events, nil
}

// DecodeWelcome reads a WELCOME packet.
func DecodeWelcome(packet []byte) (*Welcome, error) {
	if err := decode(packet, FrameWelcome, SizeOfWelcome); err != nil {
		return nil, err
	}
	w := &Welcome{}
	w.get(packet)
	return w, nil
}

// DecodeRefused reads a REFUSED packet, of any version: it is how versions tell each other apart.
func DecodeRefused(packet []byte) (*Refused, error) {
	if len(packet) != SizeOfRefused {
		return nil, malformed("REFUSED with %d bytes", len(packet))
	}
	r := &Refused{}
	r.get(packet)
	if r.Frame.Magic != FrameMagic || r.Frame.Type != FrameRefused {
		return nil, malformed("not REFUSED")
	}
	return r, nil
}

func frame(typ uint32, size int) Frame {
	return Frame{Magic: FrameMagic, Version: Version, Type: typ, Bytes: uint32(size)}
}

// EncodeHello makes a HELLO packet; the frame is filled in.
func EncodeHello(h Hello) []byte {
	b := make([]byte, SizeOfHello)
	h.Frame = frame(FrameHello, len(b))
	h.Command[CommandBytes-1], h.Policy[PolicyBytes-1] = 0, 0
	h.put(b)
	return b
}

// EncodeWelcome makes a WELCOME packet.
func EncodeWelcome(session uint64) []byte {
	b := make([]byte, SizeOfWelcome)
	w := Welcome{Frame: frame(FrameWelcome, len(b)), SessionID: session, PageBytes: PageBytes}
	w.put(b)
	return b
}

// EncodeRefused makes a REFUSED packet; a reason that is too long is cut.
func EncodeRefused(clientVersion uint32, reason string) []byte {
	b := make([]byte, SizeOfRefused)
	r := Refused{
		Frame: frame(FrameRefused, len(b)), DaemonVersion: Version, ClientVersion: clientVersion,
	}
	copy(r.Reason[:ReasonBytes-1], reason)
	r.put(b)
	return b
}

// EncodeRM makes an RM packet of at most MaxRMEvents events.
func EncodeRM(events []RMEvent) ([]byte, error) {
	if len(events) == 0 || len(events) > MaxRMEvents {
		return nil, malformed("%d RM events", len(events))
	}
	b := make([]byte, OffRMEvents+len(events)*SizeOfRMEvent)
	f := frame(FrameRM, len(b))
	f.put(b)
	binary.NativeEndian.PutUint32(b[OffRMCount:], uint32(len(events)))
	for i := range events {
		events[i].put(b[OffRMEvents+i*SizeOfRMEvent:])
	}
	return b, nil
}
