// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// AskNode opens a device node and makes one ioctl.
func AskNode(path string, request uint32, arg []byte) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var pinner runtime.Pinner
	defer pinner.Unpin()
	pinner.Pin(&arg[0])
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(&arg[0]))); errno != 0 {
		return errno
	}
	return nil
}
