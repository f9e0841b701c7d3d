// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// errNoOwner: the peer is not, or no longer, a visible socket of this machine.
var errNoOwner = errors.New("the connection's peer socket was not found")

const (
	sockDiagByFamily = 20 // SOCK_DIAG_BY_FAMILY, linux/sock_diag.h
	tcpEstablished   = 1  // TCP_ESTABLISHED, linux/tcp_states.h

	// From linux/inet_diag.h: struct inet_diag_sockid, inet_diag_req_v2 and inet_diag_msg.
	diagIDBytes  = 48
	diagReqBytes = 8 + diagIDBytes
	diagMsgBytes = 4 + diagIDBytes + 20
)

// sockID is a struct inet_diag_sockid: ports and addresses in network order.
func sockID(src, dst netip.AddrPort) []byte {
	b := make([]byte, diagIDBytes)
	binary.BigEndian.PutUint16(b[0:], src.Port())
	binary.BigEndian.PutUint16(b[2:], dst.Port())
	copy(b[4:20], src.Addr().AsSlice())
	copy(b[20:36], dst.Addr().AsSlice())
	// b[36:40] is the interface: any.
	for i := 40; i < 48; i++ {
		b[i] = 0xff // INET_DIAG_NOCOOKIE
	}
	return b
}

// diagOwner returns the uid and the inode of the socket whose own address is src and whose peer is dst. It
// asks the kernel for exactly that one. Only an established connection counts, because the kernel shows a
// socket that its program closed as root's.
func diagOwner(src, dst netip.AddrPort) (int, uint64, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return -1, 0, fmt.Errorf("open sock_diag: %w", err)
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(time.Second.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return -1, 0, fmt.Errorf("limit sock_diag: %w", err)
	}
	request := make([]byte, unix.NLMSG_HDRLEN+diagReqBytes)
	binary.NativeEndian.PutUint32(request[0:], uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST)
	body := request[unix.NLMSG_HDRLEN:]
	body[0] = unix.AF_INET
	if src.Addr().Is6() {
		body[0] = unix.AF_INET6
	}
	body[1] = unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(body[4:], 1<<tcpEstablished)
	copy(body[8:], sockID(src, dst))
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return -1, 0, fmt.Errorf("ask sock_diag: %w", err)
	}
	reply := make([]byte, 8192)
	for {
		n, from, err := unix.Recvfrom(fd, reply, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return -1, 0, fmt.Errorf("read sock_diag: %w", err)
		}
		if nl, ok := from.(*unix.SockaddrNetlink); !ok || nl.Pid != 0 {
			continue // not from the kernel
		}
		return parseDiag(reply[:n], src, dst)
	}
}

// parseDiag reads the kernel's answer.
func parseDiag(b []byte, src, dst netip.AddrPort) (int, uint64, error) {
	if len(b) < unix.NLMSG_HDRLEN+4 {
		return -1, 0, errors.New("read sock_diag: short answer")
	}
	kind := binary.NativeEndian.Uint16(b[4:])
	body := b[unix.NLMSG_HDRLEN:]
	if kind == unix.NLMSG_ERROR {
		errno := unix.Errno(-int32(binary.NativeEndian.Uint32(body)))
		if errno == unix.ENOENT {
			return -1, 0, errNoOwner
		}
		return -1, 0, fmt.Errorf("ask sock_diag: %w", errno)
	}
	if kind != sockDiagByFamily || len(body) < diagMsgBytes {
		return -1, 0, errors.New("read sock_diag: unexpected answer")
	}
	// The kernel falls back to a listener on the same port: that is not our peer.
	want, got := sockID(src, dst), body[4:4+diagIDBytes]
	if string(got[:36]) != string(want[:36]) {
		return -1, 0, errNoOwner
	}
	tail := body[4+diagIDBytes:]
	uid, inode := binary.NativeEndian.Uint32(tail[12:]), binary.NativeEndian.Uint32(tail[16:])
	if body[1] != tcpEstablished || inode == 0 {
		return -1, 0, errNoOwner
	}
	return int(uid), uint64(inode), nil
}

// procOwner is diagOwner for a kernel without sock_diag, or a sandbox that forbids netlink sockets. It
// reads /proc/net. An IPv6 socket may have IPv4 addresses.
func procOwner(src, dst netip.AddrPort) (int, uint64, error) {
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return -1, 0, fmt.Errorf("read connections: %w", err)
		}
		if uid, inode, err := scanOwner(string(text), src, dst); !errors.Is(err, errNoOwner) {
			return uid, inode, err
		}
	}
	return -1, 0, errNoOwner
}

// scanOwner reads a table in the format of /proc/net/tcp.
func scanOwner(table string, src, dst netip.AddrPort) (int, uint64, error) {
	for line := range strings.Lines(table) {
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
		f := strings.Fields(line)
		if len(f) < 10 || f[3] != "01" || f[9] == "0" || !isProcAddr(f[1], src) || !isProcAddr(f[2], dst) {
			continue
		}
		uid, err := strconv.ParseUint(f[7], 10, 32)
		inode, err2 := strconv.ParseUint(f[9], 10, 64)
		if err := errors.Join(err, err2); err != nil {
			return -1, 0, fmt.Errorf("read owner of a connection: %w", err)
		}
		return int(uid), inode, nil
	}
	return -1, 0, errNoOwner
}

// isProcAddr compares ADDRESS:PORT of /proc/net/tcp, hexadecimal words in host order, with a.
func isProcAddr(text string, a netip.AddrPort) bool {
	long := a.Addr().As16()
	for i := 0; i < len(long); i += 4 {
		binary.NativeEndian.PutUint32(long[i:], binary.BigEndian.Uint32(long[i:]))
	}
	whole := fmt.Sprintf("%X:%04X", long, a.Port())
	return text == whole || a.Addr().Is4() && text == whole[24:]
}
