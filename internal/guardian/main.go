// SPDX-License-Identifier: Apache-2.0

package guardian

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/device/nvidia"
	"xsched/internal/model"
	"xsched/internal/wire"
)

const (
	lookPeriod = 20 * time.Millisecond // between two looks at heartbeat and leases
	filePeriod = 50 * time.Millisecond // between two looks whether a process still has its file
	finalTime  = 2 * time.Second       // to restore after the daemon is gone
)

// ward is one attached process.
type ward struct {
	pid      int
	pidfd    int
	page     wire.ClientPage
	files    []*nvidia.File
	restores []nvidia.Restore
	found    []nvidia.Candidate
	silent   bool // restored already in this silence
}

type guardian struct {
	sock   int
	driver *nvidia.Driver
	wards  map[uint64]*ward
}

// Main is the guardian's whole life: it obeys the daemon at the other end of
// the socket fd until that ends, restores everybody, and returns.
func Main(fd int) error {
	// The daemon's terminal and its service manager signal whole groups; this
	// process ends when the daemon does, after its work.
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	unix.CloseOnExec(fd)
	g := &guardian{sock: fd, wards: map[uint64]*ward{}}
	defer g.end()
	nextFiles := time.Now()
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		// Nobody to guard: only the daemon can change that.
		timeout := -1
		if len(g.wards) > 0 {
			timeout = int(lookPeriod / time.Millisecond)
		}
		n, err := unix.Poll(fds, timeout)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for daemon: %w", err)
		}
		if n > 0 {
			if err := g.obey(); errors.Is(err, errEOF) {
				return nil
			} else if err != nil {
				return err
			}
		}
		g.look()
		if now := time.Now(); now.After(nextFiles) {
			nextFiles = now.Add(filePeriod)
			g.checkFiles()
		}
	}
}

// end restores everybody whose process still lives: the daemon is gone.
func (g *guardian) end() {
	ctx, cancel := context.WithTimeout(context.Background(), finalTime)
	defer cancel()
	for id, w := range g.wards {
		g.restore(ctx, w)
		g.drop(id)
	}
}

func (g *guardian) obey() error {
	var m message
	fds, err := receive(g.sock, &m)
	if err != nil {
		return err
	}
	var r reply
	if err := g.do(m, fds); err != nil {
		r.Error = err.Error()
	}
	return send(g.sock, r, nil)
}

func (g *guardian) do(m message, fds []int) error {
	switch {
	case m.Op == "start" && m.Virtual:
		g.driver = nvidia.NewVirtualDriver(m.VGPUSocket)
	case m.Op == "start":
		d, err := nvidia.NewDriver()
		if err != nil {
			return err
		}
		g.driver = d
	case m.Op == "attach":
		return g.attach(m, fds)
	case m.Op == "detach":
		g.drop(m.Session)
	default:
		closeFDs(fds)
		return fmt.Errorf("unknown request %q", m.Op)
	}
	return nil
}

func (g *guardian) attach(m message, fds []int) error {
	if g.driver == nil || len(fds) != 2+len(m.Restores) {
		closeFDs(fds)
		return fmt.Errorf("attach with %d descriptors for %d clients", len(fds), len(m.Restores))
	}
	page, err := wire.MapPage(fds[0])
	_ = unix.Close(fds[0])
	if err != nil {
		closeFDs(fds[1:])
		return err
	}
	w := &ward{pid: m.PID, pidfd: fds[1], page: wire.ClientPage{Page: page}, restores: m.Restores, found: m.Files}
	for _, fd := range fds[2:] {
		w.files = append(w.files, nvidia.NewFile(fd))
	}
	g.drop(m.Session)
	g.wards[m.Session] = w
	return nil
}

// drop closes what is held for a process.
func (g *guardian) drop(id uint64) {
	w := g.wards[id]
	if w == nil {
		return
	}
	delete(g.wards, id)
	for _, f := range w.files {
		_ = f.Close()
	}
	_ = unix.Close(w.pidfd)
	w.page.Release()
}

// look does for each ward what a shim's helper does for its own process.
func (g *guardian) look() {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	now := model.Time(ts.Nano())
	for id, w := range g.wards {
		if ended(w.pidfd) {
			g.drop(id)
			continue
		}
		_, deadline := w.page.Lease()
		late := now.Sub(w.page.LastHeartbeat()) > wire.HeartbeatLimitNS || deadline != 0 && now > deadline
		if late && !w.silent {
			ctx, cancel := context.WithTimeout(context.Background(), finalTime)
			g.restore(ctx, w)
			cancel()
		}
		w.silent = late
	}
}

// restore sets a process free. The epoch is read before: a suspension that the
// daemon makes meanwhile is newer than what is said to be undone.
func (g *guardian) restore(ctx context.Context, w *ward) {
	epoch, _ := w.page.Lease()
	for i, r := range w.restores {
		// What can't be restored is gone with its process.
		_ = g.driver.Restore(ctx, w.files[i], r)
	}
	w.page.SetRecovered(epoch)
}

// checkFiles lets go of processes that no longer have the file: they closed it
// or called exec, and only our duplicate keeps their GPU memory.
func (g *guardian) checkFiles() {
	for id, w := range g.wards {
		if !nvidia.StillHasAny(w.pid, w.found) {
			g.drop(id)
		}
	}
}

func ended(pidfd int) bool {
	p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}
