// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"xsched/internal/control"
	"xsched/internal/top"
)

// reviewer is the API server: it knows tokens "USER.NUMBER" for the view, and says who may view.
type reviewer struct {
	mu      sync.Mutex
	allowed map[string]bool // users
	down    bool
	tokens  int // reviews
	rights  int
}

func (a *reviewer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down {
		http.Error(w, "down", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	switch r.URL.Path {
	case "/apis/authentication.k8s.io/v1/tokenreviews":
		a.tokens++
		var t authenticationv1.TokenReview
		_ = json.NewDecoder(r.Body).Decode(&t)
		user, number, _ := strings.Cut(t.Spec.Token, ".")
		if number != "" {
			t.Status.Authenticated, t.Status.User.Username = true, user
			t.Status.User.Extra = map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/credential-id": {"JTI=" + number}}
		}
		if user != "agnostic" { // an authenticator that ignores audiences
			t.Status.Audiences = t.Spec.Audiences
		}
		_ = json.NewEncoder(w).Encode(t)
	case "/apis/authorization.k8s.io/v1/subjectaccessreviews":
		a.rights++
		var s authorizationv1.SubjectAccessReview
		_ = json.NewDecoder(r.Body).Decode(&s)
		want := authorizationv1.ResourceAttributes{Verb: "get", Group: "xsched.dev", Version: "v1", Resource: "nodeviews", Name: "n1"}
		s.Status.Allowed = a.allowed[s.Spec.User] && s.Spec.ResourceAttributes != nil && *s.Spec.ResourceAttributes == want
		_ = json.NewEncoder(w).Encode(s)
	}
}

func (a *reviewer) set(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

// daemon counts what it is asked.
type daemon struct {
	mu    sync.Mutex
	lists int
	slow  chan struct{} // if not nil, a list waits for it
}

func (*daemon) Version(context.Context) (control.Version, error) {
	return control.Version{Version: "1"}, nil
}

func (d *daemon) List(context.Context) (control.List, error) {
	if d.slow != nil {
		<-d.slow
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lists++
	return control.List{Policy: "HPF"}, nil
}

func (*daemon) Devices(context.Context) (control.Devices, error) {
	return control.Devices{Devices: []control.Device{{ID: "0000:01:00.0", MaxLevel: 3}}}, nil
}
func (*daemon) Stats(context.Context) (control.Stats, error) { return control.Stats{}, nil }

func (*daemon) Journal(context.Context, control.JournalRequest) (control.Journal, error) {
	return control.Journal{Entries: []control.JournalEntry{{TimeNS: 1, Kind: control.JournalJoined}, {TimeNS: 2, Kind: control.JournalFault}}}, nil
}

func (*daemon) Events(ctx context.Context, _ control.EventsRequest, f func(string, []byte) error) error {
	line, _ := json.Marshal(control.Journal{Entries: []control.JournalEntry{{TimeNS: 3, Kind: control.JournalFault}, {TimeNS: 4, Kind: control.JournalLeft}}})
	if err := f(control.PartJournal, line); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// world is a view with its API server and its daemon.
type world struct {
	t      *testing.T
	api    *reviewer
	daemon *daemon
	view   *Server
	url    string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, api: &reviewer{allowed: map[string]bool{"viewer": true, "other": true}}, daemon: &daemon{}}
	api := httptest.NewServer(w.api)
	t.Cleanup(api.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	w.view = New("n1", "1", w.daemon, client, slog.New(slog.DiscardHandler))
	l, err := Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.view.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	w.url = "http://" + l.Addr().String()
	return w
}

// open sends a request; the test closes the answer.
func (w *world) open(method, path, token string) *http.Response {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = answer.Body.Close() })
	return answer
}

func (w *world) ask(method, path, token string) (code int, text string) {
	w.t.Helper()
	answer := w.open(method, path, token)
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

// TestWhoMayView tries every kind of user.
func TestWhoMayView(t *testing.T) {
	w := newWorld(t)
	for token, want := range map[string]int{
		"viewer.1": http.StatusOK, "nobody.1": http.StatusForbidden, "wrong": http.StatusUnauthorized, "": http.StatusUnauthorized,
		"agnostic.1": http.StatusUnauthorized, strings.Repeat("x", maxToken+1): http.StatusUnauthorized,
	} {
		code, text := w.ask(http.MethodGet, SnapshotPath, token)
		if code != want || code != http.StatusOK && strings.Contains(text, "HPF") {
			t.Errorf("token %.20q: %d %s, want %d", token, code, text, want)
		}
		if code, _ := w.ask(http.MethodGet, "/v1/bogus", token); want != http.StatusOK && code != want {
			t.Errorf("token %.20q learns which paths exist: %d", token, code)
		}
	}
	if w.api.rights != 2 {
		t.Errorf("%d reviews of rights, want those of the viewer and of nobody", w.api.rights)
	}
	w.api.set(func() { w.api.down = true })
	if code, text := w.ask(http.MethodGet, SnapshotPath, "other.1"); code != http.StatusServiceUnavailable || strings.Contains(text, "HPF") {
		t.Errorf("without the API server: %d %s", code, text)
	}
	if code, _ := w.ask(http.MethodGet, SnapshotPath, "viewer.1"); code != http.StatusOK {
		t.Errorf("a viewer that was reviewed before: %d", code)
	}
}

// TestOnlyReads tries every method on every path.
func TestOnlyReads(t *testing.T) {
	w := newWorld(t)
	for i, path := range []string{SnapshotPath, StatusPath, JournalPath, "/v1/policy", "/"} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodConnect} {
			if code, text := w.ask(method, path, fmt.Sprintf("viewer.%d", i)); code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d %s", method, path, code, text)
			}
		}
	}
	c, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer viewer.1\r\nContent-Length: 10\r\n\r\n", SnapshotPath)
	if text, err := io.ReadAll(c); err != nil || len(text) > 0 {
		t.Errorf("a request with a body: %q, %v", text, err)
	}
}

// TestReviewsAreShared checks what viewers cost the API server and the daemon.
func TestReviewsAreShared(t *testing.T) {
	w := newWorld(t)
	w.daemon.slow = make(chan struct{})
	var all sync.WaitGroup
	for range maxOpen {
		all.Go(func() {
			if code, text := w.ask(http.MethodGet, SnapshotPath, "viewer.1"); code != http.StatusOK {
				t.Errorf("%d %s", code, text)
			}
		})
	}
	w.daemon.slow <- struct{}{}
	close(w.daemon.slow)
	all.Wait()
	if w.api.tokens != 1 || w.api.rights != 1 || w.daemon.lists > 2 {
		t.Errorf("%d and %d reviews, %d lists for %d requests", w.api.tokens, w.api.rights, w.daemon.lists, maxOpen)
	}
	for i := range 10 * newReviews { // wrong tokens have a limit, and those that passed do not feel it
		if code, _ := w.ask(http.MethodGet, SnapshotPath, fmt.Sprintf("wrong%d", i)); code != http.StatusUnauthorized && code != http.StatusTooManyRequests {
			t.Fatalf("a wrong token: %d", code)
		}
	}
	if w.api.tokens > 8*newReviews {
		t.Errorf("%d reviews", w.api.tokens)
	}
	w.view.access.verdict(sha256.Sum256([]byte("viewer.1"))).until = time.Time{}
	if code, text := w.ask(http.MethodGet, StatusPath, "viewer.1"); code != http.StatusOK {
		t.Errorf("a viewer while others send wrong tokens: %d %s", code, text)
	}
}

// TestLimits checks the bounds of one viewer and of all.
func TestLimits(t *testing.T) {
	var l limits
	now := time.Now()
	var ends []func()
	for i := range maxOpen + 1 {
		end, ok := l.begin("a", now)
		if ok != (i < maxOpen) {
			t.Errorf("request %d of one viewer: %t", i, ok)
		}
		if ok {
			ends = append(ends, end)
		}
	}
	if end, ok := l.begin("b", now); !ok {
		t.Error("one viewer keeps another out")
	} else {
		end()
	}
	for _, end := range ends {
		end()
	}
	some := 0
	for range 10 * maxBurst {
		if end, ok := l.begin("c", now); ok {
			some++
			end()
		}
	}
	if some != maxBurst {
		t.Errorf("%d requests at once, want %d", some, maxBurst)
	}
	for i := range 2 * maxOpenTotal {
		_, ok := l.begin(fmt.Sprint("d", i), now)
		if ok != (i < maxOpenTotal) {
			t.Errorf("request %d of all: %t", i, ok)
		}
	}
	l.open = 0
	for _, v := range l.viewers {
		v.open = 0
	}
	if _, ok := l.begin("e", now.Add(2*forgetAfter)); !ok || len(l.viewers) != 1 {
		t.Errorf("%t, %d viewers are remembered", ok, len(l.viewers))
	}
}

// TestRevoked takes the right away while a stream of each kind is open.
func TestRevoked(t *testing.T) {
	w := newWorld(t)
	w.view.access.keep = 10 * time.Millisecond
	for i, path := range []string{SnapshotPath + "?interval=500ms", JournalPath + "?follow=true"} {
		w.api.set(func() { w.api.allowed["viewer"] = true })
		answer := w.open(http.MethodGet, path, fmt.Sprintf("viewer.%d", i))
		lines := bufio.NewScanner(answer.Body)
		if !lines.Scan() {
			t.Fatalf("%s: no line: %v", path, lines.Err())
		}
		w.api.set(func() { w.api.allowed["viewer"] = false })
		var last Failure
		for lines.Scan() {
			last = Failure{}
			_ = json.Unmarshal(lines.Bytes(), &last)
		}
		if !strings.Contains(last.Error, "not allowed") {
			t.Errorf("%s ended with %+v", path, last)
		}
	}
}

// TestAnswers checks the content of each view.
func TestAnswers(t *testing.T) {
	w := newWorld(t)
	_, text := w.ask(http.MethodGet, SnapshotPath, "viewer.1")
	var snapshot control.Snapshot
	if err := json.Unmarshal([]byte(text), &snapshot); err != nil || snapshot.List.Policy != "HPF" || snapshot.TimeNS == 0 {
		t.Errorf("snapshot %s, %v", text, err)
	}
	_, text = w.ask(http.MethodGet, StatusPath, "viewer.1")
	var status top.Status
	if err := json.Unmarshal([]byte(text), &status); err != nil || !status.Healthy || status.Policy != "HPF" {
		t.Errorf("status %s, %v", text, err)
	}
	for query, want := range map[string]int{"": 2, "?kind=fault": 1, "?since_ns=2": 1, "?since_ns=3": 0, "?max=1": 1} {
		code, text := w.ask(http.MethodGet, JournalPath+query, "viewer.1")
		if got := strings.Count(text, "\n"); code != http.StatusOK || got != want {
			t.Errorf("journal%s: %d, %d lines, want %d: %s", query, code, got, want, text)
		}
	}
	for _, path := range []string{JournalPath + "?kind=bogus", JournalPath + "?max=-1", SnapshotPath + "?interval=1ns"} {
		if code, text := w.ask(http.MethodGet, path, "other.1"); code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	answer := w.open(http.MethodGet, JournalPath+"?follow=true&kind=fault&max=0", "other.2")
	line, err := bufio.NewReader(answer.Body).ReadString('\n')
	if err != nil || !strings.Contains(line, `"time_ns":3`) {
		t.Errorf("followed: %q, %v", line, err)
	}
}
