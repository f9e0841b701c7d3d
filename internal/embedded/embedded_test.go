// SPDX-License-Identifier: Apache-2.0

package embedded

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

var library = artefact{"libtest.so", 0o444}

func entries(t *testing.T, root string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestCacheDir(t *testing.T) {
	env := func(pairs ...string) func(string) string {
		m := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return func(name string) string { return m[name] }
	}
	for _, test := range []struct {
		name   string
		getenv func(string) string
		uid    int
		want   string
	}{
		{"asked", env("XSCHED_CACHE", "/a", "XDG_CACHE_HOME", "/b", "HOME", "/c"), 1, "/a"},
		{"xdg", env("XDG_CACHE_HOME", "/b", "HOME", "/c"), 1, "/b/xsched"},
		{"home", env("HOME", "/c"), 1, "/c/.cache/xsched"},
		{"root ignores the caller's home", env("XDG_CACHE_HOME", "/b", "HOME", "/c"), 0, "/var/cache/xsched"},
		{"root asked", env("XSCHED_CACHE", "/a"), 0, "/a"},
		{"nothing", env(), 1, ""},
		{"relative", env("XSCHED_CACHE", "a"), 1, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := cacheDir(test.getenv, test.uid)
			if got != test.want || (err == nil) != (test.want != "") {
				t.Errorf("cacheDir = %q, %v; want %q", got, err, test.want)
			}
		})
	}
}

func TestUnpackRepairs(t *testing.T) {
	root := filepath.Join(t.TempDir(), "new", "cache")
	content := []byte("the content")
	path, err := unpackInto(root, library, content)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(root, digest(content), library.name); path != want {
		t.Errorf("path = %s, want %s", path, want)
	}
	spoil := map[string]func(){
		"untouched": func() {},
		"changed":   func() { _ = os.WriteFile(path, []byte("THE content"), 0o444) },
		"removed":   func() {},
		"symlink":   func() { _ = os.Symlink("/etc/passwd", path) },
		"writable":  func() { _ = os.WriteFile(path, content, 0o666); _ = os.Chmod(path, 0o666) },
		"fifo":      func() { _ = unix.Mkfifo(path, 0o644) },
	}
	for name, do := range spoil {
		t.Run(name, func(t *testing.T) {
			if name != "untouched" {
				_ = os.Remove(path)
			}
			do()
			if _, err := unpackInto(root, library, content); err != nil {
				t.Fatal(err)
			}
			info, err := os.Lstat(path)
			if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != library.mode {
				t.Errorf("after repair: %v, %v", info, err)
			}
			if got, _ := os.ReadFile(path); string(got) != string(content) {
				t.Errorf("content = %q", got)
			}
			if got := entries(t, root); len(got) != 1 {
				t.Errorf("left behind: %v", got)
			}
		})
	}
}

func TestUnpackRefuses(t *testing.T) {
	content := []byte("the content")
	for _, test := range []struct {
		name    string
		prepare func(t *testing.T, root string)
		want    string
	}{
		{"symlink", func(t *testing.T, root string) {
			if err := os.Symlink(t.TempDir(), root); err != nil {
				t.Fatal(err)
			}
		}, "symbolic link"},
		{"world-writable", func(t *testing.T, root string) {
			if err := errors.Join(os.Mkdir(root, 0o755), os.Chmod(root, 0o777)); err != nil {
				t.Fatal(err)
			}
		}, "others may write"},
		{"world-writable above", func(t *testing.T, root string) {
			if err := os.Chmod(filepath.Dir(root), 0o777); err != nil {
				t.Fatal(err)
			}
		}, "others may write"},
		{"another user's above", func(t *testing.T, root string) {
			if os.Geteuid() != 0 {
				t.Skip("needs root to give a folder away")
			}
			if err := os.Chown(filepath.Dir(root), 12345, 12345); err != nil {
				t.Fatal(err)
			}
		}, "belongs to another user"},
		{"another user's", func(t *testing.T, root string) {
			if os.Geteuid() != 0 {
				t.Skip("needs root to give a folder away")
			}
			if err := errors.Join(os.Mkdir(root, 0o755), os.Chown(root, 12345, 12345)); err != nil {
				t.Fatal(err)
			}
		}, "belongs to user 12345"},
		{"hash folder is a file", func(t *testing.T, root string) {
			if err := errors.Join(os.Mkdir(root, 0o755), os.WriteFile(filepath.Join(root, digest(content)), nil, 0o644)); err != nil {
				t.Fatal(err)
			}
		}, "not a folder"},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "cache")
			test.prepare(t, root)
			_, err := unpackInto(root, library, content)
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "XSCHED_CACHE") {
				t.Errorf("err = %v, want one with %q and the remedy", err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
		})
	}
}

func TestUnpackConcurrent(t *testing.T) {
	root := filepath.Join(t.TempDir(), "cache")
	content := []byte(strings.Repeat("x", 1<<18))
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			path, err := unpackInto(root, library, content)
			if err != nil {
				t.Error(err)
				return
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != string(content) {
				t.Errorf("read back %d bytes, %v", len(got), err)
			}
		})
	}
	wg.Wait()
	if got := entries(t, root); len(got) != 1 {
		t.Errorf("left behind: %v", got)
	}
}

func TestUnknownAndMissing(t *testing.T) {
	if _, err := Unpack("nothing"); err == nil {
		t.Error("an unknown name was unpacked")
	}
	for _, a := range registry {
		if _, err := files.ReadFile(folder + a.name); err == nil {
			continue
		}
		if _, err := Unpack(a.name); !errors.Is(err, ErrMissing) {
			t.Errorf("Unpack(%s) = %v, want ErrMissing", a.name, err)
		}
		if Digest(a.name) != "" {
			t.Errorf("Digest(%s) of nothing", a.name)
		}
	}
}
