// SPDX-License-Identifier: Apache-2.0

package control

import (
	"os"
	"path/filepath"
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
