// SPDX-License-Identifier: Apache-2.0

// Package logging writes a log without ever delaying the caller. Clients cause many of the daemon's
// log lines, and standard error may be a pipe that nobody reads. Lines therefore pass a rate limit
// and a bounded queue; one goroutine writes them. What is left out is counted and reported later.
package logging

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	queuedLines  = 1024
	maxLineBytes = 8 << 10
	reportPeriod = time.Second
)

// Log is a slog.Handler that limits and queues lines. The handlers that With returns share its queue.
type Log struct {
	*shared
	next slog.Handler // formats into the queue
	user string       // attribute that names the user or process, if any
}

type shared struct {
	limit   *limiter
	lines   chan []byte
	dropped atomic.Uint64 // lines that found the queue full
	began   time.Time
	writing atomic.Int64 // since when a line is being written, after began; 0: none is

	quit chan struct{}
	once sync.Once
	done chan struct{}
}

// New starts a log that writes to w. newHandler makes the handler that formats the lines.
func New(w io.Writer, newHandler func(io.Writer) slog.Handler) *Log {
	began := time.Now()
	s := &shared{
		began: began,
		limit: newLimiter(func() time.Duration { return time.Since(began) }),
		lines: make(chan []byte, queuedLines), quit: make(chan struct{}), done: make(chan struct{}),
	}
	out := marked{s, w}
	go s.write(out, newHandler(out))
	return &Log{shared: s, next: newHandler(enqueuer{s})}
}

// Enabled implements slog.Handler.
func (l *Log) Enabled(ctx context.Context, level slog.Level) bool { return l.next.Enabled(ctx, level) }

// Handle implements slog.Handler. It never waits for the writer.
func (l *Log) Handle(ctx context.Context, r slog.Record) error {
	user := l.user
	r.Attrs(func(a slog.Attr) bool {
		user = pick(user, a)
		return true
	})
	if !l.limit.allow(r.Message, user, r.Level) {
		return nil
	}
	return l.next.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l *Log) WithAttrs(attrs []slog.Attr) slog.Handler {
	user := l.user
	for _, a := range attrs {
		user = pick(user, a)
	}
	return &Log{l.shared, l.next.WithAttrs(attrs), user}
}

// WithGroup implements slog.Handler.
func (l *Log) WithGroup(name string) slog.Handler {
	return &Log{l.shared, l.next.WithGroup(name), l.user}
}

// pick returns the attribute that a line is charged to: the user, or else the process.
func pick(user string, a slog.Attr) string {
	switch a.Key {
	case "uid", "user":
		return "user " + a.Value.String()
	case "pid":
		if user == "" {
			return "pid " + a.Value.String()
		}
	}
	return user
}

// Counts are the lines left out so far.
type Counts struct {
	Suppressed uint64 // beyond the rate limit
	Dropped    uint64 // the writer was blocked or too slow
}

// Counts returns the lines left out so far.
func (l *Log) Counts() Counts {
	return Counts{Suppressed: l.limit.total.Load(), Dropped: l.dropped.Load()}
}

// Close stops accepting lines and waits until the queued ones are written, for at most the given time.
func (l *Log) Close(limit time.Duration) {
	l.once.Do(func() { close(l.quit) })
	select {
	case <-l.done:
	case <-time.After(limit):
	}
}

// Writing returns how long the writer has been waiting for the log's reader; 0: it is not.
func (l *Log) Writing() time.Duration {
	since := l.writing.Load()
	if since == 0 {
		return 0
	}
	return time.Since(l.began) - time.Duration(since)
}

// marked is the log's file, with the beginning and end of each write.
type marked struct {
	*shared
	w io.Writer
}

func (m marked) Write(line []byte) (int, error) {
	m.writing.Store(max(1, int64(time.Since(m.began))))
	defer m.writing.Store(0)
	return m.w.Write(line)
}

// enqueuer is the writer of the formatting handler.
type enqueuer struct{ *shared }

func (e enqueuer) Write(line []byte) (int, error) {
	kept := line[:min(len(line), maxLineBytes)]
	kept = append(make([]byte, 0, len(kept)+1), kept...) // the handler reuses its buffer
	if len(kept) < len(line) {
		kept = append(kept, '\n')
	}
	select {
	case <-e.quit:
		e.dropped.Add(1)
		return len(line), nil
	default:
	}
	select {
	case e.lines <- kept:
	default:
		e.dropped.Add(1)
	}
	return len(line), nil
}

// write writes queued lines, and reports now and then what was left out.
func (s *shared) write(w io.Writer, direct slog.Handler) {
	defer close(s.done)
	t := time.NewTicker(reportPeriod)
	defer t.Stop()
	reported := uint64(0)
	report := func() {
		log := slog.New(direct)
		for _, o := range s.limit.takeOmitted() {
			log.Warn("log lines suppressed: the rate limit was reached", "message", o.message, "lines", o.lines)
		}
		if n := s.dropped.Load(); n > reported {
			log.Warn("log lines dropped: the log's reader was too slow", "lines", n-reported)
			reported = n
		}
	}
	for {
		select {
		case line := <-s.lines:
			_, _ = w.Write(line)
		case <-t.C:
			report()
		case <-s.quit:
			for {
				select {
				case line := <-s.lines:
					_, _ = w.Write(line)
				default:
					report()
					return
				}
			}
		}
	}
}
