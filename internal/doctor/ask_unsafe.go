// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// answerLimit bounds one question to the kernel or to a program. A hung driver answers never.
const answerLimit = 10 * time.Second

// AskNode opens a device node and makes one ioctl. A driver that does not answer in time keeps its thread.
func AskNode(path string, request uint32, arg []byte) error {
	own, done := bytes.Clone(arg), make(chan error, 1)
	go func() { done <- askNode(path, request, own) }()
	select {
	case err := <-done:
		copy(arg, own)
		return err
	case <-time.After(answerLimit):
		return fmt.Errorf("%s does not answer within %v; see the kernel's log", path, answerLimit)
	}
}

func askNode(path string, request uint32, arg []byte) error {
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
