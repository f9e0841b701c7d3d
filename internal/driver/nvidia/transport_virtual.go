// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/quarantine"
)

// The virtual GPU's protocol: one ioctl is one packet on the control socket, with one end of a
// fresh socket pair for the reply. The application and a daemon with a duplicate can therefore
// share a control socket.
const (
	vgMagic      = 0x4F494756 // "VGIO"
	vgHead       = 16
	vgMaxArg     = 64
	vgMaxParams  = 4096
	vgSendPause  = time.Millisecond
	vgReplyBytes = vgHead + vgMaxArg + vgMaxParams
)

// virtualTransport carries the same bytes to the virtual GPU's process.
type virtualTransport struct {
	path string // the device process's socket
}

var _ Transport = (*virtualTransport)(nil)

// Accept accepts packet sockets connected to the device process.
func (t *virtualTransport) Accept(fd int) error {
	if err := t.Control().Check(fd); err != nil {
		return fmt.Errorf("not a virtual control file: %w", err)
	}
	return nil
}

func (t *virtualTransport) Control() quarantine.Want { return quarantine.Want{Peer: t.path} }

func (t *virtualTransport) Copy(pidfd, fd int, account string) (int, error) {
	return quarantine.Copy(pidfd, fd, account, t.Control())
}

func (t *virtualTransport) Open() (*File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open virtual GPU: %w", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: t.path}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("open virtual GPU %s: %w", t.path, err)
	}
	return NewFile(fd), nil
}

func (t *virtualTransport) Ioctl(ctx context.Context, f *File, request uint32, arg, params []byte) error {
	reserved.prepare()
	p, err := newPair()
	if outOfFiles(err) {
		return t.ioctlReserved(ctx, f, request, arg, params)
	}
	if err != nil {
		return fmt.Errorf("make reply socket: %w", err)
	}
	defer func() { _ = unix.Close(p.ours) }()
	err = t.send(ctx, f, request, arg, params, p.theirs)
	_ = unix.Close(p.theirs)
	if err != nil {
		return fmt.Errorf("ioctl %#x on virtual GPU: %w", request, err)
	}
	reply := make([]byte, vgReplyBytes)
	n, err := receive(ctx, p.ours, reply, nil)
	if err != nil {
		return fmt.Errorf("ioctl %#x on virtual GPU: %w", request, err)
	}
	return decodeReply(reply[:n], arg, params)
}

// ioctlReserved is Ioctl at the descriptor limit.
func (t *virtualTransport) ioctlReserved(ctx context.Context, f *File, request uint32, arg, params []byte) error {
	p, err := reserved.take(ctx)
	if err != nil {
		return fmt.Errorf("make reply socket: %w: %w", unix.EMFILE, err)
	}
	reply := make([]byte, vgReplyBytes)
	n := 0
	sent := t.send(ctx, f, request, arg, params, p.theirs)
	if err = sent; err == nil {
		n, err = receive(ctx, p.ours, reply, func() bool { return hungUp(f) })
	}
	reserved.give(p, sent != nil || err == nil)
	if err != nil {
		return fmt.Errorf("ioctl %#x on virtual GPU: %w", request, err)
	}
	return decodeReply(reply[:n], arg, params)
}

// send holds the process's file only for non-blocking attempts, so that Close never waits.
func (t *virtualTransport) send(ctx context.Context, f *File, request uint32, arg, params []byte, reply int) error {
	packet := make([]byte, vgHead, vgHead+len(arg)+len(params))
	binary.NativeEndian.PutUint32(packet[0:], vgMagic)
	binary.NativeEndian.PutUint32(packet[4:], request)
	binary.NativeEndian.PutUint32(packet[8:], uint32(len(arg)))
	binary.NativeEndian.PutUint32(packet[12:], uint32(len(params)))
	packet = append(append(packet, arg...), params...)
	rights := unix.UnixRights(reply)
	for {
		err := f.use(func(fd int) error {
			return unix.Sendmsg(fd, packet, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		})
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(vgSendPause):
		}
	}
}

// receive waits for the reply; a dead device is an I/O error. The context is polled, because only
// tests and shutdown cancel it. gone, if not nil, reports a dead device.
func receive(ctx context.Context, fd int, buf []byte, gone func() bool) (int, error) {
	for {
		pfd := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(pfd, 50)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return 0, err
		}
		if n > 0 {
			n, err := unix.Read(fd, buf)
			if err == nil && n == 0 {
				err = unix.EIO
			}
			return n, err
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if gone != nil && gone() {
			return 0, unix.EIO
		}
	}
}

// decodeReply validates a reply and copies it back to arg and params.
func decodeReply(reply, arg, params []byte) error {
	if len(reply) < vgHead {
		return fmt.Errorf("virtual GPU replied %d bytes", len(reply))
	}
	errno := int32(binary.NativeEndian.Uint32(reply[0:]))
	na, np := binary.NativeEndian.Uint32(reply[4:]), binary.NativeEndian.Uint32(reply[8:])
	if errno != 0 {
		return fmt.Errorf("virtual GPU: %w", unix.Errno(errno))
	}
	if int(na) != len(arg) || int(np) != len(params) || len(reply) != vgHead+len(arg)+len(params) {
		return fmt.Errorf("virtual GPU replied %d+%d bytes, want %d+%d", na, np, len(arg), len(params))
	}
	copy(arg, reply[vgHead:])
	copy(params, reply[vgHead+len(arg):])
	return nil
}

// Find lists a process's sockets; only a duplicate shows which one is a control socket.
func (t *virtualTransport) Find(pid int) ([]Candidate, error) {
	return candidates(pid, func(link string) bool { return strings.HasPrefix(link, "socket:[") })
}
