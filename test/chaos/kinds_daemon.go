// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
)

func daemonKill(w *world, f Fault) error { return w.daemon.signal(syscall.SIGKILL, f.duration()) }

func daemonTerm(w *world, f Fault) error { return w.daemon.signal(syscall.SIGTERM, f.duration()) }

func daemonHup(w *world, f Fault) error { return w.daemon.hangup(f.duration()) }

func daemonStop(w *world, f Fault) error {
	end, err := w.daemon.stop()
	if err != nil {
		return err
	}
	time.Sleep(f.duration())
	end()
	return nil
}

func daemonWedge(w *world, f Fault) error {
	_, err := call(time.Second, func(ctx context.Context) (control.WedgeReply, error) {
		return w.daemon.client.Wedge(ctx, f.duration())
	})
	if err != nil {
		return err
	}
	w.daemon.wedge(f.duration())
	time.Sleep(f.duration())
	return nil
}

// limit sets a soft limit of the daemon for a while.
func (w *world) limit(f Fault, resource int, value func(pid int) uint64) error {
	cmd := w.daemon.process()
	if cmd == nil {
		return errDown
	}
	pid := cmd.Process.Pid
	var old unix.Rlimit
	if err := unix.Prlimit(pid, resource, nil, &old); err != nil {
		return err
	}
	low := old
	low.Cur = value(pid)
	if err := unix.Prlimit(pid, resource, &low, nil); err != nil {
		return err
	}
	time.Sleep(f.duration())
	if w.daemon.process() == cmd {
		old.Cur = old.Max // overlapping faults restore the same value
		_ = unix.Prlimit(pid, resource, &old, nil)
	}
	return nil
}

func daemonFiles(w *world, f Fault) error {
	return w.limit(f, unix.RLIMIT_NOFILE, func(pid int) uint64 {
		entries, _ := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
		return uint64(len(entries) + f.Number%3)
	})
}

func daemonSize(w *world, f Fault) error {
	return w.limit(f, unix.RLIMIT_FSIZE, func(int) uint64 { return 0 })
}

func daemonStderr(w *world, f Fault) error {
	w.daemon.blocks.Add(1)
	defer w.daemon.blocks.Add(-1)
	return actor("garbage")(w, f)
}

func daemonSwitch(w *world, f Fault) error {
	w.daemon.mu.Lock()
	w.daemon.old = !w.daemon.old
	w.daemon.mu.Unlock()
	s := syscall.SIGTERM
	if f.Number%4 == 0 {
		s = syscall.SIGKILL
	}
	return w.daemon.signal(s, f.duration())
}

func socketRemoved(w *world, f Fault) error {
	path := filepath.Join(w.dir, f.Text)
	if err := os.Remove(path); err != nil {
		return err
	}
	time.Sleep(f.duration())
	if _, err := os.Stat(path); err == nil {
		return nil // the daemon made it again
	}
	return w.daemon.signal(syscall.SIGTERM, usualDown)
}

const guardianWord = "\x00guardian"

func guardianKill(w *world, f Fault) error {
	pids := w.guardians()
	w.unguard(500 * time.Millisecond)
	if w.signalAll(pids, syscall.SIGKILL, guardianWord) == 0 {
		return errors.New("no guardian")
	}
	time.Sleep(f.duration())
	w.unguard(500 * time.Millisecond)
	return nil
}

func guardianStop(w *world, f Fault) error {
	pids := w.guardians()
	w.unguard(f.duration() + 300*time.Millisecond)
	n := w.signalAll(pids, syscall.SIGSTOP, guardianWord)
	time.Sleep(f.duration())
	w.signalAll(pids, syscall.SIGCONT, guardianWord)
	w.unguard(300 * time.Millisecond)
	if n == 0 {
		return errors.New("no guardian")
	}
	return nil
}

func bothKill(w *world, f Fault) error {
	pids := w.guardians()
	w.unguard(time.Second)
	w.signalAll(pids, syscall.SIGKILL, guardianWord)
	return w.daemon.signal(syscall.SIGKILL, f.duration())
}

func bothStop(w *world, f Fault) error {
	pids := w.guardians()
	w.unguard(f.duration() + 300*time.Millisecond)
	w.signalAll(pids, syscall.SIGSTOP, guardianWord)
	end, err := w.daemon.stop()
	time.Sleep(f.duration())
	if err == nil {
		end()
	}
	w.signalAll(pids, syscall.SIGCONT, guardianWord)
	w.unguard(300 * time.Millisecond)
	return err
}

// unguard notes that no guardian may be there for a while: if the daemon dies then, nobody can
// resume attached programs before the next daemon.
func (w *world) unguard(d time.Duration) {
	w.guardMu.Lock()
	defer w.guardMu.Unlock()
	w.unguarded = max(w.unguarded, now()+int64(d))
}

// orphaned tells whether attached programs must wait for the next daemon.
func (w *world) orphaned(h health, at int64) bool {
	w.guardMu.Lock()
	defer w.guardMu.Unlock()
	if h.native && at < w.unguarded {
		w.orphan = true
	}
	if w.orphan && !h.native && h.ready != 0 && at-h.ready > int64(time.Second) && at > w.unguarded {
		w.orphan = false
	}
	return w.orphan
}
