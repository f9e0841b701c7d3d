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

func malformed(format string, args ...any) error { return Malformed(format, args...) }

// Malformed is an ErrFrame with its cause.
func Malformed(format string, args ...any) error {
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

// Get and Put are for the frames of drivers, which start with a Frame.
func (v *Frame) Get(b []byte) { v.get(b) }

// Put writes v to b.
func (v *Frame) Put(b []byte) { v.put(b) }

// Decode checks that a packet is a frame of one type and size.
func Decode(packet []byte, typ uint32, size int) error { return decode(packet, typ, size) }

// DecodeList checks a frame that holds a number of entries behind its head and returns that number.
func DecodeList(packet []byte, typ uint32, offCount, offEntries, entry, most int) (int, error) {
	f, err := DecodeFrame(packet)
	if err != nil {
		return 0, err
	}
	if f.Type != typ {
		return 0, malformed("type %d, want %d", f.Type, typ)
	}
	if len(packet) < offEntries {
		return 0, malformed("type %d with %d bytes", typ, len(packet))
	}
	n := binary.NativeEndian.Uint32(packet[offCount:])
	if n == 0 || n > uint32(most) {
		return 0, malformed("type %d with %d entries", typ, n)
	}
	if want := offEntries + int(n)*entry; len(packet) != want {
		return 0, malformed("%d entries in %d bytes, want %d", n, len(packet), want)
	}
	return int(n), nil
}

// EncodeList makes the start of such a frame; the caller fills in the entries.
func EncodeList(typ uint32, n, offCount, offEntries, entry, most int) ([]byte, error) {
	if n == 0 || n > most {
		return nil, malformed("%d entries", n)
	}
	b := make([]byte, offEntries+n*entry)
	f := frame(typ, len(b))
	f.put(b)
	binary.NativeEndian.PutUint32(b[offCount:], uint32(n))
	return b, nil
}

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

// NewFrame is the start of a frame.
func NewFrame(typ uint32, size int) Frame { return frame(typ, size) }

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
