// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
