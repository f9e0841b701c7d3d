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

func TestPrepareDir(t *testing.T) {
	base := t.TempDir()
	uid := os.Geteuid()
	dir := filepath.Join(base, "a", "b")
	if err := PrepareDir(dir, uid); err != nil {
		t.Fatal(err)
	}
	want := os.FileMode(0o700)
	if uid == 0 {
		want = 0o755
	}
	_ = os.Chmod(dir, 0o777)
	if err := PrepareDir(dir, uid); err != nil {
		t.Fatal(err)
	}
	if st, _ := os.Stat(dir); st.Mode().Perm() != want {
		t.Errorf("mode %v", st.Mode())
	}
	link := filepath.Join(base, "link")
	_ = os.Symlink(dir, link)
	if err := PrepareDir(link, uid); err == nil {
		t.Error("a link was accepted")
	}
	if err := PrepareDir(dir, uid+1); err == nil {
		t.Error("somebody else's directory was accepted")
	}
	env := map[string]string{"XDG_RUNTIME_DIR": "/run/user/7"}
	get := func(k string) string { return env[k] }
	if d := DefaultDir(7, get); d != "/run/user/7/xsched" {
		t.Error(d)
	}
	if d := DefaultDir(0, get); d != "/run/xsched" {
		t.Error(d)
	}
	delete(env, "XDG_RUNTIME_DIR")
	if d := DefaultDir(7, get); d != "/tmp/xsched-7" {
		t.Error(d)
	}
}
