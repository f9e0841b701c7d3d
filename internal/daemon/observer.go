// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"time"

	"xsched/internal/clock"
	"xsched/internal/driver"
	"xsched/internal/health"
	"xsched/internal/identity"
	"xsched/internal/model"
	"xsched/internal/session"
)

// observer reports to the loop whether programs work whose submissions no hook sees.
type observer struct {
	access *access
	polls  *health.Calls
}

// run observes connected programs without hooks, until ctx ends.
func (o *observer) run(ctx context.Context, part *health.Part) {
	t := time.NewTicker(pollPeriod)
	defer t.Stop()
	meters := map[model.SessionID]*cpuMeter{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		part.Beat()
		programs, err := o.access.loop.Unhooked(ctx)
		if err != nil {
			continue
		}
		now := map[model.SessionID]*cpuMeter{}
		for _, s := range programs {
			if now[s.ID] = meters[s.ID]; now[s.ID] == nil {
				now[s.ID] = &cpuMeter{}
			}
			o.observe(now[s.ID], s.User, s.ID, s.PID)
		}
		meters = now
	}
}

// watch polls an attached process, which reports nothing itself, and observes whether it works.
func (o *observer) watch(s *session.Session, a driver.Attached) {
	t := time.NewTicker(pollPeriod)
	defer t.Stop()
	var meter cpuMeter
	for range t.C {
		if s.Ended() {
			return
		}
		changed, err := o.poll(a)
		if err != nil {
			s.End(err.Error())
			return
		}
		if changed {
			s.Refresh()
		}
		o.observe(&meter, s.User, s.ID, s.PID)
	}
}

// poll asks the driver about an attached process, and shows that it does.
func (o *observer) poll(a driver.Attached) (changed bool, err error) {
	defer o.polls.Begin()()
	return a.Poll(context.Background())
}

// Idle programs still wake up: a sleeping PyTorch process uses 0.92 ms of CPU per second (measured
// once with time.process_time over 4 s; driver 580.159.04). That little counts only in a burst.
const (
	restShare = 800                    // 1/800 of the time is idle noise: 1.25 ms per second
	restBurst = 100 * time.Microsecond // tolerated beyond that
)

// cpuMeter infers from CPU time whether a process works. A program that submits or awaits GPU work
// spins or wakes up regularly; an idle one does not.
type cpuMeter struct {
	at     time.Time
	cpu    time.Duration
	beyond time.Duration // CPU time beyond the idle allowance
}

func (m *cpuMeter) worked(now time.Time, cpu time.Duration, err error) (works bool) {
	if err != nil {
		return true // assume busy if unreadable
	}
	if m.at.IsZero() {
		m.at, m.cpu = now, cpu
	}
	m.beyond = max(0, m.beyond-now.Sub(m.at)/restShare) + max(0, cpu-m.cpu)
	m.at, m.cpu = now, cpu
	works = m.beyond >= restBurst
	m.beyond = min(m.beyond, restBurst)
	return works
}

// observe reports to the loop whether a process works.
func (o *observer) observe(m *cpuMeter, user identity.User, id model.SessionID, pid int) {
	cpu, err := clock.CPUTime(pid)
	_ = o.access.loop.Observe(user, id, m.worked(time.Now(), cpu, err))
}
