// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// ThisKernel probes the running kernel on this process itself.
type ThisKernel struct{}

var _ Kernel = ThisKernel{}

// Pidfd opens a pidfd.
func (ThisKernel) Pidfd() error {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// PidfdGetfd duplicates a descriptor of this process.
func (ThisKernel) PidfdGetfd() error {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	twin, err := unix.PidfdGetfd(fd, fd, 0)
	if err != nil {
		return err
	}
	return unix.Close(twin)
}

// MemfdSeals creates and seals a memory file like a session's page.
func (ThisKernel) MemfdSeals() error {
	fd, err := unix.MemfdCreate("xsched-doctor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	return err
}

// PeerPidfd queries a socket for its peer's pidfd.
func (ThisKernel) PeerPidfd() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(pair[0]); _ = unix.Close(pair[1]) }()
	fd, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// Ptrace traces a process that can't exist: only the answer to the call itself matters.
func (ThisKernel) Ptrace() error {
	if err := unix.PtraceSeize(-1); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// Realtime tries SCHED_FIFO.
func (ThisKernel) Realtime() error {
	return onThread(unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1})
}

// Nice tries nice -10.
func (ThisKernel) Nice() error {
	return onThread(unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: -10})
}

// onThread sets attr on a thread that ends afterwards.
func onThread(attr unix.SchedAttr) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with its goroutine
		done <- unix.SchedSetAttr(0, &attr, 0)
	}()
	return <-done
}

// OpenNode opens a device node as the driver library does.
func OpenNode(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// Preload runs a no-op program with a library preloaded. The loader reports failures on standard
// error and continues.
func Preload(path string) error {
	program, err := exec.LookPath("true")
	if err != nil {
		return nil // no program to try it with
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = []string{"LD_PRELOAD=" + path, "XSCHED_DISABLE=1"}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("a preloaded program failed: %w", err)
	}
	if text := strings.TrimSpace(said.String()); text != "" {
		return errors.New(strings.Join(strings.Fields(text), " "))
	}
	return nil
}
