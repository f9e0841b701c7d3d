// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/atomicfile"
	"xsched/internal/engine"
	"xsched/internal/model"
)

// Recorder is the engine loop's view of a recording.
type Recorder interface {
	// Attach starts recording an engine; program names the process behind a session. Both are
	// used on the engine's goroutine only, which must be the caller's.
	Attach(e *engine.Engine, now model.Time, program func(model.SessionID) string)
}

// Options of Create. Zero values select the defaults.
type Options struct {
	Header    Header
	FileBytes int64 // start a new file at the first checkpoint beyond this size; default 64 MB
	Files     int   // files kept; default 4
	Queue     int   // events between the engine and the writer; default 16384
	// Wait makes a full queue block the engine instead of dropping events. For simulations.
	Wait bool
	Log  *slog.Logger
}

const (
	flushPeriod = 100 * time.Millisecond
	maxProgram  = 256 // bytes of a program's name
)

// Log writes a recording. The engine's goroutine sends copies of events to a channel of bounded
// length; another goroutine encodes, compresses and writes them. Events that do not fit are
// dropped and counted, and a checkpoint follows as soon as there is room.
type Log struct {
	path  string
	o     Options
	queue chan entry
	kick  chan struct{}
	quit  chan struct{}
	done  chan struct{}
	once  sync.Once

	// Owned by the engine's goroutine.
	engine    *engine.Engine
	program   func(model.SessionID) string
	unmanaged map[model.DeviceID]bool
	bounds    bool   // they have changed
	lost      uint64 // dropped since the last checkpoint

	// Owned by the writer's goroutine.
	file countingFile
	zip  *gzip.Writer
	buf  *bufio.Writer
	json *json.Encoder
	part int
	full bool // the file has reached its size and waits for a checkpoint

	wantState        atomic.Bool
	records, dropped atomic.Uint64
	bytes            atomic.Int64
	failed           atomic.Pointer[error]
}

var _ Recorder = (*Log)(nil)

// entry is an event by value, to spare the engine an allocation, or a checkpoint.
type entry struct {
	event   engine.Event
	program string
	state   *State
}

// Stats of a recording.
type Stats struct {
	Records, Dropped uint64
	Bytes            int64
	Err              error // ended the recording early
}

// Create starts a recording at path and removes an older one there. If any of its names holds
// other data, it changes nothing and fails. It refuses anything but a regular file: a symbolic
// link could have been planted by another user.
func Create(path string, o Options) (*Log, error) {
	l, err := create(path, o)
	if err != nil {
		return nil, fmt.Errorf("create recording: %w", err)
	}
	go l.run()
	return l, nil
}

// create is Create without the writer's goroutine.
func create(path string, o Options) (*Log, error) {
	if o.FileBytes == 0 {
		o.FileBytes = 64 << 20
	}
	if o.Files == 0 {
		o.Files = 4
	}
	o.Files = max(o.Files, 2)
	if o.Queue == 0 {
		o.Queue = 16384
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	l := &Log{
		path: path, o: o, queue: make(chan entry, o.Queue), kick: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
		unmanaged: map[model.DeviceID]bool{},
	}
	l.zip, _ = gzip.NewWriterLevel(nil, gzip.BestSpeed) // fails only for an unknown level
	l.buf = bufio.NewWriterSize(l.zip, 64<<10)
	l.json = json.NewEncoder(l.buf)
	l.json.SetEscapeHTML(false)
	old, err := older(path, o.Files)
	if err != nil {
		return nil, err
	}
	for _, name := range old {
		if err := os.Remove(name); err != nil {
			return nil, err
		}
	}
	return l, l.begin(nil)
}

// older returns the files of an older recording at path, of which at most count are kept. It
// refuses every name that rotation would replace or a Reader would open, but that holds other data.
func older(path string, count int) (names []string, err error) {
	for i := range count + 1 {
		name := atomicfile.Numbered(path, i)
		info, err := os.Lstat(name)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			return nil, err
		case !info.Mode().IsRegular():
			return nil, fmt.Errorf("%s exists and is not a regular file; remove it or choose another name", name)
		case i == count:
			return nil, fmt.Errorf("%s exists, but a recording has %d files at most; remove it or choose another name", name, count)
		}
		recording, err := isRecording(name)
		if err != nil {
			return nil, err
		}
		if !recording {
			return nil, fmt.Errorf("%s exists and is not a recording; remove it or choose another name", name)
		}
		names = append(names, name)
	}
	return names, nil
}

// Attach implements Recorder. Existing queues go into a checkpoint.
func (l *Log) Attach(e *engine.Engine, now model.Time, program func(model.SessionID) string) {
	l.engine, l.program = e, program
	if len(e.Snapshot(now)) > 0 {
		l.checkpoint(now)
	}
	e.Observe(l.event)
}

// event is the engine's observer.
func (l *Log) event(ev *engine.Event) {
	en := entry{event: *ev}
	switch ev.Kind {
	case engine.EventAdd:
		q := *ev.Queue
		en.event.Queue, en.program = &q, l.name(q.ID)
	case engine.EventHint, engine.EventQueueHint:
		h := *ev.Hint
		en.event.Hint = &h
	case engine.EventBounds:
		l.bounds = true
	case engine.EventUnmanaged:
		if ev.On {
			l.unmanaged[ev.Device] = true
		} else {
			delete(l.unmanaged, ev.Device)
		}
	case engine.EventDecide:
		en.event.Changes = slices.Clone(ev.Changes)
	}
	if l.lost > 0 || !l.push(en) {
		l.lost++
		l.dropped.Add(1)
	}
	if ev.Kind == engine.EventDecide && (l.wantState.Load() || l.lost > 0 && len(l.queue) <= l.o.Queue/4) {
		l.checkpoint(ev.At)
	}
}

func (l *Log) name(id model.QueueID) string {
	name := l.program(id.Session)
	return name[:min(len(name), maxProgram)]
}

// push queues an entry unless the queue is full. The writer polls: waking it costs the engine
// more than sending, so push wakes it only once the queue is half full.
func (l *Log) push(en entry) bool {
	if len(l.queue) >= l.o.Queue/2 {
		select {
		case l.kick <- struct{}{}:
		default:
		}
	}
	if l.o.Wait {
		l.queue <- en
		return true
	}
	select {
	case l.queue <- en:
		return true
	default:
		return false
	}
}

// checkpoint queues the engine's state.
func (l *Log) checkpoint(now model.Time) {
	s := &State{At: now, Lost: l.lost}
	put := func(ev engine.Event, program string) {
		ev.At = now
		s.Items = append(s.Items, Item{Event: &ev, Program: program})
	}
	cfg := l.engine.Config()
	put(engine.Event{Kind: engine.EventPolicy, Name: cfg.Policy}, "")
	put(engine.Event{Kind: engine.EventMode, Name: string(cfg.Mode), Level: cfg.ForceLevel}, "")
	for _, id := range slices.Sorted(maps.Keys(cfg.Devices)) {
		if s := cfg.Devices[id]; s.Policy != "" {
			put(engine.Event{Kind: engine.EventPolicy, Device: id, Name: s.Policy}, "")
		}
		if s := cfg.Devices[id]; s.Mode != "" {
			put(engine.Event{Kind: engine.EventMode, Device: id, Name: string(s.Mode), Level: s.ForceLevel}, "")
		}
	}
	if cfg.Quantum > 0 {
		put(engine.Event{Kind: engine.EventQuantum, Length: cfg.Quantum}, "")
	}
	if l.bounds {
		put(engine.Event{Kind: engine.EventBounds, Length: cfg.Hold, Tail: cfg.StarvationBound}, "")
	}
	for _, id := range slices.Sorted(maps.Keys(l.unmanaged)) {
		put(engine.Event{Kind: engine.EventUnmanaged, Device: id, On: true}, "")
	}
	for _, q := range l.engine.Snapshot(now) {
		put(engine.Event{Kind: engine.EventAdd, Queue: &q.Queue}, l.name(q.Queue.ID))
	}
	// Cleared first: the writer may ask again as soon as it has this checkpoint.
	wanted := l.wantState.Swap(false)
	if l.push(entry{state: s}) {
		l.lost = 0
	} else if wanted {
		l.wantState.Store(true)
	}
}

// Stats returns the counts so far.
func (l *Log) Stats() Stats {
	s := Stats{Records: l.records.Load(), Dropped: l.dropped.Load(), Bytes: l.bytes.Load()}
	if err := l.failed.Load(); err != nil {
		s.Err = *err
	}
	return s
}

// Close writes what is queued and ends the recording. The engine must have stopped.
func (l *Log) Close() error {
	l.once.Do(func() { close(l.quit) })
	<-l.done
	return l.Stats().Err
}

// run is the writer's goroutine.
func (l *Log) run() {
	defer close(l.done)
	tick := time.NewTicker(flushPeriod)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.flush()
		case <-l.kick:
			l.flush()
		case <-l.quit:
			l.flush()
			l.fail(l.file.Close())
			return
		}
	}
}

// fail ends the recording; the daemon goes on without it.
func (l *Log) fail(err error) {
	if err == nil || l.failed.Load() != nil {
		return
	}
	err = fmt.Errorf("write recording: %w", err)
	l.failed.Store(&err)
	l.o.Log.Error("recording ended", "file", l.path, "err", err)
}

// flush writes what is queued to the file.
func (l *Log) flush() {
	if len(l.queue) == 0 {
		return
	}
	for range len(l.queue) {
		if en := <-l.queue; l.failed.Load() == nil {
			l.fail(l.write(&en))
		}
	}
	if l.failed.Load() == nil {
		l.fail(l.endMember())
	}
}

func (l *Log) write(en *entry) error {
	if en.state != nil && l.full {
		return l.rotate(en.state)
	}
	item := Item{Event: &en.event, Program: en.program}
	if en.state != nil {
		item = Item{State: en.state}
	}
	l.records.Add(1)
	return l.json.Encode(&item)
}

// endMember completes the gzip member, so that what was written is readable and checked.
func (l *Log) endMember() error {
	if err := errors.Join(l.buf.Flush(), l.zip.Close()); err != nil {
		return err
	}
	l.zip.Reset(&l.file)
	if !l.full && l.file.size >= l.o.FileBytes {
		l.full = true
		l.wantState.Store(true)
	}
	return nil
}

// rotate starts the next file with a checkpoint and drops the oldest file.
func (l *Log) rotate(s *State) error {
	if err := errors.Join(l.endMember(), l.file.Close()); err != nil {
		return err
	}
	if err := atomicfile.Shift(l.path, min(l.part+2, l.o.Files)); err != nil {
		return err
	}
	l.part++
	return l.begin(s)
}

// begin creates a file and writes its header and the checkpoint, if any.
func (l *Log) begin(s *State) error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	l.file, l.full = countingFile{File: f, total: &l.bytes}, false
	h := l.o.Header
	h.Version, h.Part = version, l.part
	items := []Item{{Header: &h}}
	if s != nil {
		h.Base = s.At
		items = append(items, Item{State: s})
		l.records.Add(1)
	}
	l.zip.Reset(&l.file)
	for i := range items {
		if err := l.json.Encode(&items[i]); err != nil {
			return err
		}
	}
	return l.endMember()
}

// countingFile counts what the compressor writes.
type countingFile struct {
	*os.File
	size  int64
	total *atomic.Int64
}

func (f *countingFile) Write(b []byte) (int, error) {
	n, err := f.File.Write(b)
	f.size += int64(n)
	f.total.Add(int64(n))
	return n, err
}
