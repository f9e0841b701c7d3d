// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// This file finds the user who owns the other end of a TCP connection within
// this machine. Only a connection that is established and still has its socket
// counts: the kernel shows one that a program has closed already as root's.

// errNoOwner says that the other end is not, or no longer, a socket of this
// machine that we can see.
var errNoOwner = errors.New("the other end of the connection is not found")

// socketOwner returns the uid that owns the socket whose own address is remote
// and whose peer is local: the other end of our connection.
func socketOwner(local, remote netip.AddrPort) (int, error) {
	local = netip.AddrPortFrom(local.Addr().Unmap(), local.Port())
	remote = netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
	uid, err := diagOwner(remote, local)
	if err == nil || errors.Is(err, errNoOwner) {
		return uid, err
	}
	// The kernel has no sock_diag, or we may not ask it.
	uid, procErr := procOwner(remote, local)
	if procErr != nil && !errors.Is(procErr, errNoOwner) {
		return -1, fmt.Errorf("ask who owns a connection: %w", errors.Join(err, procErr))
	}
	return uid, procErr
}

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

// diagOwner asks the kernel for exactly one socket.
func diagOwner(src, dst netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return -1, fmt.Errorf("open sock_diag: %w", err)
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(time.Second.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return -1, fmt.Errorf("limit sock_diag: %w", err)
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
		return -1, fmt.Errorf("ask sock_diag: %w", err)
	}
	reply := make([]byte, 8192)
	for {
		n, from, err := unix.Recvfrom(fd, reply, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return -1, fmt.Errorf("read sock_diag: %w", err)
		}
		if nl, ok := from.(*unix.SockaddrNetlink); !ok || nl.Pid != 0 {
			continue // not from the kernel
		}
		return parseDiag(reply[:n], src, dst)
	}
}

// parseDiag reads the kernel's answer.
func parseDiag(b []byte, src, dst netip.AddrPort) (int, error) {
	if len(b) < unix.NLMSG_HDRLEN+4 {
		return -1, errors.New("read sock_diag: short answer")
	}
	kind := binary.NativeEndian.Uint16(b[4:])
	body := b[unix.NLMSG_HDRLEN:]
	if kind == unix.NLMSG_ERROR {
		errno := unix.Errno(-int32(binary.NativeEndian.Uint32(body)))
		if errno == unix.ENOENT {
			return -1, errNoOwner
		}
		return -1, fmt.Errorf("ask sock_diag: %w", errno)
	}
	if kind != sockDiagByFamily || len(body) < diagMsgBytes {
		return -1, errors.New("read sock_diag: unexpected answer")
	}
	// The kernel falls back to a listener on the same port: that is not our peer.
	want, got := sockID(src, dst), body[4:4+diagIDBytes]
	if string(got[:36]) != string(want[:36]) {
		return -1, errNoOwner
	}
	tail := body[4+diagIDBytes:]
	uid, inode := binary.NativeEndian.Uint32(tail[12:]), binary.NativeEndian.Uint32(tail[16:])
	if body[1] != tcpEstablished || inode == 0 {
		return -1, errNoOwner
	}
	return int(uid), nil
}

// procOwner looks the socket up in /proc/net.
func procOwner(src, dst netip.AddrPort) (int, error) {
	tables := []string{"/proc/net/tcp", "/proc/net/tcp6"}
	if src.Addr().Is6() {
		tables = tables[1:]
	}
	var failed error
	for _, path := range tables {
		f, err := os.Open(path)
		if err != nil {
			failed = err
			continue
		}
		uid, err := scanOwner(f, src, dst)
		_ = f.Close()
		if err == nil || !errors.Is(err, errNoOwner) {
			return uid, err
		}
	}
	if failed != nil && !errors.Is(failed, os.ErrNotExist) {
		return -1, failed
	}
	return -1, errNoOwner
}

// scanOwner reads a table in the format of /proc/net/tcp.
func scanOwner(r io.Reader, src, dst netip.AddrPort) (int, error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
		f := strings.Fields(lines.Text())
		if len(f) < 10 || f[3] != "01" || f[9] == "0" {
			continue
		}
		if l, ok := procAddr(f[1]); !ok || l != src {
			continue
		}
		if d, ok := procAddr(f[2]); !ok || d != dst {
			continue
		}
		uid, err := strconv.ParseUint(f[7], 10, 32)
		if err != nil {
			return -1, fmt.Errorf("read owner of a connection: %w", err)
		}
		return int(uid), nil
	}
	if err := lines.Err(); err != nil {
		return -1, fmt.Errorf("read connections: %w", err)
	}
	return -1, errNoOwner
}

// procAddr reads ADDRESS:PORT in hexadecimal, the address as words in host order.
func procAddr(text string) (netip.AddrPort, bool) {
	address, port, ok := strings.Cut(text, ":")
	raw, err := hex.DecodeString(address)
	n, portErr := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || portErr != nil || len(raw) != 4 && len(raw) != 16 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	a, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), true
}
