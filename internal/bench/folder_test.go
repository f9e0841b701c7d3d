// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A check of a folder leaves nothing behind, also in a folder that does not exist yet.
func TestWritable(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for out, want := range map[string]bool{"": true, dir: true, filepath.Join(dir, "a", "b"): true, file: false, filepath.Join(file, "x"): false, "/proc/x": false} {
		if err := Writable(out); (err == nil) != want {
			t.Errorf("%q: %v", out, err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left: %v %v", left, err)
	}
}

// TestFolderSweepsLeftovers: only an old folder that no process has locked is removed.
func TestFolderSweepsLeftovers(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	age := func(dir string) {
		if err := os.Chtimes(dir, time.Time{}, time.Now().Add(-2*settled)); err != nil {
			t.Fatal(err)
		}
	}
	used, remove, err := Folder("xsched-bench-")
	if err != nil {
		t.Fatal(err)
	}
	age(used)
	left := map[string]string{}
	for _, name := range []string{"killed", "young", "target"} {
		left[name] = filepath.Join(os.TempDir(), "xsched-bench-"+name)
		if name == "target" {
			left[name] = filepath.Join(os.TempDir(), "elsewhere")
		}
		if err := os.MkdirAll(filepath.Join(left[name], "inside"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	age(left["killed"])
	age(left["target"])
	if err := os.Symlink(left["target"], filepath.Join(os.TempDir(), "xsched-bench-link")); err != nil {
		t.Fatal(err)
	}
	_, removeOther, err := Folder("xsched-bench-")
	if err != nil {
		t.Fatal(err)
	}
	removeOther()
	for name, dir := range map[string]string{"used": used, "young": left["young"], "target of a link": left["target"]} {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(left["killed"]); !os.IsNotExist(err) {
		t.Errorf("the folder of a killed run: %v", err)
	}
	remove()
	if _, err := os.Stat(used); !os.IsNotExist(err) {
		t.Errorf("after its end: %v", err)
	}
}
