// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// buffer is a writer that several goroutines may use.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func text(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) }

func TestLinesAreWrittenInOrder(t *testing.T) {
	out := &buffer{}
	l := New(out, text)
	log := slog.New(l).With("part", "x")
	for i := range 100 {
		log.Info("line", "n", i)
	}
	l.Close(time.Second)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 100 {
		t.Fatalf("got %d lines, want 100", len(lines))
	}
	for i, line := range lines {
		if !strings.HasSuffix(line, fmt.Sprintf("msg=line part=x n=%d", i)) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
}

// A pipe that nobody reads must delay neither a caller nor the end.
func TestBlockedReader(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close() // first: it ends the write that blocks
	l := New(w, text)
	log := slog.New(l)
	began, pad := time.Now(), strings.Repeat("x", 1000)
	for i := range 5000 {
		log.Info(fmt.Sprintf("message %d %s", i%3000, pad)) //nolint:sloglint // many different messages
	}
	l.Close(50 * time.Millisecond)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("5,000 lines into a blocked pipe took %v", took)
	}
	if c := l.Counts(); c.Dropped == 0 {
		t.Errorf("counts are %+v, want dropped lines", c)
	}
}

func TestFloodLeavesRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &buffer{}
		l := New(out, text)
		flood := slog.New(l).With("uid", 1000)
		for i := range 100000 {
			flood.Warn("priority not granted", "pid", i)
			if i%1000 == 0 {
				synctest.Wait() // the writer keeps up
			}
		}
		slog.New(l).Warn("priority not granted", "pid", 1, "uid", 1001)
		slog.New(l).Warn("something else")
		time.Sleep(2 * reportPeriod)
		l.Close(time.Second)
		got := out.String()
		if n := strings.Count(got, "uid=1000"); n != userBurst {
			t.Errorf("the flood has %d lines, want %d", n, userBurst)
		}
		for _, want := range []string{"uid=1001", "something else", `message="priority not granted" lines=99990`} {
			if !strings.Contains(got, want) {
				t.Errorf("the log lacks %q:\n%s", want, got)
			}
		}
		if c := l.Counts(); c.Suppressed != 99990 || c.Dropped != 0 {
			t.Errorf("counts are %+v", c)
		}
	})
}

// A client can't fill the limiter's memory by new names.
func TestKeysAreBounded(t *testing.T) {
	now := 1000 * time.Second
	l := newLimiter(func() time.Duration { return now })
	for i := range 10 * maxKeys {
		l.allow("m", fmt.Sprint("pid ", i), slog.LevelInfo)
	}
	if n := l.keys.Load(); n > maxKeys+2 {
		t.Errorf("%d keys are kept, want at most %d", n, maxKeys+2)
	}
	now += time.Minute
	l.takeOmitted()
	if n := l.keys.Load(); n != 1 {
		t.Errorf("%d keys are kept after a minute, want the message alone", n)
	}
	if !l.allow("m", "pid 1", slog.LevelInfo) {
		t.Error("a user within its limit is refused")
	}
}

func TestRateRefills(t *testing.T) {
	now := 1000 * time.Second
	l := newLimiter(func() time.Duration { return now })
	allowed := 0
	for range 100 { // 10 s
		for range 10 {
			if l.allow("m", "user 1", slog.LevelInfo) {
				allowed++
			}
		}
		now += 100 * time.Millisecond
	}
	if allowed < userBurst+9 || allowed > userBurst+10 {
		t.Errorf("%d lines in 10 s, want %d", allowed, userBurst+10)
	}
}

// blocked is a reader that has stopped reading.
type blocked struct{ release chan struct{} }

func (b blocked) Write(p []byte) (int, error) { <-b.release; return len(p), nil }

// A writer that hangs is visible.
func TestBlockedWriterLooksBlocked(t *testing.T) {
	w := blocked{make(chan struct{})}
	l := New(w, func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) })
	if d := l.Writing(); d != 0 {
		t.Errorf("an idle writer waits for %v", d)
	}
	slog.New(l).Info("x")
	for end := time.Now().Add(10 * time.Second); l.Writing() < 20*time.Millisecond; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a blocked writer does not look blocked")
		}
	}
	close(w.release)
	l.Close(10 * time.Second)
	if d := l.Writing(); d != 0 {
		t.Errorf("after the end it waits for %v", d)
	}
}
