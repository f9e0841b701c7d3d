// SPDX-License-Identifier: Apache-2.0

// Package record writes what is done to an engine into a file and reads it back, so
// that a day of a real machine can be looked at under another policy.
//
// A file is a magic line and records: uvarint length, body, two bytes of CRC-32C of the
// body. The body's first byte is the kind; then the time since the record before it,
// and the fields of the kind. The first record is a Header. A file that was cut off
// anywhere is good up to its last whole record.
package record

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"xsched/internal/engine"
	"xsched/internal/model"
)

const (
	magic = "XSREC\x01\n" // the number is the version of the format

	// Kinds beyond those of engine.EventKind.
	kindHeader     = 64 // JSON
	kindGap        = 65 // records lost
	kindCheckpoint = 66 // what follows, up to kindEnd, is the state and not what happened
	kindEnd        = 67
	kindName       = 68 // session, text

	maxBody = 1 << 20
)

// ErrCorrupt is a record that can't be what was written.
var ErrCorrupt = errors.New("corrupt recording")

// Header opens every file of a recording.
type Header struct {
	Program string        `json:"program"`          // version of the daemon
	Device  string        `json:"device,omitempty"` // what it scheduled
	Part    int           `json:"part"`             // 0, 1, ...: files of one recording
	Started time.Time     `json:"started"`
	Base    model.Time    `json:"base_ns"` // the first record's time counts from here
	Config  engine.Config `json:"config"`  // at the start of the recording
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frame appends a record with this body to b.
func frame(b, body []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(body)))
	b = append(b, body...)
	return binary.LittleEndian.AppendUint16(b, uint16(crc32.Checksum(body, castagnoli)))
}

// errShort is a record whose end has not come yet.
var errShort = errors.New("incomplete record")

// unframe returns the body of the first record in b and the bytes it takes.
func unframe(b []byte) (body []byte, n int, err error) {
	length, head := binary.Uvarint(b)
	switch {
	case head == 0:
		return nil, 0, errShort
	case head < 0 || length == 0 || length > maxBody:
		return nil, 0, fmt.Errorf("%w: record of %d bytes", ErrCorrupt, length)
	}
	n = head + int(length) + 2
	if len(b) < n {
		return nil, 0, errShort
	}
	body = b[head : n-2]
	if binary.LittleEndian.Uint16(b[n-2:]) != uint16(crc32.Checksum(body, castagnoli)) {
		return nil, 0, fmt.Errorf("%w: checksum is wrong", ErrCorrupt)
	}
	return body, n, nil
}

// encoder turns events into bodies. Not for several goroutines.
type encoder struct {
	last     model.Time
	hint     model.Hint // whose JSON hintText is: most are like the one before
	hintText []byte
}

// event appends an event's body to b. The caller moves last once the record is safe.
func (c *encoder) event(b []byte, ev *engine.Event) []byte {
	at := ev.At
	if at == 0 {
		at = c.last // what has no time of its own
	}
	b = append(b, byte(ev.Kind))
	b = binary.AppendVarint(b, int64(at-c.last))
	switch ev.Kind {
	case engine.EventAdd:
		q := ev.Queue
		b = appendID(b, q.ID)
		b = binary.AppendVarint(b, int64(q.PID))
		b = binary.AppendUvarint(b, uint64(q.Device))
		b = append(b, byte(q.Level), flags(q.Slices, q.Busy, q.Held, q.Guessed, q.Feeding.InRow > 0))
		if q.Feeding.InRow > 0 {
			b = append(binary.AppendUvarint(b, uint64(q.Feeding.Length)), byte(q.Feeding.InRow))
		}
		b = binary.AppendVarint(b, int64(q.ChangedAt-at))
		b = c.appendHint(b, &q.Hint)
	case engine.EventRemove:
		b = appendID(b, ev.ID)
	case engine.EventBusy:
		b = append(appendID(b, ev.ID), flags(ev.On, ev.Length > 0))
		if ev.Length > 0 {
			b = binary.AppendUvarint(b, min(uint64(ev.Length), maxSlice))
		}
	case engine.EventHint:
		b = binary.AppendVarint(b, int64(ev.PID))
		b = c.appendHint(b, ev.Hint)
	case engine.EventQueueHint:
		b = c.appendHint(appendID(b, ev.ID), ev.Hint)
	case engine.EventHeld:
		b = append(binary.AppendVarint(b, int64(ev.PID)), flags(ev.On))
	case engine.EventLevel:
		b = append(appendID(b, ev.ID), byte(ev.Level), flags(ev.On))
	case engine.EventPolicy:
		b = append(b, ev.Name...)
	case engine.EventMode:
		b = append(append(b, byte(ev.Level)), ev.Name...)
	case engine.EventQuantum:
		b = binary.AppendUvarint(b, uint64(ev.Length))
	case engine.EventUnmanaged:
		b = append(binary.AppendUvarint(b, uint64(ev.Device)), flags(ev.On))
	case engine.EventMark:
		b = append(binary.AppendVarint(b, int64(ev.PID)), flags(ev.On))
		b = binary.AppendUvarint(b, uint64(max(0, ev.Length)))
	case engine.EventDecide:
		wake := uint64(0)
		if ev.Wake != model.Never {
			wake = uint64(max(0, ev.Wake-at)) + 1
		}
		b = binary.AppendUvarint(b, wake)
		for i := range ev.Changes {
			d := &ev.Changes[i]
			b = append(appendID(b, d.Queue), byte(d.Suspend))
			b = binary.AppendUvarint(b, uint64(d.Slice))
			b = binary.AppendUvarint(b, uint64(d.InFlight))
			b = binary.AppendUvarint(b, uint64(d.Batch))
		}
	}
	return b
}

func appendID(b []byte, id model.QueueID) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(id.Session)), uint64(id.Index))
}

func flags(bits ...bool) byte {
	var f byte
	for i, on := range bits {
		if on {
			f |= 1 << i
		}
	}
	return f
}

// appendHint writes a hint as JSON: hints grow, and are rare.
func (c *encoder) appendHint(b []byte, h *model.Hint) []byte {
	if c.hintText == nil || *h != c.hint {
		text, err := json.Marshal(h)
		if err != nil {
			text = []byte("{}") // numbers and texts only: can't be
		}
		c.hint, c.hintText = *h, text
	}
	b = binary.AppendUvarint(b, uint64(len(c.hintText)))
	return append(b, c.hintText...)
}

// decoder reads fields off a body; the first mistake sticks.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", ErrCorrupt, what)
	}
	d.b = nil
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail("record ends early")
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail("bad number")
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail("bad number")
		return 0
	}
	d.b = d.b[n:]
	return v
}

// upTo is a number that must not be more than most.
func (d *decoder) upTo(most uint64, what string) uint64 {
	v := d.uvarint()
	if v > most {
		d.fail(what + " is out of range")
		return 0
	}
	return v
}

func (d *decoder) id() model.QueueID {
	session := d.uvarint()
	return model.QueueID{Session: model.SessionID(session), Index: uint32(d.upTo(1<<32-1, "queue index"))}
}

func (d *decoder) level() model.Level {
	l := model.Level(d.byte())
	if l > model.LevelInterrupt {
		d.fail("level is out of range")
		return 0
	}
	return l
}

func (d *decoder) pid() int {
	v := d.varint()
	if v < -1<<31 || v >= 1<<31 {
		d.fail("pid is out of range")
		return 0
	}
	return int(v)
}

func (d *decoder) text() string {
	s := string(d.b)
	d.b = nil
	return s
}

func (d *decoder) hint() *model.Hint {
	n := d.upTo(uint64(len(d.b)), "hint")
	h := &model.Hint{}
	if d.err != nil {
		return h
	}
	text := d.b[:n]
	d.b = d.b[n:]
	if err := json.Unmarshal(text, h); err != nil {
		d.fail("hint: " + err.Error())
	} else if err := h.Check(); err != nil {
		d.fail(err.Error())
	}
	return h
}

const (
	maxTime  = 1 << 60 // some decades: no sum of two overflows
	maxSlice = uint64(1 << 40)
	maxLimit = uint64(1 << 30)
)

// event reads an event's body after its kind.
func (d *decoder) event(kind engine.EventKind, last model.Time) *engine.Event {
	at := int64(last) + d.varint()
	if at < 0 || at > maxTime {
		d.fail("time is out of range")
		at = 0
	}
	ev := &engine.Event{Kind: kind, At: model.Time(at)}
	switch kind {
	case engine.EventAdd:
		q := &model.Queue{ID: d.id(), PID: d.pid(), Device: model.DeviceID(d.uvarint()), Level: d.level()}
		f := d.byte()
		q.Slices, q.Busy, q.Held, q.Guessed = f&1 != 0, f&2 != 0, f&4 != 0, f&8 != 0
		if f&16 != 0 {
			q.Feeding = model.Feeding{Length: time.Duration(d.upTo(maxSlice, "time")), InRow: int8(d.byte() & 127)}
		}
		changed := at + d.varint()
		if changed < 0 || changed > maxTime {
			d.fail("time is out of range")
		}
		q.ChangedAt, q.Hint = model.Time(changed), *d.hint()
		ev.ID, ev.PID, ev.Queue = q.ID, q.PID, q
	case engine.EventRemove:
		ev.ID = d.id()
	case engine.EventBusy:
		ev.ID = d.id()
		f := d.byte()
		if ev.On = f&1 != 0; f&2 != 0 {
			ev.Length = time.Duration(d.upTo(maxSlice, "time"))
		}
	case engine.EventHint:
		ev.PID, ev.Hint = d.pid(), d.hint()
	case engine.EventQueueHint:
		ev.ID, ev.Hint = d.id(), d.hint()
	case engine.EventHeld:
		ev.PID, ev.On = d.pid(), d.byte() != 0
	case engine.EventLevel:
		ev.ID, ev.Level, ev.On = d.id(), d.level(), d.byte() != 0
	case engine.EventPolicy:
		ev.Name = d.text()
	case engine.EventMode:
		ev.Level, ev.Name = d.level(), d.text()
	case engine.EventQuantum:
		if ev.Length = time.Duration(d.upTo(maxSlice, "quantum")); ev.Length == 0 {
			d.fail("quantum is 0")
		}
	case engine.EventUnmanaged:
		ev.Device, ev.On = model.DeviceID(d.uvarint()), d.byte() != 0
	case engine.EventMark:
		ev.PID, ev.On = d.pid(), d.byte() != 0
		ev.Length = time.Duration(d.upTo(maxTime, "latency"))
	case engine.EventDecide:
		ev.Wake = model.Never
		if wake := d.upTo(maxTime, "wake-up"); wake > 0 {
			ev.Wake = ev.At + model.Time(wake-1)
		}
		for len(d.b) > 0 {
			ev.Changes = append(ev.Changes, model.Desired{
				Queue: d.id(), Suspend: d.level(), Slice: time.Duration(d.upTo(maxSlice, "slice")),
				InFlight: int(d.upTo(maxLimit, "limit")), Batch: int(d.upTo(maxLimit, "limit")),
			})
		}
	default:
		d.fail(fmt.Sprintf("unknown kind %d", kind))
	}
	if len(d.b) > 0 {
		d.fail("record is too long")
	}
	return ev
}
