// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/amd"
	"xsched/internal/driver/nvidia"
	"xsched/internal/wire"
)

// hand sends one packet with descriptors on a new connection that is never read, and more behind it.
func (a *attacker) hand(packets [][]byte, fds ...int) (*net.UnixConn, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: a.socket(), Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	for _, packet := range packets {
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		if _, _, err := c.WriteMsgUnix(packet, unix.UnixRights(fds...), nil); err != nil {
			break // the daemon has refused the first one
		}
	}
	return c, nil
}

// bad packets are refused at once; the daemon reads those behind the first one before it closes.
func badPackets() [][]byte {
	return [][]byte{[]byte("this is no HELLO"), []byte("neither"), []byte("nor this")}
}

// driverFrame is the frame with which a program hands over a descriptor of its driver.
func (a *attacker) driverFrame() ([]byte, error) {
	if a.platform.Name == "amd" {
		return amd.EncodeKFD([]amd.KFDEvent{{Kind: amd.KFDQueue, ID: 1, GPUID: 1}})
	}
	return nvidia.EncodeRM([]nvidia.RMEvent{{Kind: nvidia.RMClient, Client: 0xc1d00001, Object: 0xc1d00001}})
}

// fuse hands over files whose closing never ends: hello or frame.
func (a *attacker) fuse() error {
	files, err := a.stuckFiles(8)
	if err != nil {
		fmt.Println("SKIP no FUSE file system for an unprivileged user:", err)
		return nil
	}
	for _, fd := range files {
		if a.args[0] == "hello" {
			c, err := a.hand(badPackets(), fd)
			if err != nil {
				return err
			}
			a.sockets = append(a.sockets, c)
		} else if err := a.handFrame(fd); err != nil {
			return err
		}
		a.count.Add(1)
	}
	a.ready("files")
	select {}
}

// handFrame hands a descriptor over in a valid session.
func (a *attacker) handFrame(fd int) error {
	packet, err := a.driverFrame()
	if err != nil {
		return err
	}
	c, err := a.dial(wire.Hello{})
	if err != nil {
		return err
	}
	a.sessions = append(a.sessions, c)
	return c.Send(packet, fd)
}

// lingerSockets hands over sockets whose closing waits until their data are sent, which never happens.
func (a *attacker) lingerSockets() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	for range 300 {
		fd, peer, err := lingering(l)
		if err != nil {
			return err
		}
		a.sockets = append(a.sockets, peer)
		c, err := a.hand(badPackets()[:1], fd)
		// The daemon has the last descriptor from now on, in its socket or in its table.
		go func() { _ = unix.Close(fd) }()
		if err != nil {
			continue
		}
		a.sockets = append(a.sockets, c)
		a.count.Add(1)
	}
	a.ready("sockets")
	select {}
}

// lingering returns a socket with unsent data, and its peer, which does not read.
func lingering(l net.Listener) (fd int, peer net.Conn, err error) {
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, nil, err
	}
	address, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return -1, nil, errors.New("not a TCP listener")
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 8192),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 50}),
		unix.Connect(fd, &unix.SockaddrInet4{Port: address.Port, Addr: [4]byte{127, 0, 0, 1}}))
	if err != nil {
		return fd, nil, err
	}
	if peer, err = l.Accept(); err != nil {
		return fd, nil, err
	}
	data := make([]byte, 1<<16)
	for {
		if _, err := unix.SendmsgN(fd, data, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != nil {
			return fd, peer, nil // full
		}
	}
}

// oddFiles hands over everything that a process can have, with every kind of packet.
func (a *attacker) oddFiles() error {
	frame, err := a.driverFrame()
	if err != nil {
		return err
	}
	files, err := oddDescriptors()
	if err != nil {
		return err
	}
	hello := wire.EncodeHello(wire.Hello{PID: uint32(os.Getpid())})
	return a.forever(8, "packets with descriptors", func(i int) error {
		n := int(a.count.Load()) + i
		one, two := files[n%len(files)], files[(n/2+i)%len(files)]
		switch n % 3 {
		case 0:
			c, err := a.hand(badPackets(), one, two)
			if err == nil {
				_ = c.Close()
			}
			return err
		case 1:
			c, err := a.hand([][]byte{hello, frame, frame}, one)
			if err == nil {
				_ = c.Close()
			}
			return err
		}
		c, err := a.dial(wire.Hello{})
		if err != nil {
			return err
		}
		defer c.Close()
		return c.Send(frame, one)
	})
}

// oddDescriptors are descriptors of many kinds.
func oddDescriptors() (all []int, err error) {
	add := func(fd int, e error) {
		all, err = append(all, fd), errors.Join(err, e)
	}
	var pipe, pair [2]int
	err = errors.Join(unix.Pipe2(pipe[:], unix.O_CLOEXEC), socketPair(&pair))
	all = append(all, pipe[0], pipe[1], pair[0])
	// A socket in whose queue descriptors wait, its own among them.
	err = errors.Join(err, unix.Sendmsg(pair[1], []byte("x"), unix.UnixRights(pair[0], pipe[0]), nil, 0))
	add(unix.Eventfd(1<<20, unix.EFD_CLOEXEC))
	add(unix.EpollCreate1(unix.EPOLL_CLOEXEC))
	add(unix.MemfdCreate("x", unix.MFD_CLOEXEC))
	add(unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC))
	add(unix.InotifyInit1(unix.IN_CLOEXEC))
	add(unix.PidfdOpen(os.Getpid(), 0))
	add(unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0))
	add(unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0))
	add(unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0))
	return all, err
}

func socketPair(pair *[2]int) (err error) {
	*pair, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	return err
}
