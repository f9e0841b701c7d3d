// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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
		t.Error("accepted a link")
	}
	if err := PrepareDir(dir, uid+1); err == nil {
		t.Error("accepted another user's directory")
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

// TestParents checks that no other user can replace the daemon's directory.
func TestParents(t *testing.T) {
	uid := os.Geteuid()
	base := t.TempDir()
	if _, err := os.Stat(filepath.Join(base, ClientDir)); err == nil {
		t.Fatal("not new")
	}
	if err := PrepareDir(filepath.Join(base, "d"), uid); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(base, "d", ClientDir)); err != nil || !st.IsDir() {
		t.Errorf("no folder for clients: %v", err)
	}
	open := filepath.Join(base, "open")
	_ = os.Mkdir(open, 0o700)
	_ = os.Chmod(open, 0o777)
	if err := PrepareDir(filepath.Join(open, "d"), uid); !errors.Is(err, ErrNotAllowed) {
		t.Errorf("a parent that everybody may write: %v", err)
	}
	_ = os.Chmod(open, 0o777|os.ModeSticky)
	if err := PrepareDir(filepath.Join(open, "d"), uid); err != nil {
		t.Errorf("a sticky parent: %v", err)
	}
	if uid != 0 {
		t.Skip("the rest needs root")
	}
	other := filepath.Join(base, "other")
	if err := os.MkdirAll(filepath.Join(other, "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(other, 4711, 4711); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(base, "link")
	if err := os.Symlink(filepath.Join(other, "a"), link); err != nil {
		t.Fatal(err)
	}
	for _, parent := range []string{other, filepath.Join(other, "a"), link} {
		if err := PrepareDir(filepath.Join(parent, "d"), uid); !errors.Is(err, ErrNotAllowed) || !strings.Contains(err.Error(), "uid 4711") {
			t.Errorf("%s: %v", parent, err)
		}
	}
}
