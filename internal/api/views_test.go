// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/identity"
)

// stage is a Control with a journal that grows, and counts its calls.
type stage struct {
	*world

	mu      sync.Mutex
	entries []control.JournalEntry
	calls   map[string]int
}

func newStage() *stage { return &stage{world: newWorld(), calls: map[string]int{}} }

func (s *stage) called(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[what]++
}

func (s *stage) List(ctx context.Context, c control.Caller) (control.List, error) {
	s.called("list")
	return s.world.List(ctx, c)
}

func (s *stage) History(_ context.Context, _ control.Caller, r control.HistoryRequest) (control.History, error) {
	s.called("history")
	return control.History{FromNS: r.SinceNS, ToNS: r.SinceNS + 10, Devices: []control.DeviceHistory{}}, nil
}

func (s *stage) Journal(_ context.Context, _ control.Caller, r control.JournalRequest) (control.Journal, error) {
	s.called("journal")
	s.mu.Lock()
	defer s.mu.Unlock()
	return control.Journal{Entries: s.entries[r.Since:], Next: uint64(len(s.entries))}, nil
}

func (s *stage) happen(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		s.entries = append(s.entries, control.JournalEntry{Seq: uint64(len(s.entries) + 1), Kind: control.JournalChange})
	}
}

func newTestViewer(t *testing.T, uid int, with string) *viewer {
	t.Helper()
	v, err := newViewer(control.Caller{User: identity.OnHost(uid)}, control.EventsRequest{EveryMS: 250, With: with})
	if err != nil {
		t.Fatal(err)
	}
	v.period = time.Millisecond
	return v
}

// A viewer gets the parts that it asked for, in that order; the journal and the history continue where
// the last event ended.
func TestViews(t *testing.T) {
	c := newStage()
	c.happen(3)
	f := newFeed(c)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.serveView(w, r, newTestViewer(t, 1000, "snapshot,devices,journal,history"))
	}))
	defer server.Close()
	defer f.stop() // ends the stream first
	s := listen(t, server.URL)
	want := func(name string, parts ...string) {
		t.Helper()
		got, data := s.next(t)
		for _, p := range parts {
			if got != name || !strings.Contains(data, p) {
				t.Fatalf("%s %s, want %s with %s", got, data, name, p)
			}
		}
	}
	want("snapshot", `"pid":101`, `"pid":202`)
	want("devices", `"id":"0000:01:00.0"`)
	want("journal", `"seq":1`, `"seq":3`, `"next":3`)
	want("history", `"from_ns":0`)
	want("snapshot", "{")
	want("devices", "{")
	want("history", `"from_ns":10`) // nothing new in the journal
	c.happen(1)
	for {
		if name, data := s.next(t); name == "journal" {
			if strings.Contains(data, `"seq":3`) || !strings.Contains(data, `"seq":4`) {
				t.Errorf("the journal did not continue: %s", data)
			}
			break
		}
	}
}

// Names of other users' programs are hidden as in the list.
func TestViewsHideCommands(t *testing.T) {
	c := newStage()
	c.change(func(l *control.List) {
		l.Processes[0].Owner, l.Processes[1].Owner = identity.OnHost(1000), identity.OnHost(2000)
	})
	f := newFeed(c)
	for user, want := range map[identity.User]string{
		identity.OnHost(1000): "true false", identity.OnHost(2000): "false true", identity.OnHost(0): "true true", identity.OnHost(3): "false false",
		{UID: 1000, Container: "/docker/x"}: "false false", identity.Nobody: "false false",
	} {
		v := newTestViewer(t, 0, "")
		v.caller.User = user
		f.publishViews([]*viewer{v})
		text := string((<-v.ready)[0])
		if got := fmt.Sprint(strings.Contains(text, "serve.py"), strings.Contains(text, `"train"`)); got != want {
			t.Errorf("%v sees the commands: %s, want %s", user, got, want)
		}
	}
}

// A period costs one sample, and one encoding per user, however many viewers there are.
func TestViewsShareTheirCost(t *testing.T) {
	c := newStage()
	c.happen(1)
	f := newFeed(c)
	var all []*viewer
	for i := range 40 {
		all = append(all, newTestViewer(t, 1000+i%2, "snapshot,journal,history"))
	}
	f.publishViews(all)
	if got := fmt.Sprint(c.calls); got != "map[history:2 journal:2 list:1]" {
		t.Errorf("calls: %s", got)
	}
	first := <-all[0].ready
	if other := <-all[2].ready; &first[0][0] != &other[0][0] {
		t.Error("two viewers of a user have their own copies")
	}
}

// A viewer that does not read skips periods and delays nobody; it misses no entry of the journal.
func TestSlowViewer(t *testing.T) {
	c := newStage()
	f := newFeed(c)
	slow, quick := newTestViewer(t, 0, "journal"), newTestViewer(t, 0, "journal")
	for range 20 {
		c.happen(1)
		f.publishViews([]*viewer{slow, quick})
		<-quick.ready
	}
	var seqs []uint64
	take := func() {
		for len(slow.ready) > 0 {
			for _, text := range <-slow.ready {
				var j control.Journal
				_, data, _ := strings.Cut(string(text), "data: ")
				if err := json.Unmarshal([]byte(data), &j); err != nil {
					t.Fatal(err)
				}
				for _, e := range j.Entries {
					seqs = append(seqs, e.Seq)
				}
			}
		}
	}
	if take(); len(seqs) != viewBacklog {
		t.Errorf("%d entries waited", len(seqs))
	}
	f.publishViews([]*viewer{slow})
	take()
	for i, s := range seqs {
		if s != uint64(i+1) {
			t.Fatalf("entries %v", seqs)
		}
	}
	if len(seqs) != 20 {
		t.Errorf("%d entries of 20", len(seqs))
	}
}

// slowStage is a stage whose list takes until it is freed.
type slowStage struct {
	*stage
	came, free chan struct{}
}

func (s *slowStage) List(ctx context.Context, c control.Caller) (control.List, error) {
	select {
	case s.came <- struct{}{}:
	default:
	}
	<-s.free
	return s.stage.List(ctx, c)
}

// A sample that takes long delays no viewer who comes or leaves meanwhile.
func TestSlowSample(t *testing.T) {
	c := &slowStage{newStage(), make(chan struct{}, 1), make(chan struct{})}
	f, first, other := newFeed(c), newTestViewer(t, 0, ""), newTestViewer(t, 0, "")
	defer f.stop()
	defer close(c.free)
	if err := f.show(first); err != nil {
		t.Fatal(err)
	}
	<-c.came
	done := make(chan error, 1)
	go func() {
		err := f.show(other)
		f.hide(other)
		f.hide(first)
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("a viewer waits for the sample of another one")
	}
}

func TestViewRequests(t *testing.T) {
	h := Handler(newStage(), as(0))
	for _, query := range []string{"every_ms=10", "every_ms=20000", "every_ms=1000&with=all", "every_ms=1000&with=journal,journal", "every=1"} {
		a := httptest.NewRecorder()
		h.ServeHTTP(a, httptest.NewRequestWithContext(t.Context(), "GET", control.Prefix+eventsPath+"?"+query, nil))
		if a.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", query, a.Code, a.Body)
		}
	}
}

func TestUsualView(t *testing.T) {
	v, err := newViewer(control.Caller{}, control.EventsRequest{})
	if err != nil || v.period != time.Second || !slices.Equal(v.with, []string{control.PartSnapshot}) {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestViewersAreBounded(t *testing.T) {
	f := newFeed(newStage())
	f.showing = true // nobody samples
	v := newTestViewer(t, 0, "")
	for range maxViewers {
		v = newTestViewer(t, 0, "")
		if err := f.show(v); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.show(newTestViewer(t, 0, "")); err == nil {
		t.Error("one too many")
	}
	f.hide(v)
	f.hide(v)
	if err := f.show(newTestViewer(t, 0, "")); err != nil {
		t.Error(err)
	}
	f.hide(v)
	f.stop()
	if err := f.show(newTestViewer(t, 0, "")); err == nil {
		t.Error("joined after the end")
	}
}

func TestRestAfterASample(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: 0, time.Millisecond: 25 * time.Millisecond, 5 * time.Second: longestView, time.Hour: longestView,
	} {
		if got := restAfter(took); got != want {
			t.Errorf("%v after a sample of %v, want %v", got, took, want)
		}
	}
}
