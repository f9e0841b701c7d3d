// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"xsched/internal/control"
	"xsched/internal/identity"
)

const eventsPath = "/events"

// Bounds of the event stream.
const (
	maxViewers     = 64 // no user may have more than are free
	eventWriteTime = 5 * time.Second
	keepAlive      = 15 * time.Second
)

// feed samples a Control on behalf of the viewers.
type feed struct {
	control control.Control

	mu      sync.Mutex
	viewers map[*viewer]struct{}
	perUser map[identity.User]int // viewers, by identity.User.Account
	showing bool                  // runViews runs
	stopped bool
	quit    chan struct{}
	wake    chan struct{} // a viewer has come
}

func newFeed(c control.Control) *feed {
	return &feed{
		control: c, viewers: map[*viewer]struct{}{}, perUser: map[identity.User]int{},
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
	if free := maxViewers - len(f.viewers); free <= 0 || !account.Root() && f.perUser[account] >= free {
		return &control.Error{
			Kind: control.ErrUnavailable, Cause: fmt.Sprintf("event listener limit reached (%d)", maxViewers),
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

// listFor returns a list as a caller may see it.
func listFor(c control.Caller, l *control.List) *control.List {
	out := *l
	out.Processes = make([]control.Process, len(l.Processes))
	for i, p := range l.Processes {
		out.Processes[i] = p.For(c)
	}
	control.NameProcesses(out.Processes)
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
	v, err := newViewer(caller, request)
	if err != nil {
		writeError(w, err)
		return
	}
	f.serveView(w, r, v)
}
