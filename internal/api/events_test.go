// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"xsched/internal/control"
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

// One user can't take all places.
func TestViewersOfOneUser(t *testing.T) {
	f := newFeed(newStage())
	f.showing = true // nobody samples
	defer f.stop()
	n := 0
	for range maxViewers {
		if f.show(newTestViewer(t, 1000, "")) == nil {
			n++
		}
	}
	if n != maxViewers/2 {
		t.Errorf("one user has %d viewers, want %d", n, maxViewers/2)
	}
	for _, uid := range []int{1001, 0} {
		if err := f.show(newTestViewer(t, uid, "")); err != nil {
			t.Errorf("uid %d: %v", uid, err)
		}
	}
}

// Without viewers, the feed does not query the control.
func TestFeedRests(t *testing.T) {
	f := newFeed(newStage())
	v := newTestViewer(t, 0, "")
	if err := f.show(v); err != nil {
		t.Fatal(err)
	}
	<-v.ready
	f.hide(v)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		f.mu.Lock()
		showing := f.showing
		f.mu.Unlock()
		switch {
		case !showing:
			return
		case time.Now().After(end):
			t.Fatal("it still samples")
		}
	}
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
	server := newServer(newMux(w, as(0), events, nil), events, discard())
	if server.ReadTimeout == 0 || server.WriteTimeout == 0 {
		t.Errorf("timeouts %v and %v", server.ReadTimeout, server.WriteTimeout)
	}
	accepted := make(chan *deadlines, 16)
	done := make(chan error, 1)
	go func() { done <- serveUntil(ctx, server, &watched{l, accepted}, "test") }()
	s := listen(t, "http://"+l.Addr().String()+control.Prefix+eventsPath+"?every_ms=250")
	s.next(t)
	conn := <-accepted
	if at := conn.read.Load(); at == nil || !at.IsZero() {
		t.Errorf("reading ends at %v, want never", at)
	}
	first := conn.write.Load()
	w.change(func(l *control.List) { l.Mode = "off" })
	if name, data := s.next(t); name != "snapshot" || !strings.Contains(data, `"mode":"off"`) {
		t.Errorf("got %s %s", name, data)
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
