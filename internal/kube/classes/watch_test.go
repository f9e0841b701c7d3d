// SPDX-License-Identifier: Apache-2.0

package classes

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWatcher(t *testing.T) {
	path := filepath.Join(t.TempDir(), "classes.yaml")
	w, err := Open(path)
	if err != nil || w.File().known() != "batch, latency" {
		t.Fatalf("without a file: %v, %v", w, err)
	}
	changes := 0
	var log strings.Builder
	look := func(text string) string {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		w.look(slog.New(slog.NewTextHandler(&log, nil)), func() { changes++ })
		return w.File().known()
	}
	if got := look("classes: {a: {priority: 1}}"); got != "a" || changes != 1 {
		t.Errorf("%s after %d changes", got, changes)
	}
	if got := look("classes: {a: {priority: 1}}"); got != "a" || changes != 1 {
		t.Errorf("%s after %d changes", got, changes)
	}
	look("classes: {b: {priority: 1000}}")
	if got := look("classes: {b: {priority: 1000}}"); got != "a" || changes != 1 || strings.Count(log.String(), "level=ERROR") != 1 {
		t.Errorf("%s after %d changes; log %s", got, changes, &log)
	}
	if got := look("classes: {b: {priority: 100}}"); got != "b" || changes != 2 {
		t.Errorf("%s after %d changes", got, changes)
	}
	if _, err := Open(path); err != nil {
		t.Error(err)
	}
	look("nonsense")
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a wrong file at the start: %v", err)
	}
}
