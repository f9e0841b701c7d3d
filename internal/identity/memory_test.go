// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"os"
	"path/filepath"
	"testing"
)

// TestMemoryLimit: the control group with the least memory left counts, without what the kernel drops first.
func TestMemoryLimit(t *testing.T) {
	root := t.TempDir()
	files := memoryFiles{root, "memory.max", "memory.current", "inactive_file"}
	group := func(path, limit, used, stat string) {
		t.Helper()
		folder := filepath.Join(root, path)
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"memory.max": limit, "memory.current": used, "memory.stat": stat} {
			if err := os.WriteFile(filepath.Join(folder, name), []byte(text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	group("/pods", "1000", "700", "anon 600\ninactive_file 50\nfile 100")
	group("/pods/a", "900", "300", "inactive_file 0")
	group("/pods/a/b", "max", "300", "")
	for path, want := range map[string][2]int64{"/pods/a/b": {1000, 650}, "/pods/a": {1000, 650}, "/": {0, 0}, "/other": {0, 0}, "/../..": {0, 0}} {
		limit, used, ok := files.tightest(path)
		if [2]int64{limit, used} != want || ok != (want[0] > 0) {
			t.Errorf("%s: %d of %d, %v", path, used, limit, ok)
		}
	}
	if limit, used, ok := MemoryLimit(os.Getpid()); ok && (limit <= 0 || used < 0) {
		t.Errorf("this process: %d of %d", used, limit)
	}
}
