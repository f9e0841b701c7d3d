// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"xsched/internal/engine"
	"xsched/internal/model"
)

// Item is one thing in a recording; exactly one of the fields is set.
type Item struct {
	Event *engine.Event
	// Gap: so many records are missing here. State follows.
	Gap *Gap
	// State: forget all queues, these are the ones. It comes after a gap, and first in a
	// recording whose beginning is gone.
	State *State
	Name  *Name
}

// Gap is records that were lost.
type Gap struct {
	At      model.Time
	Records uint64 // 0: not known
}

// State is a checkpoint, as the events that make it.
type State struct {
	At     model.Time
	Events []*engine.Event
}

// Name is what the program behind a session is called.
type Name struct {
	Session model.SessionID
	Name    string
}

// Reader reads a recording from its oldest file that is left.
type Reader struct {
	Header Header // of the oldest file
	// Truncated is how many bytes at the end are no whole record: the daemon was killed.
	Truncated int64

	files  []string
	open   func(string) (io.ReadCloser, error)
	file   io.ReadCloser
	in     *bufio.Reader
	last   model.Time
	part   int
	queued []Item
}

// Open opens the recording at path, with path.1 and so on before it.
func Open(path string) (*Reader, error) {
	r := &Reader{open: func(name string) (io.ReadCloser, error) { return os.Open(name) }}
	for i := range 10_000 {
		name := numbered(path, i)
		if _, err := os.Stat(name); err != nil {
			if i == 0 {
				return nil, fmt.Errorf("open recording: %w", err)
			}
			break
		}
		r.files = append([]string{name}, r.files...)
	}
	return r, r.start()
}

// NewReader reads a recording of one file.
func NewReader(in io.Reader) (*Reader, error) {
	r := &Reader{files: []string{"recording"}, open: func(string) (io.ReadCloser, error) { return io.NopCloser(in), nil }}
	return r, r.start()
}

// start reads the first header. Files of an older recording of the same name, left
// behind by a daemon with another number of files, are passed over.
func (r *Reader) start() error {
	for {
		h, err := r.nextFile()
		if err != nil {
			return err
		}
		if len(r.files) == 0 || h.Part < r.newest() {
			r.Header, r.part = *h, h.Part
			if h.Part > 0 {
				r.queued = append(r.queued, Item{Gap: &Gap{At: h.Base}})
			}
			return nil
		}
	}
}

// newest is the part number of the newest file, or a big one if that can't be told.
func (r *Reader) newest() int {
	f, err := r.open(r.files[len(r.files)-1])
	if err != nil {
		return 1 << 30
	}
	defer func() { _ = f.Close() }()
	probe := Reader{in: bufio.NewReader(f)}
	h, err := probe.header()
	if err != nil {
		return 1 << 30
	}
	return h.Part
}

// Close closes the file.
func (r *Reader) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// nextFile goes on to the next file and reads its header.
func (r *Reader) nextFile() (*Header, error) {
	if len(r.files) == 0 {
		return nil, io.EOF
	}
	if r.file != nil {
		_ = r.file.Close()
	}
	f, err := r.open(r.files[0])
	if err != nil {
		return nil, fmt.Errorf("open recording: %w", err)
	}
	name := r.files[0]
	r.file, r.files, r.in = f, r.files[1:], bufio.NewReaderSize(f, 1<<16)
	h, err := r.header()
	if err != nil {
		return nil, fmt.Errorf("read recording %s: %w", name, err)
	}
	r.last = h.Base
	return h, nil
}

func (r *Reader) header() (*Header, error) {
	var got [len(magic)]byte
	if _, err := io.ReadFull(r.in, got[:]); err != nil || string(got[:5]) != magic[:5] {
		return nil, fmt.Errorf("%w: this is no recording; `xsched serve --record FILE` makes one", ErrCorrupt)
	}
	if string(got[:]) != magic {
		return nil, fmt.Errorf("%w: format version %d is not known to this program; use the one that wrote it", ErrCorrupt, got[5])
	}
	body, err := r.body()
	if err != nil {
		return nil, fmt.Errorf("%w: no header", ErrCorrupt)
	}
	h := &Header{}
	if body[0] != kindHeader || json.Unmarshal(body[1:], h) != nil || h.Base < 0 || h.Base > maxTime || h.Part < 0 {
		return nil, fmt.Errorf("%w: bad header", ErrCorrupt)
	}
	return h, nil
}

// body reads the next record of the file. io.ErrUnexpectedEOF is one that was cut off.
func (r *Reader) body() ([]byte, error) {
	head, err := r.in.Peek(10)
	if len(head) == 0 {
		return nil, err
	}
	length, n := binary.Uvarint(head)
	switch {
	case n == 0:
		return nil, io.ErrUnexpectedEOF
	case n < 0 || length == 0 || length > maxBody:
		return nil, fmt.Errorf("%w: record of %d bytes", ErrCorrupt, length)
	}
	whole := make([]byte, n+int(length)+2)
	if got, err := io.ReadFull(r.in, whole); err != nil {
		r.Truncated = int64(got)
		return nil, io.ErrUnexpectedEOF
	}
	body, _, err := unframe(whole)
	return body, err
}

// Next returns the next item, io.EOF after the last. What follows a record that is cut off or
// damaged in a file is not used: in the middle of a recording that is a gap.
func (r *Reader) Next() (Item, error) {
	for {
		if len(r.queued) > 0 {
			it := r.queued[0]
			r.queued = r.queued[1:]
			return it, nil
		}
		body, err := r.body()
		switch {
		case err == nil:
			it, ok, err := r.item(body)
			if err != nil {
				return Item{}, err
			}
			if ok {
				return it, nil
			}
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			if err := r.follow(!errors.Is(err, io.EOF)); err != nil {
				return Item{}, err
			}
		default:
			return Item{}, err
		}
	}
}

// follow goes on to the next file. The state at its beginning is only news if something is
// missing before it.
func (r *Reader) follow(damaged bool) error {
	h, err := r.nextFile()
	if err != nil {
		return err
	}
	missing := damaged || h.Part != r.part+1
	r.part = h.Part
	if missing {
		r.queued = append(r.queued, Item{Gap: &Gap{At: h.Base}})
		return nil
	}
	_, err = r.state()
	return err
}

// state reads a checkpoint whole, from its first record on.
func (r *Reader) state() (*State, error) {
	body, err := r.body()
	if err != nil {
		return nil, r.torn(err)
	}
	if body[0] != kindCheckpoint {
		return nil, fmt.Errorf("%w: no state where one belongs", ErrCorrupt)
	}
	return r.restOfState(body)
}

func (r *Reader) torn(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return io.EOF
	}
	return err
}

func (r *Reader) restOfState(body []byte) (*State, error) {
	d := decoder{b: body[1:]}
	if err := r.pass(&d); err != nil {
		return nil, err
	}
	s := &State{At: r.last}
	for {
		body, err := r.body()
		if err != nil {
			return nil, r.torn(err)
		}
		if body[0] == kindEnd {
			return s, nil
		}
		if body[0] == kindCheckpoint || body[0] == kindGap {
			return nil, fmt.Errorf("%w: a state in a state", ErrCorrupt)
		}
		it, ok, err := r.item(body)
		switch {
		case err != nil:
			return nil, err
		case ok && it.Event != nil:
			s.Events = append(s.Events, it.Event)
		case ok && it.Name != nil:
			r.queued = append(r.queued, it)
		default:
			return nil, fmt.Errorf("%w: what does not belong into a state", ErrCorrupt)
		}
	}
}

// pass reads the time that has passed.
func (r *Reader) pass(d *decoder) error {
	at := int64(r.last) + d.varint()
	if d.err == nil && (at < 0 || at > maxTime) {
		d.fail("time is out of range")
	}
	if d.err != nil {
		return d.err
	}
	r.last = max(r.last, model.Time(at))
	return nil
}

// item reads a record; false: it says nothing.
func (r *Reader) item(body []byte) (Item, bool, error) {
	d := decoder{b: body}
	switch kind := d.byte(); kind {
	case kindGap:
		if err := r.pass(&d); err != nil {
			return Item{}, false, err
		}
		g := &Gap{At: r.last, Records: d.uvarint()}
		return Item{Gap: g}, true, d.err
	case kindCheckpoint:
		s, err := r.restOfState(body)
		return Item{State: s}, true, err
	case kindName:
		if err := r.pass(&d); err != nil {
			return Item{}, false, err
		}
		n := &Name{Session: model.SessionID(d.uvarint())}
		n.Name = d.text()
		return Item{Name: n}, true, d.err
	case kindHeader, kindEnd:
		return Item{}, false, fmt.Errorf("%w: a record in a place where it does not belong", ErrCorrupt)
	default:
		ev := d.event(engine.EventKind(kind), r.last)
		if d.err != nil {
			return Item{}, false, d.err
		}
		r.last = max(r.last, ev.At)
		return Item{Event: ev}, true, nil
	}
}
