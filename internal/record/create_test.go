// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"xsched/internal/atomicfile"
)

// Create writes a new file of its own: it follows no symbolic link, and nobody else can read it.
func TestCreateFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"rec", "rec.1"} {
		link := filepath.Join(dir, name)
		if err := os.Symlink(victim, link); err != nil {
			t.Fatal(err)
		}
		if _, err := Create(filepath.Join(dir, "rec"), Options{}); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: got %v", name, err)
		}
		if text, err := os.ReadFile(victim); err != nil || string(text) != "precious" {
			t.Fatalf("%s: the link's target has %q, %v", name, text, err)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
	// A link planted after Create, where rotation puts its files, is replaced and not followed.
	path := filepath.Join(dir, "rec")
	l := quiet(t, path, Options{FileBytes: 1, Files: 3})
	if err := os.Symlink(victim, atomicfile.Numbered(path, 1)); err != nil {
		t.Fatal(err)
	}
	s := newLife(t, l)
	pick := lcg(2)
	for l.part < 2 {
		s.step(pick)
		l.flush()
	}
	finish(t, l)
	if text, err := os.ReadFile(victim); err != nil || string(text) != "precious" {
		t.Errorf("the link's target has %q, %v", text, err)
	}
}

// Create replaces an older recording and nothing else. If one of its names holds other data, no
// file changes.
func TestCreateRemovesOnlyRecordings(t *testing.T) {
	whole := func() string {
		path := filepath.Join(t.TempDir(), "rec")
		finish(t, quiet(t, path, Options{}))
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}()
	zipped := func(text string) string {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write([]byte(text))
		_ = z.Close()
		return b.String()
	}
	for name, c := range map[string]struct {
		files map[string]string
		want  string // of the error
	}{
		"nothing":             {nil, ""},
		"recording":           {map[string]string{"rec": whole, "rec.1": whole}, ""},
		"newest missing":      {map[string]string{"rec.1": whole}, ""},
		"empty":               {map[string]string{"rec": "", "rec.1": whole}, ""},
		"killed at the start": {map[string]string{"rec": whole[:10], "rec.1": whole}, ""},
		"old version":         {map[string]string{"rec": "XSREC\x01\n and more"}, ""},
		"text":                {map[string]string{"rec": "precious"}, "rec exists and is not a recording; remove it or choose another name"},
		"long text":           {map[string]string{"rec": strings.Repeat("precious ", 99)}, "rec exists and is not a recording"},
		"zipped":              {map[string]string{"rec": zipped(`{"kind":"precious"}`)}, "rec exists and is not a recording"},
		"text behind":         {map[string]string{"rec": whole, "rec.1": "precious"}, "rec.1 exists and is not a recording"},
		"text behind a hole":  {map[string]string{"rec": whole, "rec.2": "precious"}, "rec.2 exists and is not a recording"},
		"too many":            {map[string]string{"rec": whole, "rec.3": whole}, "rec.3 exists, but a recording has 3 files at most"},
		"not ours":            {map[string]string{"rec": whole, "rec.4": "precious", "recs": "precious"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range c.files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			l, err := Create(filepath.Join(dir, "rec"), Options{Files: 3})
			if err == nil {
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			}
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			for file, text := range c.files {
				got, readErr := os.ReadFile(filepath.Join(dir, file))
				kept := readErr == nil && string(got) == text
				if want := err != nil || text == "precious"; kept != want {
					t.Errorf("%s kept: %v, want %v (%v)", file, kept, want, readErr)
				}
			}
		})
	}
}
