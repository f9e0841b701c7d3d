// SPDX-License-Identifier: Apache-2.0

package guardian

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/driver"
	"xsched/internal/model"
	"xsched/internal/seqpacket"
	"xsched/internal/wire"
)

const (
	lookPeriod  = 20 * time.Millisecond  // between two looks at heartbeat and leases
	filePeriod  = 50 * time.Millisecond  // between two looks whether a process still has its file
	tryTime     = time.Second            // for one attempt, where a device can be given up on
	retryMax    = 500 * time.Millisecond // between two attempts that fail
	repeatAfter = time.Second            // an operation of a half-stuck daemon may land after ours
	finalTime   = 30 * time.Second       // to restore after the daemon is gone
)

// ward is one attached process. The guardian's one goroutine owns it; an attempt to
// restore, which blocks as long as the device does, has a goroutine of its own.
type ward struct {
	pid      int
	pidfd    int
	page     wire.ClientPage
	restorer driver.Restoration

	attempt chan error // of the restoring under way; nil: none
	epoch   uint64     // that it answers
	retry   time.Time  // not before, after one that failed
	wait    time.Duration

	silent  bool      // restored already in this silence
	freed   uint64    // the epoch that was answered
	again   time.Time // when to repeat it
	leaving bool      // forgotten once it is free
}

type guardian struct {
	sock    int
	drivers []driver.Driver
	place   *driver.Place // nil: not started
	wards   map[uint64]*ward
	leaving map[*ward]struct{} // no session's any more, but not free yet
}

// Main is the guardian's whole life: it obeys the daemon at the other end of
// the socket fd until that ends, restores everybody, and returns. A request to
// supervise hands the process over to a driver instead.
func Main(fd int, drivers []driver.Driver) error {
	// The daemon's terminal and its service manager signal whole groups; this
	// process ends when the daemon does, after its work.
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	unix.CloseOnExec(fd)
	g := &guardian{sock: fd, drivers: drivers, wards: map[uint64]*ward{}, leaving: map[*ward]struct{}{}}
	defer g.end()
	nextFiles := time.Now()
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		// Nobody to guard: only the daemon can change that.
		timeout := -1
		if len(g.wards)+len(g.leaving) > 0 {
			timeout = int(lookPeriod / time.Millisecond)
		}
		n, err := unix.Poll(fds, timeout)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for daemon: %w", err)
		}
		if n > 0 {
			if err := g.obey(); errors.Is(err, seqpacket.ErrClosed) {
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
	for id := range g.wards {
		g.drop(id, false)
	}
	for end := time.Now().Add(finalTime); ; time.Sleep(time.Millisecond) {
		g.look()
		g.checkFiles()
		if len(g.leaving) == 0 || time.Now().After(end) {
			return
		}
	}
}

func (g *guardian) obey() error {
	var m message
	fds, err := seqpacket.Receive(g.sock, &m)
	if err != nil {
		return err
	}
	if m.Op == driver.OpSupervise {
		seqpacket.CloseAll(fds)
		return g.supervise(m)
	}
	r := reply{Seq: m.Seq}
	if err := g.do(m, fds); err != nil {
		r.Error = err.Error()
	}
	return seqpacket.Send(g.sock, r, nil)
}

// supervise gives the rest of this process's life to a driver.
func (g *guardian) supervise(m message) error {
	d, ok := g.driver(m.Driver).(driver.Supervisor)
	if !ok {
		return fmt.Errorf("driver %q supervises nothing", m.Driver)
	}
	return d.Supervise(g.sock, m.First)
}

func (g *guardian) driver(name string) driver.Driver {
	for _, d := range g.drivers {
		if d.Name() == name {
			return d
		}
	}
	return nil
}

func (g *guardian) do(m message, fds []int) error {
	switch m.Op {
	case "start":
		g.place = &m.Place
	case "attach":
		return g.attach(m, fds)
	case "detach":
		g.drop(m.Session, m.Restored)
	default:
		seqpacket.CloseAll(fds)
		return fmt.Errorf("unknown request %q", m.Op)
	}
	return nil
}

func (g *guardian) attach(m message, fds []int) error {
	d, ok := g.driver(m.Driver).(driver.Restorer)
	if g.place == nil || len(fds) < 2 || !ok {
		seqpacket.CloseAll(fds)
		return fmt.Errorf("attach with %d descriptors on driver %q", len(fds), m.Driver)
	}
	page, err := wire.MapPage(fds[0])
	_ = unix.Close(fds[0])
	if err != nil {
		seqpacket.CloseAll(fds[1:])
		return err
	}
	w := &ward{pid: m.PID, pidfd: fds[1], page: wire.ClientPage{Page: page}}
	if w.restorer, err = d.Restoration(*g.place, m.PID, m.State, fds[2:]); err != nil {
		_ = unix.Close(w.pidfd)
		page.Release()
		return err
	}
	// The new one restores what the old one did: that has only to finish what it began.
	g.drop(m.Session, true)
	g.wards[m.Session] = w
	return nil
}

// drop ends the guarding of a session: at once if its process is free, else once it is.
// An attempt that is under way has to come to its end, which may lie behind a stop.
func (g *guardian) drop(id uint64, free bool) {
	w := g.wards[id]
	if w == nil {
		return
	}
	delete(g.wards, id)
	if free && w.attempt == nil {
		w.close()
		return
	}
	w.leaving = true
	g.leaving[w] = struct{}{}
}

// close closes what is held for a process.
func (w *ward) close() {
	w.restorer.Close()
	_ = unix.Close(w.pidfd)
	w.page.Release()
}

// prune closes and forgets the wards of which over says that there is nothing left to do.
func (g *guardian) prune(over func(w *ward) bool) {
	for id, w := range g.wards {
		if over(w) {
			delete(g.wards, id)
			w.close()
		}
	}
	for w := range g.leaving {
		if over(w) {
			delete(g.leaving, w)
			w.close()
		}
	}
}

// look does for each ward what a shim's helper does for its own process.
func (g *guardian) look() {
	now := clock.Now()
	g.prune(func(w *ward) bool {
		if ended(w.pidfd) || w.collect() && w.leaving {
			return true
		}
		if w.due(now) {
			w.restore()
		}
		return false
	})
}

// due says whether a process has to be set free now.
func (w *ward) due(now model.Time) bool {
	epoch, deadline := w.page.Lease()
	late := now.Sub(w.page.LastHeartbeat()) > wire.HeartbeatLimitNS || deadline != 0 && now > deadline
	w.silent = w.silent && late
	switch {
	case w.attempt != nil || time.Now().Before(w.retry):
		return false
	case w.leaving:
		return true
	}
	return late && (!w.silent || epoch > w.freed || time.Now().After(w.again))
}

// restore starts to set a process free. The epoch is read before: a suspension
// that the daemon makes meanwhile is newer than what is said to be undone.
func (w *ward) restore() {
	w.epoch, _ = w.page.Lease()
	done := make(chan error, 1)
	w.attempt = done
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), tryTime)
		defer cancel()
		done <- w.restorer.Restore(ctx)
	}()
}

// collect takes note of an attempt that has ended; true: the process is free.
func (w *ward) collect() bool {
	select {
	case err := <-w.attempt:
		w.attempt = nil
		if err != nil {
			w.wait = min(max(2*w.wait, lookPeriod), retryMax)
			w.retry = time.Now().Add(w.wait)
			return false
		}
		w.page.SetRecovered(w.epoch)
		w.silent, w.freed, w.wait, w.again = true, w.epoch, 0, time.Now().Add(repeatAfter)
		return true
	default:
		return false
	}
}

// checkFiles lets go of processes that no longer have the file: they closed it
// or called exec, and only our duplicate keeps their GPU memory.
func (g *guardian) checkFiles() {
	g.prune(func(w *ward) bool { return w.restorer.Gone() })
}

func ended(pidfd int) bool {
	p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}
