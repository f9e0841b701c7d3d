// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWrite: a failure keeps the old content and leaves no temporary file.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.json")
	text := func(s string) func(io.Writer) error {
		return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
	}
	broken := errors.New("no more text")
	if err := Write(path, 0o640, text("one")); err != nil {
		t.Fatal(err)
	}
	err := Write(path, 0o640, func(w io.Writer) error { return errors.Join(text("two")(w), broken) })
	if !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	if b, err := os.ReadFile(path); string(b) != "one" || err != nil {
		t.Errorf("%q %v", b, err)
	}
	if err := Write(path, 0o644, text("two")); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o644 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if err := Write(filepath.Join(dir, "b"), 0o644, func(io.Writer) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	if all, _ := os.ReadDir(dir); len(all) != 1 {
		t.Errorf("left: %v", all)
	}
	err = Write(filepath.Join(dir, "missing", "a"), 0o644, text(""))
	if !errors.Is(err, os.ErrNotExist) || strings.Contains(err.Error(), ".new") {
		t.Errorf("%v", err)
	}
}

func TestShift(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for _, text := range []string{"a", "b", "c", "d"} {
		if err := Shift(path, 3); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := ""
	for i := range 4 {
		text, _ := os.ReadFile(Numbered(path, i))
		got += string(text)
	}
	if got != "dcb" {
		t.Errorf("newest first: %s", got)
	}
	blocked := filepath.Join(t.TempDir(), "log")
	if err := os.Mkdir(Numbered(blocked, 1), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if Shift(blocked, 2) == nil {
		t.Error("a folder was replaced")
	}
}
