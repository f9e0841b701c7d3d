// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"xsched/internal/control"
	"xsched/internal/driver"
)

// machine keeps what the doctor says about the drivers of this host.
type machine struct {
	log     *slog.Logger
	drivers *driver.Set
	examine func() []driver.Check // may block; nil: nothing is known

	mu     sync.Mutex
	ended  chan struct{} // closed when the last examination ends; nil: there was none
	at     time.Time     // its start
	checks []driver.Check
}

const (
	// examineAgain is the least time between two examinations of a host on which nothing can be scheduled.
	// A working one is not examined again: it opens device nodes, which may wake a GPU.
	examineAgain = 2 * time.Second
	// examineTime bounds how long a reader waits for an examination.
	examineTime = 2 * time.Second
)

// refresh starts an examination if the last one has ended and is out of date. The channel is closed at
// the end of the last one.
func (m *machine) refresh() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended != nil && (!isClosed(m.ended) || !lacks(m.checks) || time.Since(m.at) < examineAgain) {
		return m.ended
	}
	ended := make(chan struct{})
	m.ended, m.at = ended, time.Now()
	go func() {
		defer close(ended)
		var checks []driver.Check
		if m.examine != nil {
			checks = m.examine()
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if !slices.Equal(checks, m.checks) {
			m.report(checks)
		}
		m.checks = checks
	}()
	return ended
}

// report logs the checks.
func (m *machine) report(checks []driver.Check) {
	for _, c := range checks {
		level := slog.LevelDebug
		if c.Status == driver.Missing || c.Status == driver.Limited {
			level = slog.LevelWarn
		}
		m.log.Log(context.Background(), level, "driver check", "check", c.Name, "status", string(c.Status), "detail", c.Detail, "remedy", c.Remedy)
	}
}

// problems returns what keeps every program of this host from being scheduled.
func (m *machine) problems(ctx context.Context) []control.Problem {
	select {
	case <-m.refresh():
	case <-time.After(examineTime):
		return []control.Problem{{Cause: fmt.Sprintf("the drivers of this host did not answer within %v", examineTime), Remedy: "check `dmesg`"}}
	case <-ctx.Done():
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []control.Problem
	for _, c := range m.checks {
		if c.Status == driver.Missing {
			out = append(out, control.Problem{Cause: c.Name + ": " + c.Detail, Remedy: c.Remedy})
		}
	}
	if len(out) == 0 && m.drivers.Empty() {
		out = append(out, control.Problem{Cause: "driver: " + m.drivers.Absent(), Remedy: "see `xsched doctor`"})
	}
	return out
}

func lacks(checks []driver.Check) bool {
	return slices.ContainsFunc(checks, func(c driver.Check) bool { return c.Status == driver.Missing })
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
