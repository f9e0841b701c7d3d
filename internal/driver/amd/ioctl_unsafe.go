// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kfdFile is an open /dev/kfd.
type kfdFile struct{ fd int }

// OpenDevice opens /dev/kfd. The descriptor is valid in this process only.
func OpenDevice() (Transport, error) {
	fd, err := unix.Open(DevicePath, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", DevicePath, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("open %s: not a character device", DevicePath)
	}
	return &kfdFile{fd}, nil
}

func (f *kfdFile) Close() error { return unix.Close(f.fd) }

// Ioctl makes the system call in the calling thread.
func (f *kfdFile) Ioctl(r Request) (int, error) {
	// The garbage collector does not see the address inside Arg, so pin the buffer.
	var pinner runtime.Pinner
	defer pinner.Unpin()
	if len(r.Buffer) > 0 {
		pinner.Pin(&r.Buffer[0])
		binary.NativeEndian.PutUint64(r.Arg[r.PointerAt:], uint64(uintptr(unsafe.Pointer(&r.Buffer[0]))))
	}
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(f.fd), uintptr(r.Code), uintptr(unsafe.Pointer(&r.Arg[0])))
	runtime.KeepAlive(r.Buffer)
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}
