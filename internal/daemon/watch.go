// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/device/nvidia"
	"xsched/internal/hub"
)

// This file looks after attached processes, which tell nothing by themselves.

// restores is what undoes all that may be done to a process, on whatever GPU.
func restores(ctx context.Context, o *nvidia.Objects) (all []nvidia.Restore, fds []int, err error) {
	for _, gpu := range o.GPUs() {
		r, more, err := o.Restores(ctx, gpu)
		if err != nil {
			for _, fd := range fds {
				_ = unix.Close(fd)
			}
			return nil, nil, err
		}
		all, fds = append(all, r...), append(fds, more...)
	}
	return all, fds, nil
}

// rescan takes over what an attached process has made since, after the guardian
// knows how to undo what will be done to it.
func (d *daemon) rescan(s *hub.Session, o *nvidia.Objects) {
	ctx, cancel := context.WithTimeout(context.Background(), attachTime)
	defer cancel()
	found, err := o.Rescan(ctx)
	if err != nil || !found {
		if err != nil && !s.Ended() {
			d.log.Debug("rescan failed", "pid", s.PID, "err", err)
		}
		return
	}
	all, fds, err := restores(ctx, o)
	if err == nil {
		err = d.guardian.Update(uint64(s.ID), all, fds)
	}
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	if err != nil {
		d.log.Warn("new hardware queues of an attached process are left alone", "pid", s.PID, "err", err)
		return
	}
	o.Release()
	s.Refresh()
}

// watch ends the session when the process no longer has the files (it closed
// them or called exec, and only our duplicates keep its GPU memory), and guesses
// meanwhile whether it has work.
func (d *daemon) watch(s *hub.Session, a *nvidia.Attached) {
	t := time.NewTicker(filePeriod)
	defer t.Stop()
	var guess workGuess
	scanned := time.Now()
	for range t.C {
		if s.Ended() {
			return
		}
		if !nvidia.StillHasAny(s.PID, a.Files) {
			s.End("the process closed its files")
			return
		}
		if time.Since(scanned) >= scanPeriod {
			d.rescan(s, a.Objects)
			scanned = time.Now()
		}
		if busy, changed := guess.look(time.Now(), cpuTicks(s.PID)); changed {
			_ = d.hub.SetBusy(context.Background(), s.ID, busy)
		}
	}
}

// idleAfter is how long a process must have used no CPU to be taken for idle.
const idleAfter = time.Second

// workGuess guesses from a process's CPU time whether it has GPU work: a program
// that submits or waits for work spins or at least runs now and then, one that nobody
// asks for anything does not. A program that sleeps while long kernels run is taken for
// idle; the hub sees to it that this never costs it its turn.
type workGuess struct {
	ticks uint64
	moved time.Time // when ticks last changed
	idle  bool
}

func (g *workGuess) look(now time.Time, ticks uint64) (busy, changed bool) {
	if ticks != g.ticks || g.moved.IsZero() {
		g.ticks, g.moved = ticks, now
	}
	idle := now.Sub(g.moved) >= idleAfter
	changed = idle != g.idle
	g.idle = idle
	return !idle, changed
}

// cpuTicks reads the CPU time of all threads of a process, in clock ticks.
func cpuTicks(pid int) uint64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// The name may hold anything, so count from its end: utime and stime are fields 14 and 15.
	_, rest, _ := strings.Cut(string(b[bytes.LastIndexByte(b, ')')+1:]), " ")
	fields := strings.Fields(rest)
	const utime, stime = 11, 12
	if len(fields) <= stime {
		return 0
	}
	u, _ := strconv.ParseUint(fields[utime], 10, 64)
	t, _ := strconv.ParseUint(fields[stime], 10, 64)
	return u + t
}
