// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// The virtual device's transport: one request is one packet, with a descriptor for the reply, then
// the descriptor that the request names.
const (
	virtualMagic  = 0x4F494B56 // "VKIO"
	virtualHeader = 32
	virtualReply  = 16
	virtualMax    = 65536
)

type virtualKFD struct{ fd int }

// DialVirtual opens the virtual /dev/kfd behind a socket.
func DialVirtual(socket string) (Transport, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open virtual kfd: %w", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("open virtual kfd %s: %w", socket, err)
	}
	return &virtualKFD{fd}, nil
}

func (v *virtualKFD) Close() error { return unix.Close(v.fd) }

// Ioctl sends the packet and waits for the reply.
func (v *virtualKFD) Ioctl(r Request) (int, error) {
	if len(r.Buffer) > virtualMax {
		return -1, unix.EINVAL
	}
	if len(r.Buffer) > 0 {
		binary.LittleEndian.PutUint64(r.Arg[r.PointerAt:], 1) // non-null
	}
	head := make([]byte, virtualHeader, virtualHeader+len(r.Arg)+len(r.Buffer))
	for i, w := range []uint32{virtualMagic, r.Code, uint32(len(r.Arg)), uint32(len(r.Buffer)), uint32(unix.Gettid())} {
		binary.LittleEndian.PutUint32(head[4*i:], w)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(pair[0])
	fds := []int{pair[1]}
	if r.File >= 0 {
		fds = append(fds, r.File)
	}
	err = unix.Sendmsg(v.fd, append(append(head, r.Arg...), r.Buffer...), unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
	_ = unix.Close(pair[1])
	if err != nil {
		return -1, unix.EIO
	}
	reply := make([]byte, virtualReply+len(r.Arg)+len(r.Buffer)+1)
	n, _, err := unix.Recvfrom(pair[0], reply, 0)
	for errors.Is(err, unix.EINTR) {
		n, _, err = unix.Recvfrom(pair[0], reply, 0)
	}
	if err != nil || n != virtualReply+len(r.Arg)+len(r.Buffer) {
		return -1, unix.EIO
	}
	result := int(int32(binary.LittleEndian.Uint32(reply)))
	if result < 0 {
		return -1, unix.Errno(-result)
	}
	copy(r.Arg, reply[virtualReply:])
	copy(r.Buffer, reply[virtualReply+len(r.Arg):n])
	return result, nil
}
