// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"fmt"
	"os"
	"path/filepath"

	"xsched/internal/model"
)

// gpuFolder is where the kernel driver shows its GPUs, one folder each.
const gpuFolder = "proc/driver/nvidia/gpus"

// gpuFiles are the driver's files below a root, by which the daemon lists the GPUs before a program uses one.
type gpuFiles struct{ root string }

// write shows the GPUs, and no other ones: a device process that was killed leaves its own.
func (f gpuFiles) write(gpus int) error {
	f.remove()
	for i := range gpus {
		folder := filepath.Join(f.root, gpuFolder, model.MakeDeviceID(0, uint32(i+1), 0, 0).String())
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return fmt.Errorf("list virtual GPUs: %w", err)
		}
	}
	return nil
}

// remove leaves no folder behind that is empty without the GPUs.
func (f gpuFiles) remove() {
	_ = os.RemoveAll(filepath.Join(f.root, gpuFolder))
	for folder := filepath.Dir(gpuFolder); folder != "."; folder = filepath.Dir(folder) {
		_ = os.Remove(filepath.Join(f.root, folder))
	}
}
