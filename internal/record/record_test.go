// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"xsched/internal/engine"
	"xsched/internal/model"
)

// fataler is what testing.T and rapid.T have in common.
type fataler interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// life drives an engine through random events, and notes what an observer sees.
type life struct {
	e    *engine.Engine
	now  model.Time
	ids  []model.QueueID
	seen []engine.Event
}

const base = model.Time(time.Hour)

func newLife(t fataler, l *Log) *life {
	t.Helper()
	e, err := engine.New(engine.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	s := &life{e: e, now: base}
	l.Attach(e, s.now)
	e.Observe(func(ev *engine.Event) {
		l.event(ev)
		s.seen = append(s.seen, clone(ev))
	})
	return s
}

func clone(ev *engine.Event) engine.Event {
	c := *ev
	c.Changes = slices.Clone(ev.Changes)
	if ev.Queue != nil {
		q := *ev.Queue
		c.Queue = &q
	}
	if ev.Hint != nil {
		h := *ev.Hint
		c.Hint = &h
	}
	return c
}

// step does one thing; pick returns a number below n.
func (s *life) step(pick func(n int) int) {
	s.now += model.Time(1 + pick(3_000_000))
	hint := model.Hint{Priority: model.Priority(pick(5) - 2), Utilization: pick(100), Deadline: time.Duration(pick(1000)) * time.Millisecond}
	if pick(4) == 0 {
		hint.Gang = fmt.Sprint("gang", pick(2))
	}
	anyID := func() model.QueueID {
		if len(s.ids) == 0 {
			return model.QueueID{Session: 99}
		}
		return s.ids[pick(len(s.ids))]
	}
	switch pick(12) {
	case 0:
		id := model.QueueID{Session: model.SessionID(1 + pick(6)), Index: uint32(pick(3))}
		s.ids = append(s.ids, id)
		s.e.AddQueue(s.now, model.Queue{
			ID: id, PID: 100 + int(id.Session), Device: model.DeviceID(1 + pick(2)), Hint: hint, Level: model.Level(1 + pick(3)),
			Slices: pick(3) > 0, Busy: pick(2) == 0,
		})
	case 1:
		s.e.RemoveQueue(s.now, anyID())
	case 2:
		s.e.SetHint(s.now, 101+pick(6), hint)
	case 3:
		s.e.SetQueueHint(s.now, anyID(), hint)
	case 4:
		s.e.SetHeld(s.now, 101+pick(6), pick(2) == 0)
	case 5:
		s.e.SetLevel(s.now, anyID(), model.Level(1+pick(3)), pick(2) == 0)
	case 6:
		_ = s.e.SetPolicy([]string{"HPF", "FIFO"}[pick(2)])
	case 7:
		_ = s.e.SetMode(model.Modes[pick(len(model.Modes))], model.Level(1+pick(3)))
	case 8:
		s.e.SetIdle(s.now, anyID(), time.Duration(pick(10_000_000)))
	default:
		s.e.SetBusy(s.now, anyID(), pick(2) == 0)
	}
	s.e.Decide(s.now)
}

func create(t fataler, path string, o Options) *Log {
	t.Helper()
	o.Header.Base, o.Header.Config, o.Header.Program = base, engine.DefaultConfig(), "test"
	l, err := Create(path, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func readAll(t fataler, path string) (items []Item, r *Reader) {
	t.Helper()
	r, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	for {
		it, err := r.Next()
		if errors.Is(err, io.EOF) {
			return items, r
		}
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, it)
	}
}

// Whatever happens to an engine, the recording has it all, in order, over as many files as it takes, and
// another engine that is told the same decides the same.
func TestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		path := filepath.Join(dir, fmt.Sprint(n))
		fileBytes := rapid.SampledFrom([]int64{4000, 20_000, 1 << 20}).Draw(t, "file bytes")
		l := create(t, path, Options{FileBytes: fileBytes, Files: 200})
		s := newLife(t, l)
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			s.step(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") })
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if st := l.Stats(); st.Dropped != 0 {
			t.Fatalf("%d records dropped", st.Dropped)
		}
		for _, st := range s.e.Snapshot(s.now) { // what a checkpoint would say now
			q := l.state.queues[st.Queue.ID]
			if q == nil || q.Busy != st.Queue.Busy || q.ChangedAt != st.Queue.ChangedAt || q.Feeding != st.Queue.Feeding {
				t.Fatalf("a checkpoint has %+v, the engine %+v", q, st.Queue)
			}
		}
		items, r := readAll(t, path)
		e, err := engine.New(r.Header.Config)
		if err != nil {
			t.Fatal(err)
		}
		at := 0
		for _, it := range items {
			if it.Event == nil {
				t.Fatalf("unexpected item %+v", it)
			}
			want := s.seen[at]
			at++
			got := *it.Event
			if got.Kind != want.Kind || got.ID != wantID(&want) || got.On != want.On || got.Name != want.Name || !reflect.DeepEqual(got.Hint, want.Hint) ||
				!slices.Equal(got.Changes, want.Changes) || want.At != 0 && got.At != want.At {
				t.Fatalf("event %d: got %+v, want %+v", at, got, want)
			}
			changes, wake, err := e.Do(it.Event)
			if err != nil {
				t.Fatal(err)
			}
			if got.Kind == engine.EventDecide && (!slices.Equal(changes, want.Changes) || wake != want.Wake || got.Wake != want.Wake) {
				t.Fatalf("decision %d: %v, recorded %v", at, changes, want.Changes)
			}
		}
		if at != len(s.seen) {
			t.Fatalf("%d of %d events in the recording", at, len(s.seen))
		}
	})
}

func wantID(ev *engine.Event) model.QueueID {
	if ev.Queue != nil {
		return ev.Queue.ID
	}
	return ev.ID
}

// TestRotation: the files are bounded, the oldest go, and what is left begins with a state.
func TestRotation(t *testing.T) {
	const fileBytes, files = 8000, 3
	path := filepath.Join(t.TempDir(), "rec")
	l := create(t, path, Options{FileBytes: fileBytes, Files: files})
	s := newLife(t, l)
	x := uint32(1)
	for range 5000 {
		s.step(func(n int) int { x = x*1664525 + 1013904223; return int(x>>8) % n })
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != files {
		t.Fatalf("%d files, %v", len(entries), err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || info.Size() > fileBytes+2000 {
			t.Errorf("%s has %d bytes, %v", e.Name(), info.Size(), err)
		}
	}
	items, r := readAll(t, path)
	if r.Header.Part == 0 || len(items) < 3 || items[0].Gap == nil || items[1].State == nil && items[2].State == nil {
		t.Fatalf("part %d, first items %+v", r.Header.Part, items[:min(3, len(items))])
	}
	last := s.seen[len(s.seen)-1]
	if got := items[len(items)-1].Event; got == nil || got.Kind != engine.EventDecide || got.At != last.At {
		t.Errorf("the last event is %+v, want %+v", got, last)
	}
}

// TestTorn cuts a recording everywhere: all whole records are read, nothing else, and there is no error.
func TestTorn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rec")
	l := create(t, path, Options{})
	s := newLife(t, l)
	x := uint32(7)
	for range 60 {
		s.step(func(n int) int { x = x*1664525 + 1013904223; return int(x>>8) % n })
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	count := func(b []byte) int {
		r, err := NewReader(bytes.NewReader(b))
		if err != nil {
			return -1
		}
		for n := 0; ; n++ {
			if _, err := r.Next(); errors.Is(err, io.EOF) {
				return n
			} else if err != nil {
				t.Fatalf("%d bytes: %v", len(b), err)
			}
		}
	}
	whole := count(text)
	if whole != len(s.seen) {
		t.Fatalf("%d records, want %d", whole, len(s.seen))
	}
	before := -1
	for n := range text {
		got := count(text[:n])
		if got < before || got > whole {
			t.Fatalf("%d records in %d bytes, %d in one less", got, n, before)
		}
		before = got
	}
	if before < whole-1 {
		t.Errorf("one byte less loses %d records", whole-before)
	}
}

// TestGap: a writer that can't keep up costs records, never time; the recording says so and goes on with
// the state.
func TestGap(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rec")
	l := create(t, path, Options{RingBytes: minRing})
	s := newLife(t, l)
	for i := range 4 {
		s.e.AddQueue(s.now, model.Queue{ID: model.QueueID{Session: model.SessionID(i + 1)}, PID: i + 1, Device: 1, Level: 3, Slices: true})
	}
	burst := func() {
		for i := range 20_000 {
			s.now += 1000
			s.e.SetBusy(s.now, model.QueueID{Session: model.SessionID(i%4 + 1)}, i/4%2 == 0)
			s.e.Decide(s.now)
		}
	}
	burst()
	deadline := time.Now().Add(10 * time.Second)
	for l.ring.free() < len(l.ring.buf) && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond) // the writer catches up
	}
	s.e.Decide(s.now + 1000)
	s.e.SetBusy(s.now+2000, model.QueueID{Session: 1}, true)
	s.e.Decide(s.now + 2000)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	st := l.Stats()
	if st.Dropped == 0 {
		t.Skip("the writer kept up with everything")
	}
	var lost uint64
	states, events := 0, 0
	items, _ := readAll(t, path)
	for i, it := range items {
		switch {
		case it.Gap != nil:
			lost += it.Gap.Records
			if i+1 >= len(items) || items[i+1].State == nil {
				t.Errorf("no state after the gap")
			}
		case it.State != nil:
			states++
			adds := 0
			for _, ev := range it.State.Events {
				if ev.Kind == engine.EventAdd {
					adds++
				}
			}
			if adds != 4 {
				t.Errorf("%d queues in the state", adds)
			}
		case it.Event != nil:
			events++
		}
	}
	if lost != st.Dropped || states == 0 || events+int(lost) != len(s.seen) {
		t.Errorf("%d lost in %d states, dropped %d; %d events of %d", lost, states, st.Dropped, events, len(s.seen))
	}
}

// TestFullDisk: a file that can't be written ends the recording, not the daemon.
func TestFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no /dev/full")
	}
	if _, err := Create("/dev/full", Options{}); err == nil {
		t.Fatal("a recording on a full disk began")
	}
	if _, err := Create(filepath.Join(t.TempDir(), "none", "rec"), Options{}); err == nil {
		t.Fatal("a recording in no folder began")
	}
}

func TestNoRecording(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "other": "hello world", "newer": "XSREC\x02\n", "no header": magic, "short": "XSR",
	} {
		if _, err := NewReader(bytes.NewReader([]byte(text))); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzReader: no file makes the reader fail in another way than by an error, nor read for ever.
func FuzzReader(f *testing.F) {
	path := filepath.Join(f.TempDir(), "rec")
	l, err := Create(path, Options{Header: Header{Base: base, Config: engine.DefaultConfig()}})
	if err != nil {
		f.Fatal(err)
	}
	s := newLife(f, l)
	l.Name(1, "program")
	x := uint32(3)
	for range 40 {
		s.step(func(n int) int { x = x*1664525 + 1013904223; return int(x>>8) % n })
	}
	l.lost = 3
	l.checkpoint(s.now)
	if err := l.Close(); err != nil {
		f.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text[:len(text)/2])
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := NewReader(bytes.NewReader(resign(b)))
		if err != nil {
			return
		}
		e, err := engine.New(engine.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		for n := 0; ; n++ {
			it, err := r.Next()
			if err != nil {
				return
			}
			if n > len(b) {
				t.Fatal("more items than bytes")
			}
			if it.Event != nil {
				_, _, _ = e.Do(it.Event)
			}
		}
	})
}

// resign makes the checksums right, so that a fuzzer gets behind them.
func resign(b []byte) []byte {
	if len(b) < len(magic) {
		return b
	}
	out := append([]byte(nil), b[:len(magic)]...)
	for at := len(magic); at < len(b); {
		length, n := binary.Uvarint(b[at:])
		if n <= 0 || length == 0 || length > maxBody || at+n+int(length)+2 > len(b) {
			return append(out, b[at:]...)
		}
		out = frame(out, b[at+n:at+n+int(length)])
		at += n + int(length) + 2
	}
	return out
}

func BenchmarkEvent(b *testing.B) {
	l := create(b, filepath.Join(b.TempDir(), "rec"), Options{})
	s := newLife(b, l)
	s.e.Observe(nil)
	ev := engine.Event{Kind: engine.EventBusy, ID: model.QueueID{Session: 5}, At: base}
	b.ReportAllocs()
	for b.Loop() {
		ev.At += 1000
		l.event(&ev)
	}
	_ = l.Close()
}
