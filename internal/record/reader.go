// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"xsched/internal/atomicfile"
	"xsched/internal/model"
)

// oldMagic begins a recording of version 1.
const oldMagic = "XSREC"

// maxLine bounds the memory a line may take; a checkpoint of 4096 clients needs less.
const maxLine = 64 << 20

// Reader reads a recording from its oldest remaining file.
type Reader struct {
	Header    Header // of the oldest file
	Truncated bool   // a file ends within a record or its header: the daemon was killed

	files   []string // yet to read
	file    io.Closer
	lines   *bufio.Scanner
	last    model.Time
	part    int
	missing bool // events before the next checkpoint are missing
	begun   bool // an item was returned
}

// Open opens the recording at path, which continues path.1, path.2 and so on.
func Open(path string) (*Reader, error) {
	r := &Reader{}
	for i := 0; ; i++ {
		name := atomicfile.Numbered(path, i)
		if _, err := os.Stat(name); err != nil {
			if i == 0 {
				return nil, fmt.Errorf("open recording: %w", err)
			}
			break
		}
		r.files = append([]string{name}, r.files...)
	}
	return r, r.start(r.nextFile())
}

// NewReader reads a recording of one file.
func NewReader(in io.Reader) (*Reader, error) {
	r := &Reader{}
	return r, r.start(r.read(in))
}

func (r *Reader) start(h *Header, err error) error {
	if err != nil {
		return fmt.Errorf("open recording: %w", err)
	}
	r.Header, r.part, r.missing = *h, h.Part, h.Part > 0
	return nil
}

// Close closes the file.
func (r *Reader) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// nextFile opens the next file and reads its header.
func (r *Reader) nextFile() (*Header, error) {
	if len(r.files) == 0 {
		return nil, io.EOF
	}
	_ = r.Close()
	name := r.files[0]
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	r.file, r.files = f, r.files[1:]
	h, err := r.read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return h, nil
}

// isRecording says whether a regular file begins as a recording, of any version. A file without
// data counts as one, because a daemon killed before it wrote the header leaves such a file.
func isRecording(name string) (bool, error) {
	const noData = 10 // bytes of the header of a gzip member
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	in := bufio.NewReader(f)
	start, err := in.Peek(noData + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	if len(start) == 0 || bytes.HasPrefix(start, []byte(oldMagic)) {
		return true, nil
	}
	if len(start) <= noData {
		return bytes.HasPrefix(start, []byte{0x1f, 0x8b}), nil
	}
	z, err := gzip.NewReader(in)
	if err != nil {
		return false, nil
	}
	text := make([]byte, len(`{"header":`))
	n, _ := io.ReadFull(z, text)
	return string(text[:n]) == `{"header":`, nil
}

// read starts reading a file.
func (r *Reader) read(in io.Reader) (*Header, error) {
	file := &counter{in: in}
	b := bufio.NewReader(file)
	if magic, _ := b.Peek(len(oldMagic)); string(magic) == oldMagic {
		return nil, fmt.Errorf("%w: this recording has the binary format of an older xsched; replay it with the version that wrote it", ErrCorrupt)
	}
	z, err := gzip.NewReader(b)
	if err != nil {
		return nil, fmt.Errorf("%w: not a recording; `xsched serve --record FILE` writes one", ErrCorrupt)
	}
	r.lines = bufio.NewScanner(&dense{text: z, file: file})
	r.lines.Buffer(nil, maxLine)
	r.lines.Split(func(data []byte, _ bool) (int, []byte, error) {
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			return i + 1, data[:i], nil
		}
		return 0, nil, nil // a line without its end is not a record
	})
	item := Item{}
	if !r.lines.Scan() || decode(r.lines.Bytes(), &item) != nil || item.Header == nil {
		if errors.Is(r.lines.Err(), errDense) {
			return nil, errDense
		}
		return nil, fmt.Errorf("%w: no header", ErrCorrupt)
	}
	h := item.Header
	switch {
	case h.Version != version:
		return nil, fmt.Errorf("%w: format version %d is not supported; replay it with the version of xsched that wrote it (%s)", ErrCorrupt, h.Version, h.Program)
	case !within(h.Base, maxTime) || h.Part < 0:
		return nil, fmt.Errorf("%w: header out of range", ErrCorrupt)
	}
	r.last = h.Base
	return h, nil
}

// Next returns the next event or checkpoint, and io.EOF after the last. A file is used up to the
// first byte that is cut off or damaged; if another file follows, its checkpoint has Gap set.
func (r *Reader) Next() (Item, error) {
	for {
		if !r.lines.Scan() {
			if err := r.follow(r.lines.Err()); err != nil {
				return Item{}, err
			}
			continue
		}
		var it Item
		if err := decode(r.lines.Bytes(), &it); err != nil {
			return Item{}, err
		}
		if err := r.check(&it); err != nil {
			return Item{}, err
		}
		if s := it.State; s != nil {
			s.Gap = r.missing || s.Lost > 0
			if r.missing = false; !s.Gap && r.begun {
				continue // the events before it say the same
			}
		}
		r.begun = true
		return it, nil
	}
}

// decode decodes a line of bounded complexity.
func decode(line []byte, it *Item) error {
	if n := bytes.Count(line, []byte("{")); n > maxObjects {
		return fmt.Errorf("%w: a line has %d objects, more than %d", ErrCorrupt, n, maxObjects)
	}
	if err := json.Unmarshal(line, it); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return nil
}

// follow continues with the next file; damage is what ended this one, if not its end.
func (r *Reader) follow(damage error) error {
	if errors.Is(damage, bufio.ErrTooLong) {
		return fmt.Errorf("%w: %w", ErrCorrupt, damage)
	}
	if errors.Is(damage, errDense) {
		return errDense
	}
	for {
		r.Truncated = r.Truncated || damage != nil
		r.missing = r.missing || damage != nil
		h, err := r.nextFile()
		switch {
		case errors.Is(err, errDense):
			return err
		case errors.Is(err, ErrCorrupt):
			damage = err // killed before the header was on disk
		case err != nil:
			return err
		default:
			r.missing = r.missing || h.Part != r.part+1
			r.part = h.Part
			return nil
		}
	}
}

// check validates an item and completes times that were left out.
func (r *Reader) check(it *Item) error {
	switch {
	case it.Header != nil || (it.Event == nil) == (it.State == nil):
		return fmt.Errorf("%w: neither an event nor a checkpoint", ErrCorrupt)
	case it.Event != nil:
		if it.Event.At == 0 {
			it.Event.At = r.last
		}
		if err := check(it.Event); err != nil {
			return err
		}
		r.last = max(r.last, it.Event.At)
		return nil
	}
	if !within(it.State.At, maxTime) {
		return fmt.Errorf("%w: time out of range", ErrCorrupt)
	}
	r.last = max(r.last, it.State.At)
	for i := range it.State.Items {
		if part := &it.State.Items[i]; part.Event == nil || part.State != nil {
			return fmt.Errorf("%w: a checkpoint consists of events", ErrCorrupt)
		}
		if err := r.check(&it.State.Items[i]); err != nil {
			return err
		}
	}
	return nil
}
