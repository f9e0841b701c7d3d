// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/seqpacket"
	vdevice "xsched/internal/virtual/device"
	gpumodel "xsched/internal/virtual/model"
)

const (
	maxConns    = 8192
	maxReplies  = 256 // concurrent requests per file
	maxAccounts = 4096
)

// conn is a connection: an open file of the driver, once it has made a request.
type conn struct {
	fd      int
	pid     int
	uid     uint32
	file    *rmFile
	replies map[int]bool // descriptors that await a reply
	closed  bool
}

// listen opens the socket and the loop's descriptors.
func (s *server) listen(path string) error {
	var err error
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("create epoll: %w", err)
	}
	if s.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return fmt.Errorf("create timer: %w", err)
	}
	if s.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("create eventfd: %w", err)
	}
	if s.listener, err = vdevice.Listen(path, unix.SOCK_NONBLOCK); err != nil {
		return err
	}
	for _, fd := range []int{s.timer, s.wake, s.listener} {
		if err := s.watch(fd); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) accept() {
	for {
		fd, _, err := unix.Accept4(s.listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err != nil {
			return
		}
		peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil || len(s.conns) >= maxConns || s.watch(fd) != nil {
			_ = unix.Close(fd)
			continue
		}
		s.conns[fd] = &conn{fd: fd, pid: int(peer.Pid), uid: peer.Uid, replies: map[int]bool{}}
	}
}

// receive handles a bounded number of packets from one connection.
func (s *server) receive(c *conn) {
	data := make([]byte, format.MaxRequest()+1)
	var oob [128]byte
	for range 64 {
		if c.closed {
			return
		}
		n, oobn, _, _, err := unix.Recvmsg(c.fd, data, oob[:], unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			return
		}
		fds := seqpacket.Rights(oob[:max(oobn, 0)])
		if err != nil || n == 0 {
			seqpacket.CloseAll(fds)
			s.hangUp(c)
			return
		}
		if c.file == nil && n >= 4 && binary.LittleEndian.Uint32(data) == vdevice.TruthMagic {
			seqpacket.CloseAll(fds)
			first := append([]byte(nil), data[:n]...)
			s.detach(c, first)
			return
		}
		packet, err := format.Decode(data[:n])
		if err != nil || len(fds) != 1 || len(c.replies) >= maxReplies {
			seqpacket.CloseAll(fds)
			s.log.Warn("end connection", "pid", c.pid, "err", cmp.Or(err, errors.New("wrong descriptors or too many requests")))
			s.hangUp(c)
			return
		}
		s.perform(c, packet, fds[0])
	}
}

// perform executes a request and sends the result to reply.
func (s *server) perform(c *conn, p vdevice.Packet, reply int) {
	if c.file == nil {
		account := s.accounts.open(c.pid)
		c.file = s.rm.open(account, c.uid)
	}
	p.Arg, p.Params = append([]byte(nil), p.Arg...), append([]byte(nil), p.Params...)
	c.replies[reply] = true
	answer := func(errno int, fds ...int) {
		if !c.replies[reply] {
			return // the connection has closed
		}
		var oob []byte
		if len(fds) > 0 {
			oob = unix.UnixRights(fds...)
		}
		_ = unix.Sendmsg(reply, vdevice.EncodeReply(errno, p.Arg, p.Params), oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		delete(c.replies, reply)
		_ = unix.Close(reply)
	}
	if s.refused(p, reply) {
		a, _ := abi.Decode[abi.NVOS54](p.Arg)
		a.Status = abi.NV_ERR_INSUFFICIENT_RESOURCES
		copy(p.Arg, abi.Bytes(&a))
		answer(0)
		return
	}
	c.file.ioctl(p, answer)
}

// hangUp closes a connection and frees the objects of its file.
func (s *server) hangUp(c *conn) {
	if c.closed {
		return
	}
	c.closed = true
	delete(s.conns, c.fd)
	_ = unix.Close(c.fd)
	for reply := range c.replies {
		_ = unix.Close(reply)
	}
	clear(c.replies)
	if c.file != nil {
		c.file.close()
		s.accounts.close(c.file.account)
	}
}

// accounts holds all live processes and the newest ended ones, maxAccounts in total.
type accounts struct {
	byKey map[accountKey]*gpumodel.Account
	order []accountKey
	files map[*gpumodel.Account]int // open ones
}

// accountKey distinguishes processes that reused a pid.
type accountKey struct {
	pid     int
	started string
}

func newAccounts() accounts {
	return accounts{byKey: map[accountKey]*gpumodel.Account{}, files: map[*gpumodel.Account]int{}}
}

func (l *accounts) open(pid int) *gpumodel.Account {
	name, started := process(pid)
	key := accountKey{pid, started}
	a := l.byKey[key]
	if a == nil {
		a = &gpumodel.Account{PID: pid, Name: name}
		l.byKey[key] = a
		l.order = append(l.order, key)
		l.trim()
	}
	l.files[a]++
	a.Alive = true
	return a
}

func (l *accounts) close(a *gpumodel.Account) {
	if l.files[a]--; l.files[a] <= 0 {
		delete(l.files, a)
	}
	a.Alive = l.files[a] > 0
}

func (l *accounts) trim() {
	for i := 0; len(l.order) > maxAccounts && i < len(l.order); {
		if l.byKey[l.order[i]].Alive {
			i++
			continue
		}
		delete(l.byKey, l.order[i])
		l.order = append(l.order[:i], l.order[i+1:]...)
	}
}

// process returns a process's name and start time.
func process(pid int) (name, started string) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", ""
	}
	stat := string(b)
	open, end := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return "", ""
	}
	fields := strings.Fields(stat[end+1:])
	if len(fields) > 19 {
		started = fields[19]
	}
	return stat[open+1 : end], started
}
