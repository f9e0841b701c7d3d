// SPDX-License-Identifier: Apache-2.0

package kfdtest

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// SendNumber sends the first real-time signal that the C library leaves free, with a number; such signals
// queue and never merge.
func SendNumber(pid, number int) error {
	const rtmin = 34
	info := struct {
		signo, errno, code int32
		_                  int32
		pid, uid           int32
		value              int64
		_                  [96]byte
	}{signo: rtmin, code: -1, pid: int32(unix.Getpid()), uid: int32(unix.Getuid()), value: int64(number)}
	_, _, errno := unix.Syscall(unix.SYS_RT_SIGQUEUEINFO, uintptr(pid), rtmin, uintptr(unsafe.Pointer(&info)))
	if errno != 0 {
		return errno
	}
	return nil
}
