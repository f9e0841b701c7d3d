// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

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
