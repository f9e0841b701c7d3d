// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/model"
	"xsched/internal/seqpacket"
	vdevice "xsched/internal/virtual/device"
)

// format of the packets that carry ioctls; shim/virtual/vkfd.h is the other side. Each header
// ends with the calling thread and flags.
var format = vdevice.Format{Magic: 0x4F494B56, Header: 32, MaxArg: 512, MaxParams: 65536} // "VKIO"

const flagFault = 1 // the pointer in the argument is invalid

// sparePs adds processors for open files, each with a goroutine in a system call.
const sparePs = 32

// Options of the device process.
type Options struct {
	Socket string // path of the SOCK_SEQPACKET socket
	Root   string // folder for the driver's files, below sys/
	Config Config
	Logger *slog.Logger
	Ready  func() // called once clients can connect; may be nil
	// Kernel receives the driver's state, for tests; may be nil.
	Kernel func(*Kernel)
}

// server connects the driver's state to clients and the clock.
type server struct {
	log      *slog.Logger
	kernel   *Kernel
	tree     tree
	timer    *alarm
	listener int

	mu       sync.Mutex
	watched  map[int]bool
	conns    map[int]struct{}
	closing  bool
	finished sync.WaitGroup

	showing sync.Mutex
	over    bool // the files are removed: a process that ends now must not write new ones
}

// Serve runs the virtual device until ctx ends.
func Serve(ctx context.Context, o Options) error {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Config == (Config{}) {
		o.Config = DefaultConfig()
	}
	if o.Config.GPUs < 1 || o.Config.GPUs > 7 {
		return fmt.Errorf("create %d GPUs: not between 1 and 7", o.Config.GPUs)
	}
	// A goroutine blocked in a system call keeps its processor for up to 10 ms, until the runtime
	// notices. Other goroutines need a free one meanwhile.
	if n := runtime.NumCPU() + sparePs; runtime.GOMAXPROCS(0) < n {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(n))
	}
	s := &server{log: o.Logger, tree: tree{o.Root}, watched: map[int]bool{}, conns: map[int]struct{}{}}
	if err := s.tree.writeTopology(o.Config); err != nil {
		return err
	}
	defer os.RemoveAll(filepath.Join(o.Root, "sys"))
	var err error
	if s.timer, err = newAlarm(); err != nil {
		return err
	}
	defer s.timer.stop()
	s.kernel = NewKernel(o.Config, s)
	go s.timer.run(s.kernel.Advance)
	if s.listener, err = vdevice.Listen(o.Socket, 0); err != nil {
		return err
	}
	defer os.Remove(o.Socket)
	_ = os.Remove(o.Socket + WatchSuffix) // stale: the driver's socket was free
	watch, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: o.Socket + WatchSuffix, Net: "unixpacket"})
	if err != nil {
		return fmt.Errorf("listen for queries of %s: %w", o.Socket, err)
	}
	defer watch.Close()
	go s.watchers(watch)
	defer context.AfterFunc(ctx, s.shutdown)()
	if o.Kernel != nil {
		o.Kernel(s.kernel)
	}
	s.log.Info("virtual kfd", "socket", o.Socket, "root", o.Root, "gpus", o.Config.GPUs)
	if o.Ready != nil {
		o.Ready()
	}
	s.accept()
	s.shutdown()
	s.finished.Wait()
	s.showing.Lock()
	s.over = true
	s.showing.Unlock()
	return nil
}

func (s *server) shutdown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return
	}
	s.closing = true
	_ = unix.Shutdown(s.listener, unix.SHUT_RDWR)
	for fd := range s.conns {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	}
}

func (s *server) accept() {
	defer unix.Close(s.listener)
	for {
		fd, _, err := unix.Accept4(s.listener, unix.SOCK_CLOEXEC)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED) {
			continue
		}
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.closing {
			_ = unix.Close(fd)
		} else {
			s.conns[fd] = struct{}{}
			s.finished.Go(func() { s.serve(fd) })
		}
		s.mu.Unlock()
	}
}

// serve handles the requests of one open file.
func (s *server) serve(fd int) {
	defer func() {
		s.mu.Lock()
		delete(s.conns, fd)
		s.mu.Unlock()
		_ = unix.Close(fd)
	}()
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return
	}
	p := s.kernel.Open(int(peer.Pid), processName(int(peer.Pid)))
	if !s.watch(p.PID) {
		return
	}
	data, oob := make([]byte, format.MaxRequest()+1), make([]byte, 256)
	for {
		n, oobn, _, _, err := unix.Recvmsg(fd, data, oob, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		sender, fds := vdevice.Sender(oob[:oobn]), seqpacket.Rights(oob[:oobn])
		request, err := format.Decode(data[:n])
		if err != nil || len(fds) < 1 || len(fds) > 2 || sender == 0 {
			seqpacket.CloseAll(fds)
			s.log.Warn("end connection", "pid", p.PID, "err", err)
			return
		}
		reply, other := fds[0], -1
		if len(fds) == 2 {
			other = fds[1]
		}
		tid, fault := int(int32(binary.LittleEndian.Uint32(request.Extra))), binary.LittleEndian.Uint32(request.Extra[4:])&flagFault != 0
		s.kernel.Ioctl(p, sender, tid, request.Request, request.Arg, request.Params, fault, other, func(result int, arg, params []byte) {
			_, _ = unix.SendmsgN(reply, vdevice.EncodeReply(result, arg, params), nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
			_ = unix.Close(reply)
		})
	}
}

// watch removes a process when it exits. It returns false if it already has.
func (s *server) watch(pid int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watched[pid] {
		return true
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		s.kernel.Exit(pid)
		return false
	}
	s.watched[pid] = true
	go func() {
		defer unix.Close(pidfd)
		poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		for {
			n, err := unix.Poll(poll, 500)
			if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
				break
			}
			s.mu.Lock()
			closing := s.closing
			s.mu.Unlock()
			if closing {
				return
			}
		}
		s.mu.Lock()
		delete(s.watched, pid)
		s.mu.Unlock()
		s.kernel.Exit(pid)
	}()
	return true
}

func processName(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(b))
}

// Now implements System.
func (s *server) Now() model.Time { return clock.Now() }

// Timer implements System.
func (s *server) Timer(at model.Time) {
	s.timer.set(at)
}

// Exists implements System.
func (s *server) Exists(pid int) bool { return unix.Kill(pid, 0) == nil || processName(pid) != "" }

// Tracer implements System.
func (s *server) Tracer(pid int) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(b), "TracerPid:")
	line, _, _ := strings.Cut(rest, "\n")
	tid, _ := strconv.Atoi(strings.TrimSpace(line))
	return tid
}

// Write implements System.
func (s *server) Write(pid int, address uint64, data []byte) {
	local := []unix.Iovec{{Base: &data[0]}}
	local[0].SetLen(len(data))
	_, _ = unix.ProcessVMWritev(pid, local, []unix.RemoteIovec{{Base: uintptr(address), Len: len(data)}}, 0)
}

// Notify implements System. A full pipe already contains a notification.
func (s *server) Notify(fd int, b byte) {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	if n, _ := unix.Poll(poll, 0); n == 1 && poll[0].Revents&unix.POLLOUT != 0 {
		_, _ = unix.Write(fd, []byte{b})
	}
}

// CloseFD implements System.
func (s *server) CloseFD(fd int) { _ = unix.Close(fd) }

// Changed implements System: it rewrites the process's files.
func (s *server) Changed(p *Process) {
	s.showing.Lock()
	defer s.showing.Unlock()
	if s.over {
		return
	}
	_, alive := s.kernel.processes[p.PID]
	err := s.tree.writeProcess(p, s.kernel.gpus, !alive)
	if err == nil {
		err = s.tree.writeMQDs(s.kernel.config, s.kernel.processes)
	}
	if err != nil {
		s.log.Warn("show queues", "pid", p.PID, "err", err)
	}
}
