// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"xsched/internal/session"
)

func TestSecondDaemonAndStaleSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "xsched")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	lock, err := session.TakeLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := session.TakeLock(dir); !errors.Is(err, session.ErrRunning) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("second daemon: %v", err)
	}
	lock.Release()
	if lock, err = session.TakeLock(dir); err != nil {
		t.Fatal(err)
	}
	defer lock.Release()

	path := filepath.Join(dir, "s")
	l, err := session.Listen("unixpacket", path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := session.Listen("unixpacket", path, 0o600); !errors.Is(err, session.ErrRunning) {
		t.Errorf("live socket: %v", err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	if l, err = session.Listen("unixpacket", path, 0o600); err != nil {
		t.Errorf("stale socket: %v", err)
	} else {
		_ = l.Close()
	}
	_ = os.WriteFile(path, nil, 0o600)
	if _, err := session.Listen("unixpacket", path, 0o600); err == nil {
		t.Error("a plain file was replaced")
	}
}

// A helper of a killed daemon may keep its socket open, and is no daemon.
func TestSocketOfKilledDaemon(t *testing.T) {
	if os.Getenv("XSCHED_TEST_LISTEN") != "" {
		if err := unix.Listen(3, 8); err != nil {
			t.Fatal(err)
		}
		return
	}
	path := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	socket := os.NewFile(uintptr(fd), path)
	defer func() { _ = socket.Close() }()
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	daemon := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSocketOfKilledDaemon$")
	daemon.Env = append(os.Environ(), "XSCHED_TEST_LISTEN=1")
	daemon.ExtraFiles = []*os.File{socket}
	if out, err := daemon.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l, err := session.Listen("unixpacket", path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}
