// SPDX-License-Identifier: Apache-2.0

package quarantine

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/seqpacket"
)

// processName is the first argument of the process. Each program that links this package can be it.
const processName = "xsched-quarantine"

// The process starts before main and before any test.
func init() {
	if os.Args[0] == processName {
		serve(3, 4)
		os.Exit(0) //nolint:forbidigo // this is the process's main function
	}
}

// process receives and closes descriptors.
type process struct {
	sock int

	mu        sync.Mutex
	conns     map[uint64]int
	listeners map[uint64]int
	lanes     map[string][]func() // by account: one goroutine runs the functions in turn
}

// serve obeys the daemon, of which it has a pidfd, until the daemon ends or gives this process up. The
// caller then exits, which may block.
func serve(sock, daemon int) {
	p := &process{sock: sock, conns: map[uint64]int{}, listeners: map[uint64]int{}, lanes: map[string][]func(){}}
	for in := seqpacket.NewInbox(sock); ; {
		var r request
		fds, err := in.Receive(&r)
		if err != nil && !errors.Is(err, seqpacket.ErrNoRoom) {
			break
		}
		p.do(r, fds)
	}
	if lives(daemon) {
		return // it goes on with its own files, and another process keeps duplicates
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// The exit may block. Programs must see the end now, and the next daemon must find nobody here.
	for _, fd := range p.listeners {
		refuse(fd)
	}
	for _, fd := range p.conns {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	}
}

// dyingTime is how long after the close of its files the daemon may take to end.
const dyingTime = time.Second

// lives reports whether the daemon goes on without this process.
func lives(daemon int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(daemon), Events: unix.POLLIN}}, int(dyingTime.Milliseconds()))
	return n == 0 && err == nil
}

// do starts one request. Whatever may block runs in the account's lane.
func (p *process) do(r request, fds []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	conn, known := p.conns[r.ID]
	switch {
	case r.Op == opKeep && len(fds) == 1:
		p.conns[r.ID] = fds[0]
	case r.Op == opListen && len(fds) == 1:
		p.listeners[r.ID] = fds[0]
	case r.Op == opTake && known:
		p.queue(r.Account, func() { p.take(r, conn) })
	case r.Op == opCopy && len(fds) == 1:
		p.queue(r.Account, func() { p.copy(r, fds[0]) })
	case r.Op == opClose && known:
		delete(p.conns, r.ID)
		_ = unix.Shutdown(conn, unix.SHUT_RDWR) // the peer sees the end at once
		p.queue(r.Account, func() {
			empty(conn)
			_ = unix.Close(conn)
			p.send(reply{Closed: r.ID}, nil)
		})
	case r.Op == opClose:
		if l, ok := p.listeners[r.ID]; ok {
			waiting := refuse(l)
			p.queue(r.Account, func() {
				for _, conn := range waiting {
					empty(conn)
					_ = unix.Close(conn)
				}
				_ = unix.Close(l)
			})
		}
		delete(p.listeners, r.ID)
		p.send(reply{Closed: r.ID}, nil)
	case r.Op == opPing:
		p.send(reply{Seq: r.Seq}, nil)
	default:
		p.send(reply{Seq: r.Seq, Error: "unknown request"}, nil)
	}
}

// refuse ends a listener and the connections that nobody has accepted, and returns them.
func refuse(listener int) (waiting []int) {
	_ = unix.Shutdown(listener, unix.SHUT_RDWR)
	_ = unix.SetNonblock(listener, true)
	for {
		conn, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return waiting
		}
		_ = unix.Shutdown(conn, unix.SHUT_RDWR)
		waiting = append(waiting, conn)
	}
}

// queue appends to the lane of an account. Preconditions: p.mu is held.
func (p *process) queue(account string, f func()) {
	_, runs := p.lanes[account]
	p.lanes[account] = append(p.lanes[account], f)
	if !runs {
		go p.run(account)
	}
}

func (p *process) run(account string) {
	for {
		p.mu.Lock()
		todo := p.lanes[account]
		if len(todo) == 0 {
			delete(p.lanes, account)
			p.mu.Unlock()
			return
		}
		p.lanes[account] = todo[1:]
		p.mu.Unlock()
		todo[0]()
	}
}

func (p *process) send(r reply, fds []int) { _ = seqpacket.Send(p.sock, r, fds) }

// take receives the next packet and passes its descriptors on, unless one is not as wanted.
func (p *process) take(r request, conn int) {
	_, fds, err := receive(conn)
	if err == nil && len(fds) > r.Most {
		err = unix.EPROTO
	}
	p.answer(r, fds, err)
}

// copy duplicates a descriptor of another process.
func (p *process) copy(r request, pidfd int) {
	fd, err := unix.PidfdGetfd(pidfd, r.FD, 0)
	_ = unix.Close(pidfd)
	if err != nil {
		p.answer(r, nil, err)
		return
	}
	p.answer(r, []int{fd}, nil)
}

func (p *process) answer(r request, fds []int, err error) {
	for _, fd := range fds {
		if err == nil {
			err = r.Want.Check(fd)
		}
	}
	out := reply{Seq: r.Seq}
	if err == nil {
		p.send(out, fds)
	} else {
		out.Error = err.Error()
		errors.As(err, &out.Errno)
		p.send(out, nil)
	}
	seqpacket.CloseAll(fds) // last: it may block
}

// empty closes what is queued in a connection that was shut down. Nothing can arrive any more, so the
// last close of the socket does not block, whoever makes it.
func empty(conn int) {
	// Each packet then has a control message, and the end has none. A stream has no empty packets.
	if typ, err := unix.GetsockoptInt(conn, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || typ != unix.SOCK_STREAM {
		_ = unix.SetsockoptInt(conn, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	}
	_, _, _, _, _ = unix.Recvmsg(conn, make([]byte, 1), nil, unix.MSG_OOB|unix.MSG_DONTWAIT)
	for more := true; more; {
		var fds []int
		var err error
		more, fds, err = receive(conn)
		seqpacket.CloseAll(fds)
		more = more && err == nil
	}
}

// maxRights is the most descriptors of one packet: SCM_MAX_FD of linux/net/scm.h.
const maxRights = 253

// receive receives one packet. more is false at the end of a connection with SO_PASSCRED.
func receive(conn int) (more bool, fds []int, err error) {
	buf := make([]byte, 4096)
	oob := make([]byte, unix.CmsgSpace(4*maxRights)+unix.CmsgSpace(unix.SizeofUcred)+256)
	for {
		n, oobn, _, _, err := unix.Recvmsg(conn, buf, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return false, nil, err
		}
		return n > 0 || oobn > 0, seqpacket.Rights(oob[:oobn]), nil
	}
}
