// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// ErrUnseen reports a process in a PID namespace that the daemon can't see.
var ErrUnseen = errors.New("the client is in a PID namespace that the daemon can't see")

// OfConn identifies the process that connected a unix socket. The receiver owns Peer.PIDFD, which is
// -1 with an error.
//
// Since Linux 6.5 the socket provides the pidfd. Before, the PID may have been reused since the peer
// connected; only its uid is compared.
func OfConn(c *net.UnixConn) (Peer, error) {
	none := Peer{PIDFD: -1, User: Nobody}
	raw, err := c.SyscallConn()
	if err != nil {
		return none, fmt.Errorf("read peer credentials: %w", err)
	}
	var cred *unix.Ucred
	pidfd, reused := -1, false
	var inner error
	err = raw.Control(func(fd uintptr) {
		if cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); inner != nil {
			return
		}
		if cred.Pid == 0 {
			inner = ErrUnseen
			return
		}
		pidfd, inner = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if errors.Is(inner, unix.ENOPROTOOPT) {
			pidfd, inner = unix.PidfdOpen(int(cred.Pid), 0)
			reused = true
		}
		if inner != nil { // the kernel has no pidfd for a process that was reaped
			inner = fmt.Errorf("%w: pidfd: %w", ErrEnded, inner)
		}
	})
	if err == nil {
		err = inner
	}
	if err != nil {
		return none, fmt.Errorf("read peer credentials: %w", err)
	}
	p, err := own().ofProcess(int(cred.Pid), pidfd, int(cred.Uid))
	if err == nil && reused && own().status(p.PID).effective != int(cred.Uid) {
		err = ErrEnded
	}
	if err != nil {
		_ = unix.Close(pidfd)
		return none, err
	}
	return p, nil
}
