// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/binary"
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

	"xsched/internal/engine"
	"xsched/internal/model"
)

// Recorder is what the engine loop knows of a recording.
type Recorder interface {
	// Attach begins to listen to an engine. It must be called from the engine's goroutine.
	Attach(e *engine.Engine, now model.Time)
	// Name says what the program behind a session is called.
	Name(session model.SessionID, name string)
}

// Options of Create.
type Options struct {
	Header Header
	// FileBytes is the size at which a new file is begun, Files how many are kept.
	FileBytes int64 // 0: 64 MB
	Files     int   // 0: 4
	RingBytes int   // 0: 4 MB
	Log       *slog.Logger
}

const (
	defaultFileBytes = 64 << 20
	defaultFiles     = 4
	defaultRing      = 4 << 20
	minRing          = 4 << 10
	flushPeriod      = 20 * time.Millisecond
)

// Log is a recording that is being written. What the engine's goroutine calls only
// copies into a ring of bounded size; one goroutine writes. If it can't keep up,
// records are lost, counted, and the recording says so and what the state is after.
type Log struct {
	ring   *ring
	kick   chan struct{}
	quit   chan struct{}
	closed chan struct{}
	once   sync.Once

	// The engine's goroutine.
	engine  *engine.Engine
	enc     encoder
	body    []byte
	frame   []byte
	lost    uint64 // not said yet
	dropped atomic.Uint64

	// The writer's.
	path    string
	o       Options
	log     *slog.Logger
	file    *os.File
	bytes   int64
	fresh   bool // the file has only its beginning
	part    int
	state   state
	failed  atomic.Pointer[string]
	records atomic.Uint64
	written atomic.Int64
}

var _ Recorder = (*Log)(nil)

// Stats of a recording.
type Stats struct {
	Records, Dropped uint64
	Bytes            int64
	Failed           string // why nothing is written any more
}

// Create begins a recording at path; older files of that name go, path.1 and so on too.
func Create(path string, o Options) (*Log, error) {
	if o.FileBytes == 0 {
		o.FileBytes = defaultFileBytes
	}
	if o.Files == 0 {
		o.Files = defaultFiles
	}
	if o.RingBytes == 0 {
		o.RingBytes = defaultRing
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	l := &Log{
		ring: newRing(max(o.RingBytes, minRing)), kick: make(chan struct{}, 1), quit: make(chan struct{}), closed: make(chan struct{}),
		path: path, o: o, log: o.Log, state: newState(o.Header.Config),
	}
	l.enc.last = o.Header.Base
	l.state.at = o.Header.Base
	for i := 1; i < o.Files; i++ {
		if err := os.Remove(numbered(path, i)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("remove old recording: %w", err)
		}
	}
	if err := l.begin(); err != nil {
		return nil, err
	}
	go l.run()
	return l, nil
}

func numbered(path string, i int) string {
	if i == 0 {
		return path
	}
	return fmt.Sprintf("%s.%d", path, i)
}

// Attach implements Recorder. Queues that exist already are part of the first checkpoint.
func (l *Log) Attach(e *engine.Engine, now model.Time) {
	l.engine = e
	if len(e.Snapshot(now)) > 0 {
		l.checkpoint(now)
	}
	e.Observe(l.event)
}

// Name implements Recorder.
func (l *Log) Name(session model.SessionID, name string) {
	const most = 256
	b := append(l.body[:0], kindName, 0) // no time has passed
	b = binary.AppendUvarint(b, uint64(session))
	l.body = append(b, name[:min(len(name), most)]...)
	l.push(l.enc.last)
}

// event is the engine's observer.
func (l *Log) event(ev *engine.Event) {
	if l.lost > 0 && !l.resume(ev) {
		l.drop()
		return
	}
	l.body = l.enc.event(l.body[:0], ev)
	l.push(max(ev.At, l.enc.last))
}

func (l *Log) drop() {
	l.lost++
	l.dropped.Add(1)
}

// push hands the body to the writer; at is its time.
func (l *Log) push(at model.Time) {
	l.frame = frame(l.frame[:0], l.body)
	if !l.ring.push(l.frame) {
		l.drop()
		l.wake()
		return
	}
	l.enc.last = at
	if l.ring.free() < len(l.ring.buf)/2 {
		l.wake()
	}
}

func (l *Log) wake() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// resume goes on after a loss, once there is room again: how much was lost, and the state
// as it is. The event under way is part of that state, unless it is a decision.
func (l *Log) resume(ev *engine.Event) bool {
	if l.engine == nil || ev.Kind != engine.EventDecide || l.ring.free() < len(l.ring.buf)*3/4 {
		return false
	}
	l.checkpoint(ev.At)
	return l.lost == 0
}

// checkpoint writes what was lost and the state.
func (l *Log) checkpoint(now model.Time) {
	all, cfg := l.engine.Snapshot(now), l.engine.Config()
	s := newState(cfg)
	s.at = max(now, l.enc.last)
	for i := range all {
		q := all[i].Queue
		s.queues[q.ID] = &q
	}
	var b []byte
	before := l.enc.last
	if l.lost > 0 {
		body := append(l.body[:0], kindGap)
		body = binary.AppendVarint(body, int64(s.at-l.enc.last))
		b = frame(b, binary.AppendUvarint(body, l.lost))
		l.enc.last = s.at
	}
	if b = s.append(b, &l.enc); l.ring.push(b) {
		l.lost = 0
		return
	}
	l.enc.last = before
	l.wake()
}

// Stats returns the counts so far.
func (l *Log) Stats() Stats {
	s := Stats{Records: l.records.Load(), Dropped: l.dropped.Load(), Bytes: l.written.Load()}
	if why := l.failed.Load(); why != nil {
		s.Failed = *why
	}
	return s
}

// Close writes what is left and ends the recording. The engine must not be used meanwhile.
func (l *Log) Close() error {
	l.once.Do(func() { close(l.quit) })
	<-l.closed
	if why := l.failed.Load(); why != nil {
		return errors.New(*why)
	}
	return nil
}

// run is the writer.
func (l *Log) run() {
	defer close(l.closed)
	tick := time.NewTicker(flushPeriod)
	defer tick.Stop()
	var buf []byte
	for done := false; !done; {
		select {
		case <-l.quit:
			done = true
		case <-tick.C:
		case <-l.kick:
		}
		buf = l.ring.take(buf[:0])
		if err := l.write(buf); err != nil {
			l.giveUp(err)
		}
	}
	if l.file != nil {
		if err := l.file.Close(); err != nil {
			l.giveUp(err)
		}
	}
}

// giveUp ends writing: the daemon goes on without.
func (l *Log) giveUp(err error) {
	if l.failed.Load() != nil {
		return
	}
	why := fmt.Sprintf("write recording: %v", err)
	l.failed.Store(&why)
	l.log.Error("recording ends", "file", l.path, "err", err)
}

// write appends whole records to the file, and begins a new one where it is full.
func (l *Log) write(b []byte) error {
	if l.failed.Load() != nil {
		return nil
	}
	start, at := 0, 0
	flush := func() error {
		if at == start {
			return nil
		}
		n, err := l.file.Write(b[start:at])
		l.bytes += int64(n)
		l.written.Add(int64(n))
		start = at
		return err
	}
	for at < len(b) {
		body, n, err := unframe(b[at:])
		if err != nil {
			return fmt.Errorf("read own record: %w", err)
		}
		if l.bytes+int64(at-start+n) > l.o.FileBytes && !l.fresh && !l.state.inCheckpoint {
			if err := flush(); err != nil {
				return err
			}
			if err := l.rotate(); err != nil {
				return err
			}
		}
		if err := l.state.follow(body); err != nil {
			return fmt.Errorf("follow own record: %w", err)
		}
		at += n
		l.fresh = false
		l.records.Add(1)
	}
	return flush()
}

// rotate begins the next file. The oldest one goes.
func (l *Log) rotate() error {
	if err := l.file.Close(); err != nil {
		return err
	}
	for i := min(l.part+1, l.o.Files-1); i > 0; i-- {
		if err := os.Rename(numbered(l.path, i-1), numbered(l.path, i)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	l.part++
	return l.begin()
}

// begin opens a file and writes its header and, but for the first, the state.
func (l *Log) begin() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("create recording: %w", err)
	}
	l.file, l.fresh = f, true
	h := l.o.Header
	h.Part, h.Base = l.part, l.state.at
	text, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("write header: %w", err)
	}
	b := frame([]byte(magic), append([]byte{kindHeader}, text...))
	if l.part > 0 {
		b = l.state.append(b, &encoder{last: l.state.at})
	}
	n, err := f.Write(b)
	l.bytes = int64(n)
	l.written.Add(int64(n))
	if err != nil {
		return fmt.Errorf("write header: %w", err)
	}
	return nil
}

// state is what a reader must know to go on from a place in the middle.
type state struct {
	at           model.Time
	policy       string
	mode         model.Mode
	level        model.Level
	quantum      time.Duration
	queues       map[model.QueueID]*model.Queue
	names        map[model.SessionID]string
	unmanaged    map[model.DeviceID]bool
	inCheckpoint bool
}

func newState(c engine.Config) state {
	return state{
		policy: c.Policy, mode: c.Mode, level: c.ForceLevel, quantum: c.Quantum,
		queues: map[model.QueueID]*model.Queue{}, names: map[model.SessionID]string{}, unmanaged: map[model.DeviceID]bool{},
	}
}

// append writes the state as a checkpoint: enc.last must be s.at already or is moved there.
func (s *state) append(b []byte, enc *encoder) []byte {
	body := binary.AppendVarint([]byte{kindCheckpoint}, int64(s.at-enc.last))
	b = frame(b, body)
	enc.last = s.at
	put := func(ev *engine.Event) {
		ev.At = s.at
		body = enc.event(body[:0], ev)
		b = frame(b, body)
	}
	put(&engine.Event{Kind: engine.EventPolicy, Name: s.policy})
	put(&engine.Event{Kind: engine.EventMode, Name: string(s.mode), Level: s.level})
	if s.quantum > 0 {
		put(&engine.Event{Kind: engine.EventQuantum, Length: s.quantum})
	}
	for _, id := range slices.Sorted(maps.Keys(s.unmanaged)) {
		put(&engine.Event{Kind: engine.EventUnmanaged, Device: id, On: true})
	}
	for _, id := range slices.Sorted(maps.Keys(s.names)) {
		body = binary.AppendUvarint(append(body[:0], kindName, 0), uint64(id))
		b = frame(b, append(body, s.names[id]...))
	}
	for _, q := range slices.SortedFunc(maps.Values(s.queues), byID) {
		put(&engine.Event{Kind: engine.EventAdd, Queue: q})
	}
	return frame(b, append(body[:0], kindEnd, 0))
}
