// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSecondDaemonAndStaleSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "hub")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	lock, err := TakeLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := TakeLock(dir); !errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("second daemon: %v", err)
	}
	lock.Release()
	if lock, err = TakeLock(dir); err != nil {
		t.Fatal(err)
	}
	defer lock.Release()

	path := filepath.Join(dir, "s")
	l, err := Listen("unixpacket", path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen("unixpacket", path, 0o600); !errors.Is(err, ErrRunning) {
		t.Errorf("live socket: %v", err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	if l, err = Listen("unixpacket", path, 0o600); err != nil {
		t.Errorf("stale socket: %v", err)
	} else {
		_ = l.Close()
	}
	_ = os.WriteFile(path, nil, 0o600)
	if _, err := Listen("unixpacket", path, 0o600); err == nil {
		t.Error("a plain file was replaced")
	}
}
