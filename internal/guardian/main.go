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
	"xsched/internal/health"
	"xsched/internal/identity"
	"xsched/internal/model"
	"xsched/internal/seqpacket"
	"xsched/internal/wire"
)

const (
	lookPeriod  = 20 * time.Millisecond  // interval of heartbeat and lease checks
	filePeriod  = 50 * time.Millisecond  // interval of checks for closed files
	tryTime     = time.Second            // per attempt; bounds a failing device
	retryMax    = 500 * time.Millisecond // longest back-off
	repeatAfter = time.Second            // a delayed operation of a stalled daemon may take effect after ours
	finalTime   = 30 * time.Second       // to restore before the guardian ends
)

// ward is one attached process, owned by the guardian's goroutine. An attempt to restore blocks as
// long as the device does, so it has its own goroutine.
type ward struct {
	pid      int
	pidfd    int
	page     wire.ClientPage
	restorer driver.Restoration
	record   string // name in the journal

	attempt chan error // the restore in progress; nil: none
	epoch   uint64     // that the attempt covers
	retry   time.Time  // earliest next attempt after a failure
	wait    time.Duration

	silent  bool      // already restored since the heartbeat stopped
	freed   uint64    // last epoch restored
	again   time.Time // when to repeat the restore
	leaving bool      // drop once restored
	covered bool      // leaving: the end of the attempt in progress, if it succeeds, is enough
}

type guardian struct {
	sock    int
	drivers []driver.Driver
	version string
	// mismatch: a daemon of another release asked.
	mismatch bool
	handed   func(record string) // the daemon took care of a recorded process; may be nil
	place    *driver.Place       // nil: not started
	wards    map[uint64]*ward
	leaving  map[*ward]struct{} // detached but not restored yet
	unsaid   map[uint64]int     // replies that wait until no ward of a PID is leaving, by Seq
	final    time.Duration      // to restore after the daemon ended; 0: until it succeeds
	monitor  *health.Monitor
	parts    parts
}

// Main serves the daemon on socket fd until the daemon ends, restores every process, and returns. A
// supervise request hands the process over to a driver instead.
func Main(fd int, drivers []driver.Driver, version string) error {
	// Terminals and service managers signal whole groups. The guardian must outlive the daemon
	// until every process is restored.
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	unix.CloseOnExec(fd)
	g := newGuardian(fd, drivers, version)
	g.monitor = &health.Monitor{}
	g.parts = newParts(g.monitor, stuckLimit)
	return g.serve()
}

func newGuardian(sock int, drivers []driver.Driver, version string) *guardian {
	return &guardian{sock: sock, drivers: drivers, version: version, wards: map[uint64]*ward{}, leaving: map[*ward]struct{}{}, unsaid: map[uint64]int{}, final: finalTime}
}

// serve serves one daemon.
func (g *guardian) serve() error {
	defer g.end()
	fd := g.sock
	nextFiles := time.Now()
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		// Without wards only the daemon can wake the guardian.
		timeout := -1
		if len(g.wards)+len(g.leaving) > 0 {
			timeout = int(lookPeriod / time.Millisecond)
		}
		n, err := unix.Poll(fds, timeout)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for daemon: %w", err)
		}
		if err := g.step(n > 0, &nextFiles); errors.Is(err, seqpacket.ErrClosed) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// step handles a message, if one is there, and does what is due.
func (g *guardian) step(message bool, nextFiles *time.Time) error {
	defer g.parts.requests.Begin()()
	if message {
		if err := g.obey(); err != nil {
			return err
		}
	}
	g.look()
	if now := time.Now(); now.After(*nextFiles) {
		*nextFiles = now.Add(filePeriod)
		g.checkFiles()
	}
	return g.answer()
}

// end restores every living process after the daemon ended. A service that gave up would keep the
// files, and with them the GPU memory of a process that ends later.
func (g *guardian) end() {
	for id := range g.wards {
		g.drop(id, false)
	}
	pause := time.Millisecond
	for began := time.Now(); ; time.Sleep(pause) {
		g.look()
		g.checkFiles()
		took := time.Since(began)
		if len(g.leaving) == 0 || g.final > 0 && took > g.final {
			return
		}
		if took > tryTime {
			pause = lookPeriod
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
	if m.Op == opHealth {
		seqpacket.CloseAll(fds)
		r.Late = lateParts(g.monitor)
		return seqpacket.Send(g.sock, r, nil)
	}
	ward := g.wards[m.Session]
	if err := g.do(m, fds); err != nil {
		r.Error = err.Error()
	}
	if m.Op == "detach" && m.Restored && ward != nil && g.isLeaving(ward.pid) {
		g.unsaid[m.Seq] = ward.pid
		return nil
	}
	return seqpacket.Send(g.sock, r, nil)
}

// answer sends the replies that have waited for attempts to finish. Such an attempt stops a process for
// a moment, which the daemon must not report as free before.
func (g *guardian) answer() error {
	for seq, pid := range g.unsaid {
		if g.isLeaving(pid) {
			continue
		}
		delete(g.unsaid, seq)
		if err := seqpacket.Send(g.sock, reply{Seq: seq}, nil); err != nil {
			return err
		}
	}
	return nil
}

func (g *guardian) isLeaving(pid int) bool {
	for w := range g.leaving {
		if w.pid == pid {
			return true
		}
	}
	return false
}

// supervise hands this process over to a driver.
func (g *guardian) supervise(m message) error {
	d, ok := driverOf(g.drivers, m.Driver).(driver.Supervisor)
	if !ok {
		return fmt.Errorf("driver %q has no supervisor", m.Driver)
	}
	return d.Supervise(g.sock, m.First)
}

func driverOf(drivers []driver.Driver, name string) driver.Driver {
	for _, d := range drivers {
		if d.Name() == name {
			return d
		}
	}
	return nil
}

func (g *guardian) do(m message, fds []int) error {
	switch m.Op {
	case "start":
		if m.Version != g.version {
			g.mismatch = true
			return fmt.Errorf("this guardian is of release %q, the daemon of %q: restart the guardian", g.version, m.Version)
		}
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
	d, ok := driverOf(g.drivers, m.Driver).(driver.Restorer)
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
	w := &ward{pid: m.PID, pidfd: fds[1], page: wire.ClientPage{Page: page}, record: m.Record}
	if w.restorer, err = d.Restoration(*g.place, m.PID, m.State, fds[2:]); err != nil {
		_ = unix.Close(w.pidfd)
		page.Release()
		return err
	}
	// The new ward restores what the old one did; the old one only finishes its attempt.
	if old := g.wards[m.Session]; old != nil {
		old.record = ""
	}
	g.drop(m.Session, true)
	g.wards[m.Session] = w
	if g.handed != nil {
		g.handed(m.Record)
	}
	return nil
}

// drop ends the guarding of a session: at once if its process is restored, else after the restore.
// A running attempt must finish, because it may be between a stop and an enable. It does not cover
// what the daemon has done since it began.
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
	w.leaving, w.covered = true, free
	g.leaving[w] = struct{}{}
}

// close releases a ward's resources.
func (w *ward) close() {
	w.restorer.Close()
	_ = unix.Close(w.pidfd)
	w.page.Release()
}

// prune closes and removes the wards that over selects.
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
			if g.place != nil {
				journalOf(g.place.Dir).remove(w.record)
			}
			w.close()
		}
	}
}

// look does for each ward what the shim's helper thread does for its process.
func (g *guardian) look() {
	now := clock.Now()
	g.prune(func(w *ward) bool {
		if identity.Ended(w.pidfd) || w.collect() && w.leaving && w.covered {
			return true
		}
		if w.due(now) {
			w.restore(g.parts.restores)
		}
		return false
	})
}

// due reports whether a process must be restored now. It reads the epoch that the attempt answers
// before the deadline and the heartbeat, so that a suspension that begins meanwhile is newer.
func (w *ward) due(now model.Time) bool {
	epoch, deadline := w.page.Lease()
	late := now.Sub(w.page.LastHeartbeat()) > wire.HeartbeatLimitNS || deadline != 0 && now > deadline
	w.silent = w.silent && late
	switch {
	case w.attempt != nil || time.Now().Before(w.retry):
		return false
	case w.leaving, late && (!w.silent || epoch > w.freed || time.Now().After(w.again)):
		w.epoch = epoch
		return true
	}
	return false
}

// restore starts an attempt.
func (w *ward) restore(part *health.Calls) {
	w.covered = w.covered || w.leaving
	done := make(chan error, 1)
	w.attempt = done
	go func() {
		defer part.Begin()()
		ctx, cancel := context.WithTimeout(context.Background(), tryTime)
		defer cancel()
		done <- w.restorer.Restore(ctx)
	}()
}

// collect handles a finished attempt; true: the process is restored.
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

// checkFiles drops processes that closed their file or called exec, because only our duplicate
// keeps their GPU memory then.
func (g *guardian) checkFiles() {
	g.prune(func(w *ward) bool { return w.restorer.Gone() })
}
