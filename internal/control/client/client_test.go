// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
	"xsched/internal/control/client"
)

func TestNoListener(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale.sock")
	l, err := net.Listen("unix", stale)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = l.Close()
	for name, path := range map[string]string{"missing": filepath.Join(dir, "none.sock"), "stale": stale} {
		_, err := client.New(path).Version(t.Context())
		if !errors.Is(err, client.ErrNoDaemon) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "xsched serve") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDaemonEnds: a daemon that ends while it is asked is no daemon. One that lives and closes the
// connection has another cause.
func TestDaemonEnds(t *testing.T) {
	for name, ends := range map[string]bool{"ends": true, "lives": false} {
		path := filepath.Join(t.TempDir(), "control.sock")
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for n := 1; ; n++ {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_ = conn.Close()
				if ends && n == 3 {
					_ = l.Close()
				}
			}
		}()
		if _, err := client.New(path).Version(t.Context()); err == nil || errors.Is(err, client.ErrNoDaemon) != ends {
			t.Errorf("a daemon that %s: %v", name, err)
		}
		_ = l.Close()
	}
}

// TestLongPath: the cause is the length of the path, not a daemon that does not run.
func TestLongPath(t *testing.T) {
	_, err := client.New(filepath.Join(t.TempDir(), strings.Repeat("a", 120), "control.sock")).Version(t.Context())
	if refused, ok := errors.AsType[*control.Error](err); !ok || !errors.Is(refused, control.ErrInvalid) || !strings.Contains(refused.Remedy, "--dir") {
		t.Errorf("%v", err)
	}
}

// TestCrowd: a daemon whose queue of connections is full, because of a flood, answers as soon as there is
// room. Before, every request failed at once.
func TestCrowd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 1)); err != nil {
		t.Fatal(err)
	}
	for {
		c, err := net.Dial("unix", path)
		if err != nil {
			break // the queue is full
		}
		defer c.Close()
	}
	go func() {
		time.Sleep(100 * time.Millisecond)
		if n, _, err := unix.Accept(fd); err == nil {
			_ = unix.Close(n)
		}
	}()
	began := time.Now()
	c, err := client.Transport(path).DialContext(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if took := time.Since(began); took < 50*time.Millisecond || took > 2*time.Second {
		t.Errorf("connected after %v", took)
	}
}
