// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"xsched/internal/control"
)

// ShortestInterval is the least time between two snapshots. All viewers share one within it.
const ShortestInterval = 500 * time.Millisecond

// badRequest is a mistake of the viewer.
type badRequest struct{ error }

func badf(format string, args ...any) error { return badRequest{fmt.Errorf(format, args...)} }

// stream writes lines of JSON to a viewer.
type stream struct {
	w       http.ResponseWriter
	still   func() error // whether the viewer has its right yet
	started bool
}

// send writes lines. It fails when the viewer lost its right.
func (o *stream) send(lines ...[]byte) error {
	if o.started {
		if err := o.still(); err != nil {
			return err
		}
	} else {
		o.w.Header().Set("Content-Type", "application/json")
		o.started = true
	}
	control := http.NewResponseController(o.w)
	if err := control.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
		return fmt.Errorf("limit an answer: %w", err)
	}
	for _, line := range lines {
		_, err := o.w.Write(line)
		if err == nil {
			_, err = io.WriteString(o.w, "\n")
		}
		if err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
	if err := control.Flush(); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return nil
}

// fail says why there is no answer, or why a stream ends.
func (o *stream) fail(err error) {
	if o.started {
		_ = json.NewEncoder(o.w).Encode(Failure{err.Error()})
		return
	}
	code := http.StatusBadGateway
	if _, ok := errors.AsType[badRequest](err); ok {
		code = http.StatusBadRequest
	}
	fail(o.w, code, err)
}

// snapshots reads snapshots of the daemon. Viewers that ask at about the same time get the same one, so that
// their number costs the daemon nothing.
type snapshots struct {
	read func(ctx context.Context) (control.Snapshot, error)

	mu   sync.Mutex
	at   time.Time
	line []byte
	err  error
}

// get returns a snapshot as JSON.
func (s *snapshots) get(ctx context.Context) ([]byte, error) {
	s.mu.Lock() // held while the daemon is asked, for answerLimit at most
	defer s.mu.Unlock()
	if time.Since(s.at) < ShortestInterval/2 {
		return s.line, s.err
	}
	// Not the context of one viewer: the answer is for all.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerLimit)
	defer cancel()
	snapshot, err := s.read(ctx)
	if err == nil {
		s.line, err = json.Marshal(snapshot)
	}
	s.err, s.at = err, time.Now()
	return s.line, s.err
}

// maxConnections is above maxOpenTotal: some requests are being refused.
const maxConnections = 2 * maxOpenTotal

// places limits the open connections of a listener. More wait in the kernel's queue.
type places struct {
	net.Listener
	free   chan struct{}
	closed chan struct{}
	once   sync.Once
}

func newPlaces(l net.Listener, most int) *places {
	return &places{Listener: l, free: make(chan struct{}, most), closed: make(chan struct{})}
}

// Accept waits for a place, then for a connection.
func (p *places) Accept() (net.Conn, error) {
	select {
	case p.free <- struct{}{}:
	case <-p.closed:
		return nil, net.ErrClosed
	}
	c, err := p.Listener.Accept()
	if err != nil {
		<-p.free
		return nil, err
	}
	return &placed{Conn: c, leave: sync.OnceFunc(func() { <-p.free })}, nil
}

// Close implements net.Listener.
func (p *places) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.Listener.Close()
}

// placed is a connection with a place.
type placed struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *placed) Close() error {
	c.leave()
	return c.Conn.Close()
}
