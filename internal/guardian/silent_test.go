// SPDX-License-Identifier: Apache-2.0

package guardian

import (
	"encoding/json"
	"log/slog"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/health"
)

// frozenService listens at the service's socket and never accepts, as a stopped process does.
func frozenService(t *testing.T, dir string, backlog int) {
	t.Helper()
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(sock, &unix.SockaddrUnix{Name: filepath.Join(dir, ServiceSocket)})
	}
	if err == nil {
		err = unix.Listen(sock, backlog)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(sock) })
}

// within fails the test if f does not return in time.
func within(t *testing.T, limit time.Duration, what string, f func()) {
	t.Helper()
	done, began := make(chan struct{}), time.Now()
	go func() { defer close(done); f() }()
	select {
	case <-done:
		t.Logf("%s: %v", what, time.Since(began).Round(time.Millisecond))
	case <-time.After(limit):
		t.Fatalf("%s has not returned in %v", what, limit)
	}
}

// A guardian service that is frozen, and whose backlog is full, delays nobody without a limit: Stats
// returns at once, and attach, detach and Close within the limits of a few answers.
func TestLongFrozenService(t *testing.T) {
	dir := t.TempDir()
	frozenService(t, dir, 0)
	for range 2 { // fill the backlog
		sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(sock) }()
		_ = unix.Connect(sock, &unix.SockaddrUnix{Name: filepath.Join(dir, ServiceSocket)})
	}
	var parts health.Monitor
	c := NewClient(Options{
		Command: []string{"/none"}, Place: driver.Place{Dir: dir}, Version: "1", Log: slog.New(slog.DiscardHandler),
		Busy: parts.Add("guardian", answerTime/2, false),
	})
	process := exec.Command("sleep", "60")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = process.Process.Kill(); _ = process.Wait() }()
	w := driver.Ward{Driver: "fake", Session: 1, PID: process.Process.Pid, Page: open(t), PIDFD: open(t), State: json.RawMessage("1")}
	defer closeWard(w)
	const margin = 3 * time.Second // of a loaded machine
	kept := make(chan error, 1)
	go func() { kept <- c.Keep(w) }()
	for parts.States()[0].Age == 0 {
		time.Sleep(time.Millisecond)
	}
	for range 50 {
		within(t, answerTime*9/10, "Stats while Keep waits", func() { c.Stats() })
	}
	within(t, answerTime+margin, "the guardian looks dead", func() {
		for s := parts.States()[0]; !s.Late(); s = parts.States()[0] {
			time.Sleep(time.Millisecond)
		}
	})
	within(t, 2*answerTime+margin, "Keep", func() {
		if err := <-kept; err == nil {
			t.Error("there is no guardian")
		}
	})
	within(t, margin, "the next Keep", func() { _ = c.Keep(w) }) // the service is known to be silent
	within(t, margin, "Drop", func() { c.Drop(1, true) })
	within(t, endTime+margin, "Close", c.Close)
	if s := parts.States()[0]; s.Age != 0 {
		t.Errorf("a closed client works for %v", s.Age)
	}
}

// The first process that a silent guardian does not answer for ends the connection, so that the
// others do not wait for it one by one.
func TestLongSilentGuardianDelaysOnce(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(pair[1]) }()
	limit(pair[0])
	c := NewClient(Options{Command: []string{"/none"}, Log: slog.New(slog.DiscardHandler)})
	c.link = newLink(pair[0], 1)
	const programs = 8
	for id := range uint64(programs) {
		own, err := duplicate(driver.Ward{Session: id, PID: 1, Page: open(t), PIDFD: open(t)})
		if err != nil {
			t.Fatal(err)
		}
		c.wards[id] = own
	}
	within(t, answerTime+3*time.Second, "dropping 8 programs and Close", func() {
		for id := range uint64(programs) {
			c.Drop(id, id%2 == 0)
		}
		c.Close()
	})
}
