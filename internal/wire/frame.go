// SPDX-License-Identifier: Apache-2.0

// Package wire is the daemon's side of shim/include/xsched/wire.h: the frames of the client socket
// and the page shared with each client. Client input is hostile until validated here.
package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// ErrFrame marks every malformed packet.
var ErrFrame = errors.New("malformed frame")

// VersionError reports a peer with another version of the contract.
type VersionError struct {
	Theirs, Ours uint32
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("wire version %d, want %d", e.Theirs, e.Ours)
}

// Malformed is an ErrFrame with its cause.
func Malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrFrame, fmt.Sprintf(format, args...))
}

// DecodeFrame validates and returns the common header of a packet of a supported version. The
// version comes before length and type, because only the header is the same in all versions.
func DecodeFrame(packet []byte) (Frame, error) {
	var f Frame
	if len(packet) < SizeOfFrame {
		return f, Malformed("%d bytes, want at least %d", len(packet), SizeOfFrame)
	}
	if len(packet) > FrameMaxBytes {
		return f, Malformed("%d bytes, want at most %d", len(packet), FrameMaxBytes)
	}
	f.get(packet)
	switch {
	case f.Magic != FrameMagic:
		return f, Malformed("magic %#x", f.Magic)
	case f.Version < VersionMin || f.Version > Version:
		return f, &VersionError{Theirs: f.Version, Ours: Version}
	case int(f.Bytes) != len(packet):
		return f, Malformed("header says %d bytes, packet has %d", f.Bytes, len(packet))
	case f.Type < FrameHello || f.Type > FrameHint && GroupOf(f.Type) == 0 || GroupOf(f.Type) > maxGroup:
		return f, Malformed("type %d", f.Type)
	}
	return f, nil
}

// maxGroup bounds the number of drivers.
const maxGroup = 255

// GroupOf returns the driver group of a frame type; 0: none.
func GroupOf(typ uint32) uint32 { return typ / FrameGroup }

// Get decodes v for a driver's frame.
func (v *Frame) Get(b []byte) { v.get(b) }

// Put encodes v for a driver's frame.
func (v *Frame) Put(b []byte) { v.put(b) }

// Decode checks a packet's type and size.
func Decode(packet []byte, typ uint32, size int) error {
	f, err := DecodeFrame(packet)
	if err != nil {
		return err
	}
	if f.Type != typ {
		return Malformed("type %d, want %d", f.Type, typ)
	}
	if len(packet) != size {
		return Malformed("type %d with %d bytes, want %d", typ, len(packet), size)
	}
	return nil
}

// DecodeList validates a frame with a list of entries and returns their number.
func DecodeList(packet []byte, typ uint32, offCount, offEntries, entry, most int) (int, error) {
	f, err := DecodeFrame(packet)
	if err != nil {
		return 0, err
	}
	if f.Type != typ {
		return 0, Malformed("type %d, want %d", f.Type, typ)
	}
	if len(packet) < offEntries {
		return 0, Malformed("type %d with %d bytes", typ, len(packet))
	}
	n := binary.NativeEndian.Uint32(packet[offCount:])
	if n == 0 || n > uint32(most) {
		return 0, Malformed("type %d with %d entries", typ, n)
	}
	if want := offEntries + int(n)*entry; len(packet) != want {
		return 0, Malformed("%d entries in %d bytes, want %d", n, len(packet), want)
	}
	return int(n), nil
}

// EncodeList encodes the header of such a frame; the caller fills in the entries.
func EncodeList(typ uint32, n, offCount, offEntries, entry, most int) ([]byte, error) {
	if n == 0 || n > most {
		return nil, Malformed("%d entries", n)
	}
	b := make([]byte, offEntries+n*entry)
	f := NewFrame(typ, len(b))
	f.put(b)
	binary.NativeEndian.PutUint32(b[offCount:], uint32(n))
	return b, nil
}

// Stamp gives a packet of the current version the version of its session, and a hint the size that it
// has there.
func Stamp(packet []byte, version uint32) []byte {
	binary.NativeEndian.PutUint32(packet[OffFrameVersion:], version)
	at, isHint := hintOffset[binary.NativeEndian.Uint32(packet[OffFrameType:])]
	if size, known := hintBytes[version]; isHint && known {
		packet = slices.Delete(packet, at+size, at+SizeOfHint)
		binary.NativeEndian.PutUint32(packet[OffFrameBytes:], uint32(len(packet)))
	}
	return packet
}

// hintBytes is the size of a hint in each supported version, hintOffset its place in frames.
var (
	hintBytes  = map[uint32]int{4: HintBytes4, Version: SizeOfHint}
	hintOffset = map[uint32]int{FrameHello: OffHelloHint, FrameHint: OffHintFrameHint}
)

// widenHint gives the hint of an older version's packet its current size. at is the hint's offset.
func widenHint(packet []byte, at int) ([]byte, error) {
	f, err := DecodeFrame(packet)
	if err != nil {
		return nil, err
	}
	return widen(packet, at+hintBytes[f.Version], SizeOfHint-hintBytes[f.Version]), nil
}

// widen inserts zeros at an offset. A packet that is too short stays as it is, for Decode to refuse.
func widen(packet []byte, at, zeros int) []byte {
	if zeros == 0 || len(packet) < at {
		return packet
	}
	out := slices.Insert(slices.Clone(packet), at, make([]byte, zeros)...)
	binary.NativeEndian.PutUint32(out[OffFrameBytes:], uint32(len(out)))
	return out
}

// DecodeHello decodes a HELLO packet. Its frame has the client's version.
func DecodeHello(packet []byte) (*Hello, error) {
	packet, err := widenHint(packet, OffHelloHint)
	if err != nil {
		return nil, err
	}
	if err := Decode(packet, FrameHello, SizeOfHello); err != nil {
		return nil, err
	}
	h := &Hello{}
	h.get(packet)
	switch {
	case h.Scheduler > SchedulerGlobal:
		return nil, Malformed("scheduler %d", h.Scheduler)
	case bytes.IndexByte(h.Policy[:], 0) < 0:
		return nil, Malformed("policy is not NUL-terminated")
	case bytes.IndexByte(h.Command[:], 0) < 0:
		return nil, Malformed("command is not NUL-terminated")
	}
	if err := h.Hint.check(h.Frame.Version); err != nil {
		return nil, err
	}
	return h, nil
}

// CommandString returns the command without control characters, because terminals show it.
func (v *Hello) CommandString() string { return cString(v.Command[:]) }

// ReasonString returns the reason without control characters.
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

// DecodeWelcome decodes a WELCOME packet.
func DecodeWelcome(packet []byte) (*Welcome, error) {
	if err := Decode(packet, FrameWelcome, SizeOfWelcome); err != nil {
		return nil, err
	}
	w := &Welcome{}
	w.get(packet)
	return w, nil
}

// DecodeRefused decodes a REFUSED packet of any version, because it reports version mismatches.
func DecodeRefused(packet []byte) (*Refused, error) {
	if len(packet) != SizeOfRefused {
		return nil, Malformed("REFUSED with %d bytes", len(packet))
	}
	r := &Refused{}
	r.get(packet)
	if r.Frame.Magic != FrameMagic || r.Frame.Type != FrameRefused {
		return nil, Malformed("not REFUSED")
	}
	return r, nil
}

// NewFrame returns a frame header.
func NewFrame(typ uint32, size int) Frame {
	return Frame{Magic: FrameMagic, Version: Version, Type: typ, Bytes: uint32(size)}
}

// EncodeHello encodes a HELLO packet and fills in its frame.
func EncodeHello(h Hello) []byte {
	b := make([]byte, SizeOfHello)
	h.Frame = NewFrame(FrameHello, len(b))
	h.Command[CommandBytes-1], h.Policy[PolicyBytes-1] = 0, 0
	h.put(b)
	return b
}

// EncodeWelcome encodes a WELCOME packet for a session of that version.
func EncodeWelcome(session uint64, version uint32) []byte {
	b := make([]byte, SizeOfWelcome)
	w := Welcome{Frame: NewFrame(FrameWelcome, len(b)), SessionID: session, PageBytes: pageBytes(version)}
	w.put(b)
	return Stamp(b, version)
}

// EncodeRefused encodes a REFUSED packet and truncates a long reason.
func EncodeRefused(clientVersion uint32, reason string) []byte {
	b := make([]byte, SizeOfRefused)
	r := Refused{
		Frame: NewFrame(FrameRefused, len(b)), DaemonVersion: Version, ClientVersion: clientVersion,
	}
	copy(r.Reason[:ReasonBytes-1], reason)
	r.put(b)
	return b
}
