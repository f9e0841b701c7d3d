// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"xsched/internal/atomicfile"
	"xsched/internal/engine"
	"xsched/internal/model"
)

// fataler is what testing.T and rapid.T have in common.
type fataler interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// life drives an engine through random events and records the observed ones.
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
	l.Attach(e, s.now, func(id model.SessionID) string { return fmt.Sprint("program ", id) })
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

// step performs one random event; pick returns a number below n.
func (s *life) step(pick func(n int) int) {
	s.now += model.Time(1 + pick(3_000_000))
	hint := model.Hint{Priority: model.Priority(pick(5) - 2), Utilization: pick(100), Deadline: time.Duration(pick(1000)) * time.Millisecond}
	if pick(4) == 0 {
		hint.Gang = fmt.Sprint("gang", pick(2))
	}
	hint.Cap = model.Cap{On: hint.Utilization%2 == 0, Priority: hint.Priority}
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
			ID: id, PID: 100 + int(id.Session), User: fmt.Sprint(id.Session % 2), Best: model.Level(pick(4)), Device: model.DeviceID(1 + pick(2)), Hint: hint, Level: model.Level(1 + pick(3)),
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
		s.e.SetLevel(s.now, anyID(), model.Level(1+pick(3)), model.Level(pick(4)), pick(2) == 0)
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

// quiet creates a Log whose writer runs only when the test calls flush, so that tests decide
// what is in the queue.
func quiet(t fataler, path string, o Options) *Log {
	t.Helper()
	o.Header.Base, o.Header.Config, o.Header.Program = base, engine.DefaultConfig(), "test"
	l, err := create(path, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func finish(t fataler, l *Log) {
	t.Helper()
	l.flush()
	l.fail(l.file.Close())
	if err := l.Stats().Err; err != nil {
		t.Fatal(err)
	}
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

// lcg returns a pick function for life.step.
func lcg(x uint32) func(n int) int {
	return func(n int) int { x = x*1664525 + 1013904223; return int(x>>8) % n }
}

// Any history of an engine is recorded completely and in order over as many files as it takes,
// and another engine that gets the same events makes the same decisions.
func TestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		path := filepath.Join(dir, fmt.Sprint(n))
		fileBytes := rapid.SampledFrom([]int64{1000, 5000, 1 << 20}).Draw(t, "file bytes")
		l := quiet(t, path, Options{FileBytes: fileBytes, Files: 200})
		s := newLife(t, l)
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			s.step(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") })
			if rapid.IntRange(0, 9).Draw(t, "flush") == 0 {
				l.flush()
			}
		}
		finish(t, l)
		if st := l.Stats(); st.Dropped != 0 {
			t.Fatalf("%d records dropped", st.Dropped)
		}
		items, r := readAll(t, path)
		e, err := engine.New(r.Header.Config)
		if err != nil {
			t.Fatal(err)
		}
		for at, it := range items {
			if it.Event == nil || at >= len(s.seen) {
				t.Fatalf("unexpected item %+v", it)
			}
			want, got := s.seen[at], *it.Event
			if want.Queue != nil {
				want.ID, want.PID = want.Queue.ID, want.Queue.PID
				want.Queue = recorded(want.Queue)
				if it.Program != fmt.Sprint("program ", want.ID.Session) {
					t.Fatalf("event %d: program %q", at, it.Program)
				}
			}
			if want.At == 0 {
				want.At = got.At
			}
			if len(want.Changes) == 0 {
				want.Changes = nil
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("event %d: got %+v, want %+v", at, got, want)
			}
			changes, wake, err := e.Do(it.Event)
			if err != nil {
				t.Fatal(err)
			}
			if got.Kind == engine.EventDecide && (!slices.Equal(changes, want.Changes) || wake != want.Wake) {
				t.Fatalf("decision %d: %v, recorded %v", at, changes, want.Changes)
			}
		}
		if len(items) != len(s.seen) {
			t.Fatalf("%d of %d events in the recording", len(items), len(s.seen))
		}
	})
}

// recorded is a queue without derived fields.
func recorded(q *model.Queue) *model.Queue {
	return &model.Queue{
		ID: q.ID, PID: q.PID, User: q.User, Device: q.Device, Hint: q.Hint, Level: q.Level, Best: q.Best, Slices: q.Slices, Busy: q.Busy, ChangedAt: q.ChangedAt,
		Guessed: q.Guessed, Held: q.Held,
	}
}

// The number and size of files are bounded, the oldest goes first, and the rest starts with the
// engine's state at that time.
func TestRotation(t *testing.T) {
	const fileBytes, files = 8000, 3
	path := filepath.Join(t.TempDir(), "rec")
	l := quiet(t, path, Options{FileBytes: fileBytes, Files: files})
	s := newLife(t, l)
	pick := lcg(1)
	s.e.SetUnmanaged(s.now, 7, true)
	for i := range 5000 {
		if s.step(pick); i%10 == 0 {
			l.flush()
		}
	}
	finish(t, l)
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != files {
		t.Fatalf("%d files, %v", len(entries), err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || info.Size() > fileBytes+3000 || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has %d bytes, mode %v, %v", e.Name(), info.Size(), info.Mode(), err)
		}
	}
	items, r := readAll(t, path)
	if r.Header.Part == 0 || len(items) < 3 || items[0].State == nil || !items[0].State.Gap {
		t.Fatalf("part %d, first items %+v", r.Header.Part, items[:min(3, len(items))])
	}
	if !slices.ContainsFunc(items[0].State.Items, func(it Item) bool { return it.Event.Kind == engine.EventUnmanaged && it.Event.Device == 7 }) {
		t.Errorf("the checkpoint lacks the unmanaged device: %+v", items[0].State.Items)
	}
	events := items[1:]
	for i, it := range events {
		want := s.seen[len(s.seen)-len(events)+i]
		if it.Event == nil || it.Event.Kind != want.Kind || want.At != 0 && it.Event.At != want.At {
			t.Fatalf("item %d of %d is %+v, want %+v", i, len(events), it.Event, want)
		}
	}
	// The checkpoint and the events after it lead to the engine's final state.
	got := map[model.QueueID]model.Queue{}
	for _, it := range append(items[0].State.Items, events...) {
		switch ev := it.Event; ev.Kind {
		case engine.EventAdd:
			got[ev.ID] = *ev.Queue
		case engine.EventRemove:
			delete(got, ev.ID)
		case engine.EventBusy:
			if q, ok := got[ev.ID]; ok {
				q.Busy, q.ChangedAt = ev.On, ev.At
				got[ev.ID] = q
			}
		}
	}
	all := s.e.Snapshot(s.now)
	if len(got) != len(all) {
		t.Errorf("%d queues, the engine has %d", len(got), len(all))
	}
	for _, q := range all {
		if g := got[q.Queue.ID]; g.Busy != q.Queue.Busy || g.ChangedAt != q.Queue.ChangedAt || g.PID != q.Queue.PID {
			t.Errorf("queue %+v, the engine has %+v", g, q.Queue)
		}
	}
}

// A recording cut off anywhere yields its whole records up to the cut, and no error.
func TestTorn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rec")
	l := quiet(t, path, Options{})
	s := newLife(t, l)
	pick := lcg(7)
	flushed := map[int64]int{} // events on disk by file size
	for i := range 60 {
		if s.step(pick); i%6 == 5 {
			l.flush()
			flushed[l.file.size] = len(s.seen)
		}
	}
	finish(t, l)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	count := func(b []byte) (n int, torn bool) {
		r, err := NewReader(bytes.NewReader(b))
		if err != nil {
			return -1, true
		}
		for ; ; n++ {
			if _, err := r.Next(); errors.Is(err, io.EOF) {
				return n, r.Truncated
			} else if err != nil {
				t.Fatalf("%d bytes: %v", len(b), err)
			}
		}
	}
	before, whole := -1, 0
	for n := range len(text) + 1 {
		got, torn := count(text[:n])
		if at, ok := flushed[int64(n)]; ok {
			whole++
			if got != at || torn {
				t.Fatalf("%d records in %d bytes, torn: %v; %d were flushed", got, n, torn, at)
			}
		}
		if got < before || got > len(s.seen) {
			t.Fatalf("%d records in %d bytes, %d in one less", got, n, before)
		}
		before = got
	}
	if whole != 10 || before != len(s.seen) {
		t.Errorf("%d flushes seen, %d records of %d", whole, before, len(s.seen))
	}
	zeros := append(slices.Clone(text), make([]byte, 4096)...) // as after a power loss
	if got, torn := count(zeros); got != len(s.seen) || !torn {
		t.Errorf("with zeros behind it: %d records, torn: %v", got, torn)
	}
}

// A writer that cannot keep up costs records, not time. The recording counts them and continues
// with a checkpoint.
func TestGap(t *testing.T) {
	const queue = 1000
	path := filepath.Join(t.TempDir(), "rec")
	l := quiet(t, path, Options{Queue: queue})
	s := newLife(t, l)
	for i := range 4 {
		s.e.AddQueue(s.now, model.Queue{ID: model.QueueID{Session: model.SessionID(i + 1)}, PID: i + 1, Device: 1, Level: 3, Slices: true})
	}
	burst := func(n int) {
		for i := range n {
			s.now += 1000
			s.e.SetBusy(s.now, model.QueueID{Session: model.SessionID(i%4 + 1)}, i/4%2 == 0)
			s.e.Decide(s.now)
		}
	}
	burst(5000)
	if got, want := l.Stats().Dropped, uint64(len(s.seen)-queue); got != want {
		t.Fatalf("%d records dropped with a stalled writer, want %d", got, want)
	}
	l.flush()
	burst(50)
	if l.lost != 0 {
		t.Fatal("no checkpoint although there is room")
	}
	finish(t, l)
	var lost uint64
	states, events := 0, 0
	items, _ := readAll(t, path)
	for _, it := range items {
		if it.Event != nil {
			events++
			continue
		}
		states++
		lost += it.State.Lost
		adds := 0
		for _, part := range it.State.Items {
			if part.Event.Kind == engine.EventAdd {
				adds++
			}
		}
		if adds != 4 || !it.State.Gap {
			t.Errorf("%d queues in the checkpoint, gap: %v", adds, it.State.Gap)
		}
	}
	if dropped := l.Stats().Dropped; lost != dropped || states != 1 || events+int(lost) != len(s.seen) {
		t.Errorf("%d lost in %d checkpoints, dropped %d; %d events of %d", lost, states, dropped, events, len(s.seen))
	}
}

// With Wait nothing is lost, however short the queue is.
func TestWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rec")
	l, err := Create(path, Options{Queue: 8, Wait: true, Header: Header{Base: base, Config: engine.DefaultConfig()}})
	if err != nil {
		t.Fatal(err)
	}
	s := newLife(t, l)
	pick := lcg(5)
	for range 2000 {
		s.step(pick)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if items, _ := readAll(t, path); len(items) != len(s.seen) || l.Stats().Dropped != 0 {
		t.Errorf("%d records of %d", len(items), len(s.seen))
	}
}

// fourFiles writes a recording of four files and returns the name of the newest.
func fourFiles(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rec")
	l := quiet(t, path, Options{FileBytes: 4000, Files: 100})
	s := newLife(t, l)
	pick := lcg(9)
	for l.part < 3 {
		s.step(pick)
		l.flush()
	}
	finish(t, l)
	return path
}

// gapsOf counts the checkpoints behind lost events.
func gapsOf(items []Item) (gaps int) {
	for _, it := range items {
		if it.State != nil {
			gaps++
		}
	}
	return gaps
}

// A damaged or missing file in the middle is a gap; the next file's checkpoint follows it.
func TestDamagedFile(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"cut off": func(path string) error { return os.Truncate(path, 3000) },
		"flipped": func(path string) error {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			copy(b[len(b)-8:], "12345678") // checksum and length of the last member
			return os.WriteFile(path, b, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := fourFiles(t)
			if err := damage(atomicfile.Numbered(path, 2)); err != nil {
				t.Fatal(err)
			}
			items, r := readAll(t, path)
			gaps := gapsOf(items)
			if gaps != 1 || !r.Truncated {
				t.Errorf("%d gaps, truncated: %v", gaps, r.Truncated)
			}
		})
	}
}

// A later file without a readable header, such as one created by a daemon killed at that moment,
// costs only its own records.
func TestFileWithoutHeader(t *testing.T) {
	for _, c := range []struct{ file, size, gaps int }{{0, 0, 0}, {0, 10, 0}, {0, 40, 0}, {1, 0, 1}, {1, 40, 1}} {
		t.Run(fmt.Sprintf("file %d has %d bytes", c.file, c.size), func(t *testing.T) {
			path := fourFiles(t)
			whole, _ := readAll(t, path)
			if err := os.Truncate(atomicfile.Numbered(path, c.file), int64(c.size)); err != nil {
				t.Fatal(err)
			}
			items, r := readAll(t, path)
			gaps := gapsOf(items)
			if len(items) < len(whole)/3 || gaps != c.gaps || !r.Truncated {
				t.Errorf("%d items of %d, %d gaps, truncated: %v", len(items), len(whole), gaps, r.Truncated)
			}
		})
	}
}

// A write error ends the recording, not the daemon.
func TestWriteError(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full")
	}
	l := quiet(t, filepath.Join(t.TempDir(), "rec"), Options{Queue: 10})
	l.file.File = full
	s := newLife(t, l)
	pick := lcg(1)
	for range 100 {
		s.step(pick)
		l.flush()
	}
	if err := l.Stats().Err; !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v", err)
	}
	if _, err := Create(filepath.Join(t.TempDir(), "none", "rec"), Options{}); err == nil {
		t.Error("a recording was created in a folder that does not exist")
	}
}

// A request for a checkpoint during a checkpoint is not lost: the file could not be rotated.
func TestCheckpointRequestIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := quiet(t, filepath.Join(t.TempDir(), "rec"), Options{Wait: true, Queue: 1})
		defer finish(t, l)
		s := newLife(t, l)
		l.queue <- entry{state: &State{}}
		go l.checkpoint(s.now)
		synctest.Wait() // the queue is full
		l.wantState.Store(true)
		<-l.queue
		synctest.Wait()
		if !l.wantState.Load() {
			t.Error("the request was lost")
		}
		l.o.Wait = false
		if l.checkpoint(s.now); !l.wantState.Load() {
			t.Error("a full queue lost the request")
		}
		<-l.queue
		if l.checkpoint(s.now); l.wantState.Load() {
			t.Error("the request was served and is still there")
		}
	})
}

func TestNotARecording(t *testing.T) {
	zipped := func(text string) string {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write([]byte(text))
		_ = z.Close()
		return b.String()
	}
	for _, c := range []struct{ text, want string }{
		{"", "not a recording"},
		{"hello world", "not a recording"},
		{"XSREC\x01\n", "binary format of an older xsched"},
		{zipped(""), "no header"},
		{zipped("{}\n"), "no header"},
		{zipped(`{"header":{"version":3,"program":"9.9"}}` + "\n"), "version 3 is not supported; replay it with the version of xsched that wrote it (9.9)"},
		{zipped(`{"header":{"version":2,"base_ns":-1}}` + "\n"), "out of range"},
	} {
		if _, err := NewReader(strings.NewReader(c.text)); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.20q: %v", c.text, err)
		}
	}
}

// FuzzReader: every input ends in an error or at its end, and no event breaks an engine.
func FuzzReader(f *testing.F) {
	path := filepath.Join(f.TempDir(), "rec")
	l := quiet(f, path, Options{})
	s := newLife(f, l)
	pick := lcg(3)
	for range 40 {
		s.step(pick)
	}
	l.lost = 3
	l.checkpoint(s.now)
	finish(f, l)
	file, err := os.Open(path)
	if err != nil {
		f.Fatal(err)
	}
	z, err := gzip.NewReader(file)
	if err != nil {
		f.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text[:len(text)/2])
	f.Fuzz(func(t *testing.T, b []byte) {
		var zipped bytes.Buffer // so that the fuzzer gets behind the checksum
		z := gzip.NewWriter(&zipped)
		_, _ = z.Write(b)
		_ = z.Close()
		for _, in := range []io.Reader{bytes.NewReader(b), &zipped} {
			r, err := NewReader(in)
			if err != nil {
				continue
			}
			e, err := engine.New(engine.DefaultConfig())
			if err != nil {
				t.Fatal(err)
			}
			for {
				it, err := r.Next()
				if err != nil {
					break
				}
				if it.Event != nil {
					_, _, _ = e.Do(it.Event)
				}
			}
		}
	})
}

// BenchmarkEvent measures what an event costs the engine's loop.
func BenchmarkEvent(b *testing.B) {
	l := quiet(b, filepath.Join(b.TempDir(), "rec"), Options{})
	s := newLife(b, l)
	s.e.Observe(nil)
	ev := engine.Event{Kind: engine.EventBusy, ID: model.QueueID{Session: 5}, At: base}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		ev.At += 1000
		l.event(&ev)
		if i%10_000 == 9999 {
			b.StopTimer()
			l.flush()
			b.StartTimer()
		}
	}
	finish(b, l)
	if n := l.Stats().Dropped; n != 0 {
		b.Fatalf("%d dropped", n)
	}
}

// BenchmarkWriter measures encoding, compressing and writing, beside the engine.
func BenchmarkWriter(b *testing.B) {
	l := quiet(b, filepath.Join(b.TempDir(), "rec"), Options{})
	s := newLife(b, l)
	s.e.Observe(nil)
	ev := engine.Event{Kind: engine.EventBusy, At: base}
	for i := 0; b.Loop(); i++ {
		ev.At += model.Time(1000 + i*7919%5000)
		ev.ID.Session, ev.On = model.SessionID(i%4+1), i/4%2 == 0
		l.event(&ev)
		if i%1000 == 999 {
			l.flush()
		}
	}
	finish(b, l)
	b.ReportMetric(float64(l.Stats().Bytes)/float64(b.N), "bytes/event")
}
