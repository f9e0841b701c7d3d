// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// fuseNode is the bench's own /dev/fuse, with the mode that distributions give it.
const fuseNode = "fuse"

// makeFuseNode creates the node; without one the attacks with FUSE files are skipped.
func makeFuseNode(base string) {
	const major, minor = 10, 229 // Documentation/admin-guide/devices.txt
	path := filepath.Join(base, fuseNode)
	if unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor))) == nil {
		_ = os.Chmod(path, 0o666)
	}
}

// stuckFiles returns descriptors of a file in a file system of this user, which answers no FLUSH:
// closing one never ends. The server is a child in a user namespace, as any user may have.
func (a *attacker) stuckFiles(n int) ([]int, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	mount, err := os.CreateTemp(".", "mount")
	if err != nil {
		return nil, err
	}
	end := os.NewFile(uintptr(pair[1]), "pair")
	cmd := exec.Command("/proc/self/exe", "fuse", filepath.Join(filepath.Dir(a.dir), fuseNode), mount.Name())
	cmd.ExtraFiles = []*os.File{end}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	_ = end.Close()
	if err := unix.SetNonblock(pair[0], true); err != nil { // for the deadline
		return nil, err
	}
	file := os.NewFile(uintptr(pair[0]), "pair")
	_ = file.SetReadDeadline(time.Now().Add(5 * time.Second))
	text := make([]byte, 256)
	size, err := file.Read(text)
	if err != nil || string(text[:size]) != fuseReady {
		return nil, fmt.Errorf("the file system does not start: %s %w", text[:max(size, 0)], err)
	}
	// The server itself must not have such a file: at its end it would wait for itself.
	path := fmt.Sprintf("/proc/%d/cwd/%s", cmd.Process.Pid, filepath.Base(mount.Name()))
	var all []int
	for range n {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open a file of the file system: %w", err)
		}
		all = append(all, fd)
	}
	return all, nil
}

// fuseReady is what the server sends once the file system exists.
const fuseReady = "ready"

// serveFUSE is the server: NODE FILE. Descriptor 3 is the socket to the attacker.
func serveFUSE(args []string) error {
	fail := func(err error) error {
		_ = unix.Sendmsg(3, []byte(err.Error()), nil, nil, 0)
		return err
	}
	if len(args) != 2 {
		return fail(errors.New("use: attack fuse NODE FILE"))
	}
	device, err := os.OpenFile(args[0], os.O_RDWR, 0)
	if err != nil {
		return fail(err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=100644,user_id=0,group_id=0", device.Fd())
	if err := unix.Mount("stuck", args[1], "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fail(err)
	}
	if err := unix.Sendmsg(3, []byte(fuseReady), nil, nil, 0); err != nil {
		return err
	}
	buf := make([]byte, 1<<17)
	for {
		size, err := device.Read(buf)
		if err != nil {
			return fail(err)
		}
		if reply := answerFUSE(buf[:size]); reply != nil {
			if _, err := device.Write(reply); err != nil {
				return fail(err)
			}
		}
	}
}

// Requests and sizes of linux/fuse.h.
const (
	fuseGetattr, fuseOpen, fuseFlush, fuseInit = 3, 14, 25, 26
	fuseHeaderBytes, fuseReplyBytes            = 40, 16
)

// answerFUSE answers what opening a file needs; FLUSH gets no answer.
func answerFUSE(request []byte) []byte {
	if len(request) < fuseHeaderBytes {
		return nil
	}
	order := binary.NativeEndian
	reply, code := make([]byte, fuseReplyBytes, 256), uint32(0)
	put := func(size int) []byte {
		reply = append(reply, make([]byte, size)...)
		return reply[fuseReplyBytes:]
	}
	switch order.Uint32(request[4:]) {
	case fuseInit: // struct fuse_init_out: version 7.31
		body := put(64)
		order.PutUint32(body, 7)
		order.PutUint32(body[4:], 31)
		order.PutUint32(body[20:], 1<<16) // max_write
	case fuseGetattr: // struct fuse_attr_out: a regular file that does not change
		body := put(104)
		order.PutUint64(body, 3600)
		order.PutUint64(body[16:], 1)                     // ino
		order.PutUint32(body[16+60:], unix.S_IFREG|0o644) // mode
		order.PutUint32(body[16+64:], 1)                  // nlink
	case fuseOpen: // struct fuse_open_out
		order.PutUint64(put(16), 1)
	case fuseFlush:
		return nil
	default:
		errno := int32(-int(unix.ENOSYS))
		code = uint32(errno)
	}
	order.PutUint32(reply, uint32(len(reply)))
	order.PutUint32(reply[4:], code)
	copy(reply[8:16], request[8:16]) // unique
	return reply
}
