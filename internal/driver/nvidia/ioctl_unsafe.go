// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"xsched/internal/quarantine"
)

// The control device, from nv-chardev-numbers.h.
const (
	nvMajor     = 195
	nvCtlMinor  = 255
	controlPath = "/dev/nvidiactl"
)

// argPointer is the offset of the parameter pointer in RM_CONTROL and RM_ALLOC.
const argPointer = 16

// kernelTransport calls ioctl on the character device.
type kernelTransport struct{}

var _ Transport = kernelTransport{}

// Accept accepts only the control device.
func (t kernelTransport) Accept(fd int) error {
	if err := t.Control().Check(fd); err != nil {
		return fmt.Errorf("not %s: %w", controlPath, err)
	}
	return nil
}

func (kernelTransport) Control() quarantine.Want {
	return quarantine.Want{Device: unix.Mkdev(nvMajor, nvCtlMinor)}
}

func (t kernelTransport) Copy(pidfd, fd int, account string) (int, error) {
	return quarantine.Copy(pidfd, fd, account, t.Control())
}

func (kernelTransport) Open() (*File, error) {
	fd, err := unix.Open(controlPath, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", controlPath, err)
	}
	return NewFile(fd), nil
}

// Ioctl can't be interrupted, so it checks the context only beforehand.
func (kernelTransport) Ioctl(ctx context.Context, f *File, request uint32, arg, params []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return f.use(func(fd int) error {
		var pin runtime.Pinner
		defer pin.Unpin()
		pin.Pin(&arg[0])
		if len(params) > 0 {
			// The garbage collector does not see the address inside arg, so pin the buffer for the
			// call.
			pin.Pin(&params[0])
			binary.NativeEndian.PutUint64(arg[argPointer:], uint64(uintptr(unsafe.Pointer(&params[0]))))
		}
		for {
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(&arg[0])))
			if errno == 0 {
				return nil
			}
			if !errors.Is(errno, unix.EINTR) {
				return fmt.Errorf("ioctl %#x: %w", request, errno)
			}
		}
	})
}

// Find lists the control files of a process.
func (kernelTransport) Find(pid int) ([]Candidate, error) {
	return candidates(pid, func(link string) bool { return link == controlPath })
}
