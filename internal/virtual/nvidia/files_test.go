// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"os"
	"path/filepath"
	"testing"
)

// TestTwoDevicesInOneFolder: the files are those of the first device until it ends. A device that was
// killed leaves its files without a lock: the next one replaces them.
func TestTwoDevicesInOneFolder(t *testing.T) {
	root := t.TempDir()
	shown := func(want int) {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(root, gpuFolder, "*"))
		if err != nil || len(found) != want {
			t.Errorf("GPUs %v, %v; want %d", found, err, want)
		}
	}
	open := func(gpus int) *gpuFiles {
		t.Helper()
		f := &gpuFiles{root: root}
		if err := f.write(gpus); err != nil {
			t.Fatal(err)
		}
		return f
	}
	first, second := open(3), open(1)
	shown(3)
	second.remove()
	shown(3)
	_ = first.lock.Close() // killed
	third := open(2)
	shown(2)
	third.remove()
	if left, err := os.ReadDir(root); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
