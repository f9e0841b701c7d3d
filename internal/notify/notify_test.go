// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const soon = 20 * time.Second

// manager listens like a service manager, at a path or in the abstract namespace.
func manager(t *testing.T, address string) *net.UnixConn {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func receive(t *testing.T, c *net.UnixConn) string {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(soon)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 4096)
	n, err := c.Read(buffer)
	if err != nil {
		t.Fatal(err)
	}
	return string(buffer[:n])
}

func TestStates(t *testing.T) {
	for name, address := range map[string]string{"path": filepath.Join(t.TempDir(), "s"), "abstract": "@xsched-notify-" + strconv.Itoa(os.Getpid())} {
		t.Run(name, func(t *testing.T) {
			c := manager(t, address)
			t.Setenv("NOTIFY_SOCKET", address)
			m := FromEnvironment()
			if value, ok := os.LookupEnv("NOTIFY_SOCKET"); ok {
				t.Errorf("children inherit NOTIFY_SOCKET=%s", value)
			}
			m.Ready()
			m.Reloading()
			m.Stopping()
			if got := receive(t, c); got != "READY=1" {
				t.Errorf("got %q", got)
			}
			reload := strings.Split(receive(t, c), "\n")
			if len(reload) != 2 || reload[0] != "RELOADING=1" {
				t.Fatalf("got %q", reload)
			}
			if usec, err := strconv.ParseInt(strings.TrimPrefix(reload[1], "MONOTONIC_USEC="), 10, 64); err != nil || usec <= 0 {
				t.Errorf("got %q", reload)
			}
			if got := receive(t, c); got != "STOPPING=1" {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestWithoutManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	m := FromEnvironment()
	m.Ready()
	m.Feed(t.Context(), func() bool { t.Error("asked for progress"); return false }) // returns at once
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "absent"))
	FromEnvironment().Ready()
}

func TestWatchdogOfAnotherProcess(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "s"))
	t.Setenv("WATCHDOG_USEC", "1000")
	t.Setenv("WATCHDOG_PID", "1")
	if m := FromEnvironment(); m.watchdog != 0 {
		t.Errorf("feeds the watchdog of another process every %v", m.watchdog)
	}
}

// TestFeed: a live service keeps its watchdog from expiring, and a dead one does not.
func TestFeed(t *testing.T) {
	address := filepath.Join(t.TempDir(), "s")
	c := manager(t, address)
	t.Setenv("NOTIFY_SOCKET", address)
	t.Setenv("WATCHDOG_USEC", "2000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	m := FromEnvironment()

	var alive atomic.Bool // for one look
	var asked atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.Feed(ctx, func() bool { asked.Add(1); return alive.Swap(false) })
	}()
	if got := receive(t, c); got != "WATCHDOG=1" { // the start
		t.Errorf("got %q", got)
	}
	for range 3 {
		alive.Store(true)
		if got := receive(t, c); got != "WATCHDOG=1" {
			t.Errorf("got %q", got)
		}
		// At least two more looks at a dead service, without a message.
		for from := asked.Load(); asked.Load() < from+3; {
			time.Sleep(time.Millisecond)
		}
		if err := c.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(make([]byte, 64)); err == nil {
			t.Fatalf("a dead service sent (%d bytes)", n)
		}
	}
	cancel()
	<-ended
}

// TestFullManager: a manager that does not read blocks a message for a bounded time only.
func TestFullManager(t *testing.T) {
	t.Parallel()
	address := filepath.Join(t.TempDir(), "s")
	manager(t, address) // its queue takes a few messages
	m := &Manager{address: address}
	done := make(chan time.Duration, 1)
	go func() {
		for { // until one message had to wait
			began := time.Now()
			m.Ready()
			if took := time.Since(began); took > sendLimit/2 {
				done <- took
				return
			}
		}
	}()
	select {
	case took := <-done:
		t.Logf("given up after %v", took)
	case <-time.After(soon):
		t.Fatal("a message waits for ever")
	}
}
