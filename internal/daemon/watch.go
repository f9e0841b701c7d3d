// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/model"
	"xsched/internal/session"
)

// This file observes attached processes, which report nothing by themselves.

// watch polls an attached process through its driver, and observes whether it works.
func (d *Daemon) watch(s *session.Session, a driver.Attached) {
	t := time.NewTicker(pollPeriod)
	defer t.Stop()
	var meter cpuMeter
	for range t.C {
		if s.Ended() {
			return
		}
		changed, err := a.Poll(context.Background())
		if err != nil {
			s.End(err.Error())
			return
		}
		if changed {
			s.Refresh()
		}
		d.observe(context.Background(), &meter, s.ID, s.PID)
	}
}

// A program that does nothing still wakes up now and then: a PyTorch process that sleeps uses 0.92 ms of CPU a
// second (once, by time.process_time over 4 s; driver 580.159.04). So little does not count, unless it comes at once.
const (
	restShare = 800                    // an 800th of the time is no work: 1.25 ms a second
	restBurst = 100 * time.Microsecond // nor is that much beyond it
)

// cpuMeter tells from a process's CPU time whether it works: a program that submits or waits
// for GPU work spins or at least runs now and then, one that nobody asks for anything does not.
type cpuMeter struct {
	at     time.Time
	cpu    time.Duration
	beyond time.Duration // what it used beyond its rest
}

func (m *cpuMeter) look(now time.Time, cpu time.Duration, err error) (worked bool) {
	if err != nil {
		return true // nobody is taken for idle because we can't see him
	}
	if m.at.IsZero() {
		m.at, m.cpu = now, cpu
	}
	m.beyond = max(0, m.beyond-now.Sub(m.at)/restShare) + max(0, cpu-m.cpu)
	m.at, m.cpu = now, cpu
	worked = m.beyond >= restBurst
	m.beyond = min(m.beyond, restBurst)
	return worked
}

// observe tells the loop whether a process works.
func (d *Daemon) observe(ctx context.Context, m *cpuMeter, id model.SessionID, pid int) {
	cpu, err := cpuTime(pid)
	_ = d.loop.Observe(ctx, id, m.look(time.Now(), cpu, err))
}

// cpuTime is the CPU time of all threads of a process. /proc has it in ticks of 10 ms only, which a
// program that sleeps until a kernel ends may not use in a minute.
func cpuTime(pid int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED; clock_getcpuclockid makes its clocks like this
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|scheduled, &t); err != nil {
		return 0, fmt.Errorf("read CPU time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}
