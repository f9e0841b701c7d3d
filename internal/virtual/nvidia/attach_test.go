// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"encoding/binary"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/nvidia/abi"
	vdevice "xsched/internal/virtual/device"
)

// attached is a duplicate of a process's driver file, with the handles found by probing, as a daemon
// attaches to a process without the shim.
type attached struct {
	t                 *testing.T
	fd                int
	client, subdevice uint32
	groups, channels  []uint32
}

func (d *device) attach(pid int) *attached {
	d.t.Helper()
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		d.t.Skipf("pidfd_open: %v", err)
	}
	defer unix.Close(pidfd)
	a := &attached{t: d.t, fd: -1, subdevice: 0x5c000003}
	for n := 3; n < 64 && a.fd < 0; n++ {
		fd, err := unix.PidfdGetfd(pidfd, n, 0)
		if err == unix.EPERM || err == unix.ENOSYS {
			d.t.Skipf("pidfd_getfd: %v", err)
		}
		if err != nil {
			continue
		}
		if peer, err := unix.Getpeername(fd); err == nil {
			if name, ok := peer.(*unix.SockaddrUnix); ok && name.Name == d.socket {
				a.fd = fd
				continue
			}
		}
		_ = unix.Close(fd)
	}
	if a.fd < 0 {
		d.t.Fatal("no driver file found")
	}
	d.t.Cleanup(a.close)
	for c := uint32(firstClient); a.client == 0 && c < firstClient+4096; c++ {
		if a.control(c, a.subdevice, ctrlBusGetPCIInfo, make([]byte, 16)) == abi.NV_OK {
			a.client = c
		}
	}
	for h := uint32(0x5c000000); h < 0x5c000080; h++ {
		if a.control(a.client, h, abi.NVA06C_CTRL_CMD_GET_INFO, make([]byte, 4)) == abi.NV_OK {
			a.groups = append(a.groups, h)
		}
		if a.control(a.client, h, abi.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, make([]byte, 4)) == abi.NV_OK {
			a.channels = append(a.channels, h)
		}
	}
	return a
}

func (a *attached) close() {
	if a.fd >= 0 {
		_ = unix.Close(a.fd)
	}
	a.fd = -1
}

// call performs one ioctl on the file, with a time limit.
func (a *attached) call(request uint32, arg, params []byte) ([]byte, []byte, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(pair[0])
	packet := append(append(words(format.Magic, request, uint32(len(arg)), uint32(len(params))), arg...), params...)
	err = unix.Sendmsg(a.fd, packet, unix.UnixRights(pair[1]), nil, unix.MSG_NOSIGNAL)
	_ = unix.Close(pair[1])
	if err != nil {
		return nil, nil, err
	}
	_ = unix.SetsockoptTimeval(pair[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 500000})
	reply := make([]byte, vdevice.ReplyHeader+format.MaxArg+format.MaxParams)
	n, _, err := unix.Recvfrom(pair[0], reply, 0)
	for err == unix.EINTR { // the Go runtime signals its threads
		n, _, err = unix.Recvfrom(pair[0], reply, 0)
	}
	if err != nil {
		return nil, nil, err
	}
	if n < vdevice.ReplyHeader || binary.LittleEndian.Uint32(reply) != 0 {
		return nil, nil, fmt.Errorf("reply of %d bytes, errno %d", n, binary.LittleEndian.Uint32(reply))
	}
	body := reply[vdevice.ReplyHeader:n]
	return body[:len(arg)], body[len(arg):], nil
}

func (a *attached) try(client, object, command uint32, params []byte) (uint32, error) {
	arg := append(words(client, object, command, 0), make([]byte, 16)...)
	binary.LittleEndian.PutUint32(arg[24:], uint32(len(params)))
	arg, out, err := a.call(reqControl, arg, params)
	if err != nil {
		return 0, err
	}
	copy(params, out)
	return binary.LittleEndian.Uint32(arg[28:]), nil
}

func (a *attached) control(client, object, command uint32, params []byte) uint32 {
	a.t.Helper()
	status, err := a.try(client, object, command, params)
	if err != nil {
		a.t.Fatalf("control %#x: %v", command, err)
	}
	return status
}

func (a *attached) disable(on byte) {
	a.t.Helper()
	if s := a.control(a.client, a.subdevice, abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, disable(on, a.client, a.channels[:8]...)); s != abi.NV_OK {
		a.t.Fatalf("FIFO_DISABLE_CHANNELS: status %#x", s)
	}
}
