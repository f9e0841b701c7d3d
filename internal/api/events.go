// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"xsched/internal/control"
	"xsched/internal/identity"
)

const eventsPath = "/events"

// Bounds of the event stream. While a client listens, one goroutine samples the daemon every
// samplePeriod and puts the changes into each listener's bounded buffer.
const (
	samplePeriod   = 100 * time.Millisecond
	sampleShare    = 5 // sampling takes at most a fifth of the time
	eventBuffer    = 1024
	eventBytes     = 32 << 20 // of one listener's buffer, or a single event
	maxListeners   = 64       // no user may have more than are free
	changesAtOnce  = 512      // more changes are sent as a new snapshot
	eventWriteTime = 5 * time.Second
	keepAlive      = 15 * time.Second
)

// QueueEvent reports a queue that was added, changed or removed.
type QueueEvent struct {
	Change  string        `json:"change"` // added, changed, removed
	Handle  string        `json:"handle"` // hexadecimal, as in upstream's routes
	PID     int           `json:"pid"`
	Session uint64        `json:"session"`
	Queue   control.Queue `json:"queue"`
}

// ProcessEvent reports a program that was added or removed, or whose hints changed. Queues have
// events of their own.
type ProcessEvent struct {
	Change  string          `json:"change"`
	Process control.Process `json:"process"`
}

// PreemptionEvent reports the preemptions of a busy queue since the last such event.
type PreemptionEvent struct {
	Handle string          `json:"handle"`
	PID    int             `json:"pid"`
	Pod    string          `json:"pod,omitempty"` // "namespace/pod/container"; empty outside Kubernetes
	Device string          `json:"device"`
	Level  int             `json:"level"`
	Count  uint64          `json:"count"`
	Causes []control.Cause `json:"causes"`
}

// NameEvent is a new policy or mode.
type NameEvent struct {
	Name  string `json:"name"`
	Level int    `json:"level,omitempty"` // of mode "level"
}

// event is encoded once for all listeners, and once more for those who may see a command line.
type event struct {
	name string
	data []byte
	full []byte // with command line; nil: as data
	user identity.User
}

// listener is one client of the event stream.
type listener struct {
	caller control.Caller
	events chan event
	queued atomic.Int64 // bytes in events
	primed bool         // the snapshot was sent
}

// feed samples a Control on behalf of the listeners.
type feed struct {
	control control.Control
	period  time.Duration

	mu        sync.Mutex
	listeners map[*listener]struct{}
	viewers   map[*viewer]struct{}  // see views.go
	perUser   map[identity.User]int // of both, by identity.User.Account
	running   bool                  // for the listeners
	showing   bool                  // for the viewers
	stopped   bool
	quit      chan struct{}
	wake      chan struct{} // a viewer has come
}

func newFeed(c control.Control) *feed {
	return &feed{
		control: c, period: samplePeriod, listeners: map[*listener]struct{}{}, viewers: map[*viewer]struct{}{}, perUser: map[identity.User]int{},
		quit: make(chan struct{}), wake: make(chan struct{}, 1),
	}
}

// stop ends all streams so that the server can shut down.
func (f *feed) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return
	}
	f.stopped = true
	close(f.quit)
}

// enter takes a place for a caller. Preconditions: f.mu is held.
func (f *feed) enter(caller control.Caller) error {
	if f.stopped {
		return &control.Error{Kind: control.ErrUnavailable, Cause: "the daemon is stopping"}
	}
	account := caller.User.Account()
	if free := maxListeners - len(f.listeners) - len(f.viewers); free <= 0 || !account.Root() && f.perUser[account] >= free {
		return &control.Error{
			Kind: control.ErrUnavailable, Cause: fmt.Sprintf("event listener limit reached (%d)", maxListeners),
			Remedy: "close one, or poll " + control.Prefix + "/processes",
		}
	}
	f.perUser[account]++
	return nil
}

// exit gives back a caller's place. Preconditions: f.mu is held.
func (f *feed) exit(caller control.Caller) {
	account := caller.User.Account()
	if f.perUser[account]--; f.perUser[account] == 0 {
		delete(f.perUser, account)
	}
}

func (f *feed) join(caller control.Caller) (*listener, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter(caller); err != nil {
		return nil, err
	}
	l := &listener{caller: caller, events: make(chan event, eventBuffer)}
	f.listeners[l] = struct{}{}
	if !f.running {
		f.running = true
		go f.run()
	}
	return l, nil
}

func (f *feed) leave(l *listener) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(l)
}

// drop ends a listener. Preconditions: f.mu is held.
func (f *feed) drop(l *listener) {
	if _, ok := f.listeners[l]; ok {
		delete(f.listeners, l)
		f.exit(l.caller)
		close(l.events)
	}
}

// run samples until the last listener leaves.
func (f *feed) run() {
	var last *control.List
	for {
		start := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), control.CallTimeout)
		now, err := f.control.List(ctx, control.Caller{})
		cancel()
		if err == nil {
			f.publish(last, &now)
			last = &now
		}
		f.mu.Lock()
		if len(f.listeners) == 0 || f.stopped {
			f.running = false
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		select {
		case <-time.After(max(f.period, sampleShare*time.Since(start))):
		case <-f.quit:
		}
	}
}

// publish sends the changes to all listeners. It compares and encodes without the lock, because programs
// decide how long that takes.
func (f *feed) publish(last, now *control.List) {
	var changes []event
	whole := last == nil
	if last != nil {
		changes = diff(last, now, changesAtOnce)
		whole = len(changes) > changesAtOnce
	}
	snapshots := map[identity.User]event{}
	for user, caller := range f.unprimed(whole) {
		snapshots[user] = newEvent("snapshot", listFor(caller, now))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for l := range f.listeners {
		if l.primed && !whole {
			f.send(l, changes...)
		} else if snapshot, ok := snapshots[l.caller.User]; ok { // otherwise it joined since
			l.primed = true
			f.send(l, snapshot)
		}
	}
}

// unprimed returns the users of listeners without a snapshot, or of all, with one caller each.
func (f *feed) unprimed(all bool) map[identity.User]control.Caller {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[identity.User]control.Caller{}
	for l := range f.listeners {
		if all || !l.primed {
			out[l.caller.User] = l.caller
		}
	}
	return out
}

// send queues events for a listener and drops it if its buffer is full.
func (f *feed) send(l *listener, events ...event) {
	for _, e := range events {
		if e.full != nil && l.caller.Owns(e.user) {
			e.data = e.full
		}
		size := int64(len(e.data))
		if before := l.queued.Add(size) - size; before > 0 && before+size > eventBytes {
			f.drop(l) // snapshots may be large
			return
		}
		select {
		case l.events <- e:
		default:
			f.drop(l)
			return
		}
	}
}

func newEvent(name string, value any) event {
	data, err := json.Marshal(value)
	if err != nil { // our own types
		data = []byte("{}")
	}
	return event{name: name, data: data}
}

// listFor returns a list as a caller may see it.
func listFor(c control.Caller, l *control.List) *control.List {
	out := *l
	out.Processes = make([]control.Process, len(l.Processes))
	for i, p := range l.Processes {
		out.Processes[i] = p.For(c)
	}
	return &out
}

// startStream begins the reply of a stream. push writes texts at once; it returns false after an error.
func startStream(w http.ResponseWriter) (push func(texts ...[]byte) bool, ok bool) {
	response := http.NewResponseController(w)
	_ = response.SetReadDeadline(time.Time{}) // the stream has no end
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	push = func(texts ...[]byte) bool {
		_ = response.SetWriteDeadline(time.Now().Add(eventWriteTime))
		for _, text := range texts {
			if _, err := w.Write(text); err != nil {
				return false
			}
		}
		return response.Flush() == nil
	}
	return push, push([]byte(": xsched events\n\n"))
}

// serve is the handler of the event stream.
func (f *feed) serve(w http.ResponseWriter, r *http.Request, caller control.Caller) {
	var request control.EventsRequest
	if err := readQuery(r.URL.RawQuery, &request); err != nil {
		writeError(w, err)
		return
	}
	if request != (control.EventsRequest{}) {
		v, err := newViewer(caller, request)
		if err != nil {
			writeError(w, err)
			return
		}
		f.serveView(w, r, v)
		return
	}
	f.serveChanges(w, r, caller)
}

// serveChanges is the handler of one listener.
func (f *feed) serveChanges(w http.ResponseWriter, r *http.Request, caller control.Caller) {
	l, err := f.join(caller)
	if err != nil {
		writeError(w, err)
		return
	}
	defer f.leave(l)
	push, ok := startStream(w)
	if !ok {
		return
	}
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	var buffer []byte
	for id := uint64(1); ; id++ {
		select {
		case e, ok := <-l.events:
			if !ok {
				push([]byte("event: dropped\ndata: {\"reason\":\"too slow\"}\n\n"))
				return
			}
			l.queued.Add(-int64(len(e.data)))
			buffer = append(buffer[:0], "id: "...)
			buffer = strconv.AppendUint(buffer, id, 10)
			buffer = append(buffer, "\nevent: "...)
			buffer = append(buffer, e.name...)
			buffer = append(buffer, "\ndata: "...)
			buffer = append(append(buffer, e.data...), "\n\n"...)
			if !push(buffer) {
				return
			}
		case <-alive.C:
			if !push([]byte(": alive\n\n")) {
				return
			}
		case <-f.quit:
			return
		case <-r.Context().Done():
			return
		}
	}
}
