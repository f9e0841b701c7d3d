// SPDX-License-Identifier: Apache-2.0

package quarantine

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/seqpacket"
)

// ownProcess returns the newest quarantine process of this one.
func ownProcess(t *testing.T) (pid int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range all {
		name, _ := os.ReadFile(dir + "/cmdline")
		stat, _ := os.ReadFile(dir + "/stat")
		fields := strings.Fields(string(stat[strings.LastIndex(string(stat), ")")+1:]))
		if strings.TrimRight(string(name), "\x00") == processName && len(fields) > 1 && fields[1] == strconv.Itoa(os.Getpid()) {
			n, _ := strconv.Atoi(filepath.Base(dir))
			pid = max(pid, n)
		}
	}
	if pid == 0 {
		t.Fatal("no quarantine process")
	}
	return pid
}

// A process that is stopped gives no sign of life, and goes on to give them when it continues.
func TestStoppedProcessLooksDead(t *testing.T) {
	inner, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := Listen(inner)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	var last atomic.Int64
	began := time.Now()
	age := func() time.Duration { return time.Since(began) - time.Duration(last.Load()) }
	go Watch(t.Context(), func() { last.Store(int64(time.Since(began))) })
	await := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: the last beat was %v ago", what, age())
			}
		}
	}
	await("it works", func() bool { return last.Load() > 0 })
	pid := ownProcess(t)
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGCONT) })
	await("it is stopped", func() bool { return age() > 2*pingPeriod+answerTime })
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	await("it works again", func() bool { return age() < pingPeriod/2 })
}

// A daemon that gives its process up keeps its sockets: the process must not end them. Before, a daemon
// that once lacked room for a descriptor could not be reached any more.
func TestGivenUpProcessEndsNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	inner, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := Listen(inner)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	connect := func() (*net.UnixConn, net.Conn) {
		t.Helper()
		client, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Close() })
		return client, server
	}
	client, server := connect()
	first, err := current()
	if err != nil {
		t.Fatal(err)
	}
	pid := ownProcess(t)
	first.end()
	for end := time.Now().Add(10 * time.Second); unix.Kill(pid, 0) == nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the process does not end")
		}
	}
	if _, err := server.Write([]byte("a")); err != nil {
		t.Errorf("a connection has ended: %v", err)
	}
	b := make([]byte, 1)
	if n, err := client.Read(b); n != 1 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	connect()
}

// A reply whose descriptor finds no room fails alone.
func TestNoRoomForADescriptor(t *testing.T) {
	k, err := current()
	if err != nil {
		t.Fatal(err)
	}
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(self) }()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	ask := func() error {
		fds, err := k.ask(request{Op: opCopy, FD: int(null.Fd()), Account: t.Name(), Want: Want{Device: unix.Mkdev(1, 3)}}, []int{self})
		seqpacket.CloseAll(fds)
		return err
	}
	withoutRoom(t, func() { err = ask() })
	if err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("without room: %v", err)
	}
	if err := ask(); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if now, err := current(); err != nil || now != k {
		t.Errorf("the process was replaced (%v)", err)
	}
}

// A connection that can't be taken for lack of descriptors is closed by the process: a descriptor in it
// may take for ever to close, and that must not be the thread that accepts.
func TestConnectionWithoutRoom(t *testing.T) {
	if _, err := current(); err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(pair[1]) }()
	lingering := lingeringSocket(t)
	if err := unix.Sendmsg(pair[1], []byte("x"), unix.UnixRights(lingering), nil, 0); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(lingering) // returns at once: the packet has it
	withoutRoom(t, func() {
		began := time.Now()
		if c, err := connOf(pair[0]); err == nil {
			_ = c.Close()
			t.Error("there was room")
		}
		if took := time.Since(began); took > lingerSeconds*time.Second/2 {
			t.Errorf("the accepting thread was blocked for %v", took)
		}
	})
	if _, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_TYPE); err == nil {
		t.Error("the daemon keeps the descriptor")
	}
}

const lingerSeconds = 4

// lingeringSocket returns a socket whose last close waits for lingerSeconds.
func lingeringSocket(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	for err = nil; err == nil; { // until nobody takes more
		_, err = c.Write(make([]byte, 1<<16))
	}
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: lingerSeconds}); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	return fd
}

// withoutRoom runs f while this process can open no file.
func withoutRoom(t *testing.T, f func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: was.Max}, nil); err != nil {
		t.Fatal(err)
	}
	f()
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &was, nil); err != nil {
		t.Fatal(err)
	}
}
