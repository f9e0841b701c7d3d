// SPDX-License-Identifier: Apache-2.0

package amdlog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
)

const defaultChunk = 1 << 20

// Options configure Read.
type Options struct {
	// Name is the log's name in the result.
	Name string
	// PID is the process of lines without one; 0 is unknown. The runtime
	// appends it to the file name.
	PID uint32
	// Workers is the number of parsers; 0 is one per CPU. The result does not depend on it.
	Workers int
	// Progress, if set, receives the bytes read from the source.
	Progress func(n int)

	chunk int // size in bytes, for tests
}

// Read analyses a log, optionally compressed with gzip. After a read error the
// result covers the log up to there and carries ReadError. Memory is bounded.
func Read(ctx context.Context, r io.Reader, o Options) (*Log, error) {
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	if o.chunk <= 0 {
		o.chunk = defaultChunk
	}
	if o.Progress != nil {
		r = &counted{r, o.Progress}
	}
	source, compressed, err := decompress(r)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", o.Name, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	inFlight := 2*o.Workers + 2
	free, work, order := make(chan *chunk, inFlight), make(chan *chunk, inFlight), make(chan *chunk, inFlight)
	for range inFlight {
		free <- &chunk{done: make(chan struct{}, 1)}
	}
	for range o.Workers {
		go func() {
			for c := range work {
				c.scan()
				c.done <- struct{}{}
			}
		}()
	}
	var readErr error
	var read int64
	go func() {
		defer close(work)
		defer close(order)
		s := splitter{r: source, size: o.chunk}
		for {
			var c *chunk
			select {
			case c = <-free:
			case <-ctx.Done():
				return
			}
			c.reset()
			more := s.fill(c)
			if c.end > 0 {
				order <- c // never blocks: the channel holds all chunks
				work <- c
			}
			if !more {
				readErr, read = s.err, s.read
				return
			}
		}
	}()

	a := newAnalysis(o)
	for open := true; open; {
		var c *chunk
		select {
		case c, open = <-order:
		case <-ctx.Done(): // the reader may block on a pipe until that closes
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("read %s: %w", o.Name, err)
		}
		if open {
			<-c.done
			a.add(c)
			free <- c
		}
	}
	log := a.finish()
	log.Bytes, log.Compressed = read, compressed
	if readErr != nil {
		if log.Lines.Total == 0 {
			return nil, fmt.Errorf("read %s: %w", o.Name, readErr)
		}
		log.ReadError = readErr.Error()
	}
	return log, nil
}

// decompress detects gzip by its magic bytes, because a pipe has no name.
func decompress(r io.Reader) (io.Reader, bool, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	magic, err := b.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, err
	}
	if len(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, true, fmt.Errorf("decompress: %w", err)
		}
		return z, true, nil
	}
	return b, false, nil
}

// counted reports progress.
type counted struct {
	io.Reader
	progress func(int)
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if n > 0 {
		c.progress(n)
	}
	return n, err
}

// splitter fills chunks with whole lines. Bytes after the last newline go into
// the next chunk. Of an overlong line only the start is kept.
type splitter struct {
	r     io.Reader
	size  int
	carry []byte
	skip  bool // discard the rest of an overlong line
	read  int64
	err   error
}

// keep is the part of an overlong line that is kept: one byte above maxLine,
// plus a possible carriage return.
const keep = maxLine + 2

// fill reads the next lines into c; false at the end.
func (s *splitter) fill(c *chunk) bool {
	if need := max(s.size, len(s.carry)); cap(c.buf) < need {
		c.buf = make([]byte, need)
	}
	b := c.buf[:cap(c.buf)]
	n := copy(b, s.carry)
	s.carry = s.carry[:0]
	end := 0 // after the last newline; the carried-over bytes contain none
	for {
		if n == len(b) {
			b = append(b, make([]byte, max(s.size, 512))...)
			c.buf = b
		}
		m, err := s.r.Read(b[n:])
		s.read += int64(m)
		fresh := n
		n += m
		if s.skip {
			i := bytes.IndexByte(b[fresh:n], '\n')
			if i < 0 {
				n = fresh
			} else {
				// The newline ends the line whose start was kept.
				n = fresh + copy(b[fresh:], b[fresh+i:n])
				s.skip = false
			}
		}
		if err != nil {
			c.end = n
			if !errors.Is(err, io.EOF) {
				s.err = err
			}
			return false
		}
		if i := bytes.LastIndexByte(b[fresh:n], '\n'); i >= 0 {
			end = fresh + i + 1
		}
		if n < s.size {
			continue // a pipe returns short reads
		}
		if end > 0 {
			c.end = end
			tail := b[end:n]
			if len(tail) > keep {
				tail, s.skip = tail[:keep], true
			}
			s.carry = append(s.carry, tail...)
			return true
		}
		if n > keep {
			n, s.skip = keep, true
		}
	}
}
