// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
)

// This file decides when an attached process is searched for new channels. A full search takes
// hundreds of calls, so it needs a sign.

const (
	// signPeriod is the interval between two looks for signs, and so between a new channel and its
	// discovery.
	signPeriod = 2 * time.Second
	// fullPeriod is the interval of full searches of a process that runs, in case handles are
	// reused or a sign is missed.
	fullPeriod = 30 * time.Second
	// fullShare is the part of the time that full searches of all processes may take.
	fullShare = 50
)

// signs are what a process shows at little cost when it may have created a channel.
type signs struct {
	pid    int
	looked time.Time
	full   time.Time // last full search
	cpu    time.Duration
	files  int64
}

// newSigns returns the signs of a process before its first search.
func newSigns(pid int) signs {
	now := time.Now()
	cpu, _ := clock.CPUTime(pid)
	return signs{pid: pid, looked: now, full: now, cpu: cpu, files: fileCount(pid)}
}

// rescan searches for new channels if there are signs of some.
func (a *attached) rescan(ctx context.Context) (found bool, err error) {
	now := time.Now()
	if now.Sub(a.signs.looked) < signPeriod {
		return false, nil
	}
	a.signs.looked = now
	next := a.signs
	var cpuErr error
	// A process that used no CPU time made no call.
	if next.cpu, cpuErr = clock.CPUTime(next.pid); cpuErr == nil && next.cpu == a.signs.cpu {
		return false, nil
	}
	next.files = fileCount(next.pid)
	full := now.Sub(next.full) >= fullPeriod && a.driver.searches.begin(now)
	if full {
		next.full = now
		defer func() { a.driver.searches.end(now, time.Now()) }()
	}
	grew := full || next.files != a.signs.files
	if !grew {
		if grew, err = a.Grew(ctx); err != nil {
			return false, err
		}
	}
	if grew {
		if found, err = a.Rescan(ctx, full); err != nil {
			return false, err
		}
	}
	a.signs = next // only now: a failed search is repeated
	return found, nil
}

// searches paces the full searches of all attached processes.
type searches struct {
	mu   sync.Mutex
	busy bool
	next time.Time
}

func (s *searches) begin(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy || now.Before(s.next) {
		return false
	}
	s.busy = true
	return true
}

func (s *searches) end(began, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy, s.next = false, now.Add(fullShare*now.Sub(began))
}

// fileCount returns the number of open files of a process, or 0 if it is unknown. Since Linux 6.2 the
// size of the folder is that number.
func fileCount(pid int) int64 {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0
	}
	if st.Size > 0 {
		return st.Size
	}
	names, _ := os.ReadDir(dir)
	return int64(len(names))
}
