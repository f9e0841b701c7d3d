// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/identity"
)

// stream reads events from a connection.
type stream struct {
	*bufio.Scanner
	close func()
}

func listen(t *testing.T, url string) *stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if kind := answer.Header.Get("Content-Type"); answer.StatusCode != 200 || kind != "text/event-stream" {
		t.Fatalf("%s %s", answer.Status, kind)
	}
	s := &stream{Scanner: bufio.NewScanner(answer.Body)}
	s.Buffer(nil, 1<<20)
	s.close = func() { cancel(); _ = answer.Body.Close() }
	t.Cleanup(s.close)
	return s
}

// next returns the next event.
func (s *stream) next(t *testing.T) (name, data string) {
	t.Helper()
	for s.Scan() {
		line := s.Text()
		switch {
		case strings.HasPrefix(line, "event: "):
			name = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			data = line[len("data: "):]
		case line == "" && name != "":
			return name, data
		}
	}
	t.Fatalf("the stream ended: %v", s.Err())
	return "", ""
}

func (w *world) change(f func(*control.List)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := w.list
	next.Processes = append([]control.Process(nil), w.list.Processes...)
	for i := range next.Processes {
		next.Processes[i].Queues = append([]control.Queue(nil), next.Processes[i].Queues...)
	}
	f(&next)
	w.list = next
}

func TestEvents(t *testing.T) {
	w := newWorld()
	f := newFeed(w)
	f.period = time.Millisecond
	server := httptest.NewServer(serving(f, control.Caller{}))
	defer server.Close()
	defer f.stop()
	s := listen(t, server.URL)
	name, data := s.next(t)
	var first control.List
	if err := json.Unmarshal([]byte(data), &first); name != "snapshot" || err != nil || len(first.Processes) != 2 {
		t.Fatalf("first event: %s %s", name, data)
	}
	expect := func(name string, parts ...string) {
		t.Helper()
		got, data := s.next(t)
		for _, p := range parts {
			if got != name || !strings.Contains(data, p) {
				t.Errorf("%s %s, want %s with %s", got, data, name, p)
			}
		}
	}
	w.change(func(l *control.List) { l.Policy = "FIFO" })
	expect("policy", `"name":"FIFO"`)
	w.change(func(l *control.List) { l.Mode = "off" })
	expect("mode", `{"name":"off"}`)
	w.change(func(l *control.List) { l.Mode, l.ModeLevel = "level", 1 })
	expect("mode", `{"name":"level","level":1}`)
	w.change(func(l *control.List) { l.ModeLevel = 2 })
	expect("mode", `{"name":"level","level":2}`)
	w.change(func(l *control.List) { // the grant of its pod comes after the program
		p := &l.Processes[1]
		p.Namespace, p.Pod, p.PodContainer = "ml", "train-0", "main"
	})
	expect("process", `"change":"changed"`, `"pod":"train-0"`)
	w.change(func(l *control.List) {
		q := &l.Processes[1].Queues[0]
		q.State, q.Preemptions = "running", 9
		q.PreemptedBy = []control.Cause{{Count: 1, Reason: "hand"}, {PID: 101, Count: 8, Reason: "process"}}
	})
	expect("queue", `"change":"changed"`, `"handle":"0x20000"`, `"state":"running"`)
	expect("preemption", `"count":2`, `"pod":"ml/train-0/main"`, `"causes":[{"pid":101,"count":2,"reason":"process"}]`)
	w.change(func(l *control.List) { l.Processes[0].Priority = 3 })
	expect("process", `"change":"changed"`, `"priority":3`)
	w.change(func(l *control.List) { l.Processes[0].GroupHeld = true })
	expect("process", `"change":"changed"`, `"group_held":true`)
	w.change(func(l *control.List) { l.Processes[0].Counters.Launches++ }) // no news
	w.change(func(l *control.List) { l.Processes = l.Processes[:1] })
	expect("queue", `"change":"removed"`, `"pid":202`)
	expect("process", `"change":"removed"`, `"pid":202`)
	w.change(func(l *control.List) {
		l.Processes = append(l.Processes, control.Process{PID: 5, Session: 3, Queues: []control.Queue{{}}})
	})
	expect("process", `"change":"added"`, `"pid":5`)
	expect("queue", `"change":"added"`, `"handle":"0x30000"`)

	// A second listener starts with a snapshot.
	if name, data := listen(t, server.URL).next(t); name != "snapshot" || !strings.Contains(data, `"pid":5`) {
		t.Errorf("second listener: %s %s", name, data)
	}
	// Too many changes at once become a snapshot.
	w.change(func(l *control.List) {
		for i := range changesAtOnce {
			l.Processes = append(l.Processes, control.Process{PID: 1000 + i, Session: uint64(10 + i), Queues: []control.Queue{{}}})
		}
	})
	expect("snapshot", `"pid":1000`)
	f.stop()
	if s.Scan() && s.Text() != "" {
		t.Errorf("after the end: %s", s.Text())
	}
}

// A client that does not read is dropped; the others and the sampling continue.
func TestSlowListenerIsDropped(t *testing.T) {
	w := newWorld()
	f := newFeed(w)
	slow, err := f.join(control.Caller{})
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.running = true // this test is the sampler
	var many []event
	for i := range eventBuffer + 2 {
		many = append(many, newEvent("policy", NameEvent{Name: fmt.Sprint(i)}))
	}
	f.send(slow, many...)
	_, there := f.listeners[slow]
	f.mu.Unlock()
	if there {
		t.Error("a listener with a full buffer was kept")
	}
	n := 0
	for range slow.events {
		n++
	}
	if n < eventBuffer {
		t.Errorf("%d events were kept, want at least %d", n, eventBuffer)
	}
	f.stop()
}

func TestListenersAreBounded(t *testing.T) {
	f := newFeed(newWorld())
	f.mu.Lock()
	f.running = true
	f.mu.Unlock()
	var all []*listener
	for range maxListeners {
		l, err := f.join(control.Caller{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	if _, err := f.join(control.Caller{}); err == nil {
		t.Error("one too many")
	}
	f.leave(all[0])
	f.leave(all[0])
	if _, err := f.join(control.Caller{}); err != nil {
		t.Error(err)
	}
	f.stop()
	if _, err := f.join(control.Caller{}); err == nil {
		t.Error("joined after the end")
	}
}

// One user can't take all places.
func TestListenersOfOneUser(t *testing.T) {
	f := newFeed(newWorld())
	f.mu.Lock()
	f.running = true
	f.mu.Unlock()
	defer f.stop()
	greedy, n := control.Caller{User: identity.OnHost(1000)}, 0
	for range maxListeners {
		if _, err := f.join(greedy); err == nil {
			n++
		}
	}
	if n != maxListeners/2 {
		t.Errorf("one user has %d listeners, want %d", n, maxListeners/2)
	}
	for _, uid := range []int{1001, 0} {
		if _, err := f.join(control.Caller{User: identity.OnHost(uid)}); err != nil {
			t.Errorf("uid %d: %v", uid, err)
		}
	}
}

// A slow client must not keep many large snapshots in memory.
func TestSlowListenerOfSnapshots(t *testing.T) {
	f := newFeed(newWorld())
	f.mu.Lock()
	f.running = true // this test is the sampler
	f.mu.Unlock()
	defer f.stop()
	slow, err := f.join(control.Caller{})
	if err != nil {
		t.Fatal(err)
	}
	snapshot := event{name: "snapshot", data: make([]byte, 5<<20)}
	f.mu.Lock()
	for range 100 {
		f.send(slow, snapshot)
		if _, there := f.listeners[slow]; !there {
			break
		}
	}
	f.mu.Unlock()
	if n := len(slow.events); n != eventBytes/(5<<20) {
		t.Errorf("%d snapshots of 5 MiB wait for a client that does not read", n)
	}
	large, err := f.join(control.Caller{})
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.send(large, event{name: "snapshot", data: make([]byte, eventBytes+1)})
	if len(large.events) != 1 {
		t.Error("a single large snapshot was not sent")
	}
}

// Without listeners, the feed does not query the control.
func TestFeedRests(t *testing.T) {
	f := newFeed(newWorld())
	f.period = time.Millisecond
	l, err := f.join(control.Caller{})
	if err != nil {
		t.Fatal(err)
	}
	<-l.events
	f.leave(l)
	for range 1000 {
		f.mu.Lock()
		running := f.running
		f.mu.Unlock()
		if !running {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Error("it still samples")
}

// deadlines keeps the deadlines that a server sets for a connection; the last ones are in force.
type deadlines struct {
	net.Conn
	read, write atomic.Pointer[time.Time]
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.read.Store(&t)
	return d.Conn.SetReadDeadline(t)
}

func (d *deadlines) SetWriteDeadline(t time.Time) error {
	d.write.Store(&t)
	return d.Conn.SetWriteDeadline(t)
}

func (d *deadlines) SetDeadline(t time.Time) error {
	d.read.Store(&t)
	d.write.Store(&t)
	return d.Conn.SetDeadline(t)
}

// watched wraps the connections of a listener.
type watched struct {
	net.Listener
	accepted chan *deadlines
}

func (w *watched) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	d := &deadlines{Conn: c}
	w.accepted <- d
	return d, nil
}

// The stream lifts the server's read timeout, every event has a write timeout of its own, and both end with
// the server.
func TestEventsOverTheServer(t *testing.T) {
	w := newWorld()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	events := newFeed(w)
	events.period = time.Millisecond
	server := newServer(newMux(w, as(0), events, nil), events, discard())
	if server.ReadTimeout == 0 || server.WriteTimeout == 0 {
		t.Errorf("timeouts %v and %v", server.ReadTimeout, server.WriteTimeout)
	}
	accepted := make(chan *deadlines, 16)
	done := make(chan error, 1)
	go func() { done <- serveUntil(ctx, server, &watched{l, accepted}, "test") }()
	s := listen(t, "http://"+l.Addr().String()+control.Prefix+eventsPath)
	s.next(t)
	conn := <-accepted
	if at := conn.read.Load(); at == nil || !at.IsZero() {
		t.Errorf("reading ends at %v, want never", at)
	}
	first := conn.write.Load()
	w.change(func(l *control.List) { l.Mode = "off" })
	if name, _ := s.next(t); name != "mode" {
		t.Errorf("got %s", name)
	}
	if at := conn.write.Load(); at == nil || !at.After(*first) {
		t.Errorf("the second event had time until %v, the first until %v", at, first)
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the stream kept the server from its end")
	}
}

// serving serves a feed to one caller.
func serving(f *feed, c control.Caller) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.serve(w, r, c) })
}

// TestEventCommands checks that only a program's user and root see its command line.
func TestEventCommands(t *testing.T) {
	w := newWorld()
	for i := range w.list.Processes {
		w.list.Processes[i].Owner = identity.OnHost(w.list.Processes[i].UID)
	}
	f := newFeed(w)
	f.period = time.Millisecond
	defer f.stop()
	for _, test := range []struct {
		caller control.Caller
		want   []string
		hidden []string
	}{
		{control.Caller{}, []string{"python serve.py", "train"}, nil},
		{control.Caller{User: identity.OnHost(1000)}, []string{"python serve.py"}, []string{`"train"`}},
		{control.Nobody, nil, []string{"python serve.py", `"train"`}},
		{control.Caller{User: identity.User{UID: 1000, Container: "/docker/x"}}, nil, []string{"python serve.py", `"train"`}},
	} {
		server := httptest.NewServer(serving(f, test.caller))
		s := listen(t, server.URL)
		_, snapshot := s.next(t)
		w.change(func(l *control.List) { l.Processes[0].Priority++; l.Processes[1].Priority++ })
		_, first := s.next(t)
		_, second := s.next(t)
		for _, text := range test.want {
			if !strings.Contains(snapshot, text) || !strings.Contains(first+second, text) {
				t.Errorf("%v does not see %q: %s %s %s", test.caller.User, text, snapshot, first, second)
			}
		}
		for _, text := range test.hidden {
			if strings.Contains(snapshot+first+second, text) {
				t.Errorf("%v sees %q", test.caller.User, text)
			}
		}
		server.CloseClientConnections()
		server.Close()
	}
}
