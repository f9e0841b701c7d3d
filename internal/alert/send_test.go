// SPDX-License-Identifier: Apache-2.0

package alert

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"xsched/internal/control"
)

// start sends to the receivers until the test ends.
func start(t *testing.T, o Options) *Alerts {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	a.limit = 30 * time.Second
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	t.Cleanup(func() { cancel(); <-ended })
	go func() {
		defer close(ended)
		a.Run(ctx, nil)
	}()
	return a
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s", what)
		}
	}
}

func script(t *testing.T, text string) (path, dir string) {
	t.Helper()
	dir = t.TempDir()
	path = filepath.Join(dir, "alert")
	if err := os.WriteFile(path, []byte("#!/bin/sh\ncd "+dir+"\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path, dir
}

// hostile is a program that was named to escape from JSON, the shell and the terminal.
const hostile = "$(touch pwned)`touch pwned`\n\"}\x1b[31m\u202e';touch pwned;\xff"

// The command gets one JSON object on standard input and nothing else of the daemon: no arguments, variables or files.
func TestCommand(t *testing.T) {
	t.Setenv("SECRET", "1")
	leak, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer leak.Close()
	path, dir := script(t, `echo $# >arguments
cat /proc/self/environ >environment
readlink /proc/self/fd/* | grep -c -v -e pipe -e /dev/null -e environ -e '/fd$' >files
cut -d' ' -f5 /proc/$$/stat >group; echo $$ >pid
cat >got; mv got alert.json`)
	a := start(t, Options{Command: path})
	a.Happened("1", Alert{Kind: Fault, Severity: Warning, Subject: Subject{PID: 9, Name: hostile, User: "eve", GPU: "0000:01:00.0"}, Text: hostile + strings.Repeat("ü", maxText)})
	await(t, "alert", func() bool { sent, _ := a.Counts(); return sent == 1 })
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	text := read("alert.json")
	var got Alert
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&got); err != nil || strings.Count(text, "\n") != 1 || strings.ContainsAny(text, "\x1b\u202e") {
		t.Errorf("%q: %v", text, err)
	}
	if got.Host != a.host || got.Host == "" || got.State != Firing || time.Since(got.Time) > time.Minute || got.Subject.PID != 9 || len(got.Text) > 2*maxText || !utf8.ValidString(got.Text) {
		t.Errorf("%+v", got)
	}
	for _, field := range []string{"time", "host", "kind", "severity", "state", "subject", "text", "held_back", "lost"} {
		if !strings.Contains(text, `"`+field+`":`) {
			t.Errorf("no field %s in %s", field, text)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "pwned")); err == nil {
		t.Error("a program's name was executed")
	}
	if env := read("environment"); strings.Contains(env, "SECRET") || !strings.Contains(env, commandPath) {
		t.Errorf("environment %q", env)
	}
	if read("arguments") != "0\n" || read("files") != "0\n" || read("group") != read("pid") {
		t.Errorf("arguments %q, files %q, group %q of %q", read("arguments"), read("files"), read("group"), read("pid"))
	}
}

// A command that hangs is killed with its children; the next alert says what was lost.
func TestHangingCommand(t *testing.T) {
	path, dir := script(t, `[ ! -e calm ] || { cat >got; mv got alert.json; exit 0; }
sleep 1000 & echo $! >child; echo $$ >parent
sleep 1000`)
	a := start(t, Options{Command: path})
	a.limit = 3 * time.Second // until the command is killed
	if err := a.Test(t.Context()); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("%v", err)
	}
	for _, name := range []string{"child", "parent"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		await(t, "end of the "+name, func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err != nil || bytes.Contains(stat, []byte(") Z "))
		})
	}
	a.limit = 30 * time.Second
	if err := os.WriteFile(filepath.Join(dir, "calm"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.Test(t.Context()); err != nil {
		t.Error(err)
	}
	text, _ := os.ReadFile(filepath.Join(dir, "alert.json"))
	if sent, failed := a.Counts(); !bytes.Contains(text, []byte(`"lost":1`)) || sent != 1 || failed != 1 {
		t.Errorf("%s, %d sent, %d failed", text, sent, failed)
	}
}

// The queue is bounded, and nobody waits for a receiver that hangs; at the end the command is killed at once.
func TestFloodAndEnd(t *testing.T) {
	path, dir := script(t, "echo $$ >pid; sleep 1000")
	a, err := New(Options{Command: path, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.Run(ctx, nil)
	}()
	began := time.Now()
	all := make([]Alert, 1000)
	a.decide(func() []Alert { return all })
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	if _, failed := a.Counts(); failed < uint64(len(all)-queueSize-1) {
		t.Errorf("%d of %d are lost", failed, len(all))
	}
	await(t, "command", func() bool { text, err := os.ReadFile(filepath.Join(dir, "pid")); return err == nil && len(text) > 1 })
	text, _ := os.ReadFile(filepath.Join(dir, "pid"))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	began = time.Now()
	cancel()
	<-ended
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the end took %v", took)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the command lives: %v", err)
	}
	var none *Alerts
	none.Happened("", Alert{})
	none.Review(nil)
	if err := none.Test(t.Context()); !errors.Is(err, control.ErrInvalid) {
		t.Error(err)
	}
}

// What the command writes when it fails reaches the operator; what it leaves in the background delays nothing.
func TestFailingCommand(t *testing.T) {
	path, dir := script(t, `[ ! -e calm ] || { sleep 1000 & echo $! >child; exit 0; }
printf 'curl: no \033[31mhost\n' >&2; exit 3`)
	a := start(t, Options{Command: path})
	if err := a.Test(t.Context()); err == nil || !strings.Contains(err.Error(), "exit status 3: curl: no ?[31mhost") {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "calm"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.Test(t.Context()); err != nil {
		t.Errorf("%v", err)
	}
	text, _ := os.ReadFile(filepath.Join(dir, "child"))
	if pid, _ := strconv.Atoi(strings.TrimSpace(string(text))); pid > 0 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := a.Test(t.Context()); err == nil || !strings.Contains(err.Error(), "chmod") {
		t.Errorf("a file that others can write: %v", err)
	}
}

// A command that others could change is refused at the start, with the remedy.
func TestCommandOfOthers(t *testing.T) {
	path, dir := script(t, "true")
	link, open, way := filepath.Join(dir, "link"), filepath.Join(dir, "open"), filepath.Join(t.TempDir(), "way")
	if err := errors.Join(os.Symlink(path, link), os.Symlink(dir, way), os.Mkdir(open, 0o700)); err != nil {
		t.Fatal(err)
	}
	inside := filepath.Join(open, "alert")
	if err := errors.Join(os.WriteFile(inside, nil, 0o700), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path, want string
		mode       os.FileMode
	}{
		"good": {path, "", 0o755}, "link": {link, "realpath " + link, 0o755}, "way": {filepath.Join(way, "alert"), way + ", on the way", 0o755}, "relative": {"alert", "absolute", 0o755}, "missing": {path + "x", "no such file", 0o755},
		"others": {path, "chmod go-w", 0o757}, "group": {path, "chmod go-w", 0o775}, "sticky": {path, "chmod go-w", 0o757 | os.ModeSticky},
		"plain": {path, "chmod +x", 0o644}, "folder": {dir, "not an executable", 0o755}, "open folder": {inside, "chmod go-w " + open, 0o755},
	} {
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		_, err := New(Options{Command: c.path})
		if (err == nil) != (c.want == "") || err != nil && (!errors.Is(err, control.ErrInvalid) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Chmod(path, 0o755), os.Chown(path, 4242, -1)); err != nil {
			t.Fatal(err)
		}
		if _, err := New(Options{Command: path}); err == nil || !strings.Contains(err.Error(), "chown 0") {
			t.Errorf("a file of another user: %v", err)
		}
	}
}

func TestAddresses(t *testing.T) {
	for _, c := range []struct{ url, token, want string }{
		{"https://chat.example.com/hook", "", ""},
		{"https://chat.example.com/hook", "t", ""},
		{"http://10.0.0.1:80/", "", ""},
		{"http://127.0.0.1/", "t", ""},
		{"http://10.0.0.1/", "t", "unencrypted"},
		{"", "t", "no host"},
		{"file:///etc/passwd", "", "scheme"},
		{"chat", "", "scheme"},
		{"https://", "", "no host"},
		{"https://u:secret@h/", "", "has a user"},
		{"http://h/%zz", "", "not a URL"},
	} {
		_, err := New(Options{URL: c.url, Token: c.token})
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%q: %v", c.url, err)
		}
	}
}

// TestPost: a real server gets the object and the token; failures and redirects to other hosts are errors, and neither
// the proxy of the environment nor another host sees anything.
func TestPost(t *testing.T) {
	stranger := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("a stranger got %s %s, %q", r.Method, r.URL, r.Header)
	}))
	defer stranger.Close()
	t.Setenv("HTTP_PROXY", stranger.URL)
	t.Setenv("http_proxy", stranger.URL)
	got := make(chan string, 1)
	free := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("POST /ok", func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- fmt.Sprintf("%s %s %s", r.Header.Get("Authorization"), r.Header.Get("Content-Type"), body)
	})
	mux.Handle("POST /moved", http.RedirectHandler("/ok", http.StatusTemporaryRedirect))
	mux.Handle("POST /found", http.RedirectHandler("/ok", http.StatusFound))
	mux.Handle("POST /away", http.RedirectHandler(stranger.URL+"/x", http.StatusTemporaryRedirect))
	mux.Handle("POST /round", http.RedirectHandler("/round", http.StatusPermanentRedirect))
	mux.HandleFunc("POST /bad", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	mux.HandleFunc("POST /hang", func(http.ResponseWriter, *http.Request) { <-free })
	mux.HandleFunc("POST /endless", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	})
	server := httptest.NewUnstartedServer(mux)
	server.Config.ReadHeaderTimeout = time.Minute
	server.Start()
	defer server.Close()
	defer close(free)
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	for path, want := range map[string]string{
		"ok": "", "moved": "", "endless": "", "found": "something else", "away": "another host", "round": "something else", "bad": "503", "hang": "no answer within",
	} {
		a := start(t, Options{URL: "http://127.0.0.1:" + port + "/" + path, Token: "0123456789abcdef"})
		if path == "hang" {
			a.limit = 300 * time.Millisecond
		}
		err := a.Test(t.Context())
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "/"+path)) {
			t.Errorf("%s: %v", path, err)
		}
		if path == "ok" || path == "moved" {
			if text := <-got; !strings.HasPrefix(text, `Bearer 0123456789abcdef application/json {"time":`) || !strings.Contains(text, `"kind":"test"`) {
				t.Errorf("%s: %s", path, text)
			}
		}
	}
	if transport, ok := newClient().Transport.(*http.Transport); !ok || transport.Proxy != nil {
		t.Error("the proxy of the environment is used")
	}
}

// Both receivers get an alert, and one that fails does not keep it from the other.
func TestBothReceivers(t *testing.T) {
	got := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { got <- struct{}{} }))
	defer server.Close()
	path, _ := script(t, "cat >/dev/null; exit 1")
	a := start(t, Options{URL: server.URL, Command: path})
	if err := a.Test(t.Context()); err == nil || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("%v", err)
	}
	<-got
}
