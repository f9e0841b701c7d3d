// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"xsched/internal/model"
)

// gpuFolder is where the kernel driver shows its GPUs, one folder each.
const gpuFolder = "proc/driver/nvidia/gpus"

// gpuFiles are the driver's files below a root, by which the daemon lists the GPUs before a program uses one.
// They belong to the first device with a socket in this folder.
type gpuFiles struct {
	root string
	lock *os.File // nil: they belong to another device
}

// lockName is the file whose lock the owner of the files has.
const lockName = "gpus.lock"

// write shows the GPUs, and no other ones: a device process that was killed leaves its own.
func (f *gpuFiles) write(gpus int) error {
	if err := f.take(); err != nil {
		return fmt.Errorf("list virtual GPUs: %w", err)
	}
	if f.lock == nil {
		return nil
	}
	f.clear()
	for i := range gpus {
		folder := filepath.Join(f.root, gpuFolder, model.MakeDeviceID(0, uint32(i+1), 0, 0).String())
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return fmt.Errorf("list virtual GPUs: %w", err)
		}
		// The UUID is that of cuDeviceGetUuid in the stand-in.
		text := fmt.Sprintf("GPU UUID: \t GPU-58536368-6564-2076-6972-7475616c%04x\nDevice Minor: \t %d\n", i+1, i)
		if err := os.WriteFile(filepath.Join(folder, "information"), []byte(text), 0o644); err != nil {
			return fmt.Errorf("list virtual GPUs: %w", err)
		}
	}
	return nil
}

// take locks the files, unless another device has.
func (f *gpuFiles) take() error {
	for {
		file, err := os.OpenFile(filepath.Join(f.root, lockName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return err
		}
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			_ = file.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil
			}
			return fmt.Errorf("lock %s: %w", file.Name(), err)
		}
		// The previous owner may have removed the file between open and lock.
		mine, err1 := file.Stat()
		there, err2 := os.Lstat(file.Name())
		if err1 == nil && err2 == nil && os.SameFile(mine, there) {
			f.lock = file
			return nil
		}
		_ = file.Close()
	}
}

// remove leaves nothing behind, and another device's files alone.
func (f *gpuFiles) remove() {
	if f.lock == nil {
		return
	}
	f.clear()
	_ = os.Remove(f.lock.Name())
	_ = f.lock.Close()
	f.lock = nil
}

// clear removes the GPUs and the folders that are empty without them.
func (f *gpuFiles) clear() {
	_ = os.RemoveAll(filepath.Join(f.root, gpuFolder))
	for folder := filepath.Dir(gpuFolder); folder != "."; folder = filepath.Dir(folder) {
		_ = os.Remove(filepath.Join(f.root, folder))
	}
}
