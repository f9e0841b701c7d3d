// SPDX-License-Identifier: Apache-2.0

// Package notify reports the state of a service to its service manager by the protocol of
// sd_notify(3), and feeds the manager's watchdog while the service makes progress.
package notify

import (
	"context"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Manager is the service manager. Without one, its methods do nothing. A manager that does not answer
// is no reason to fail, so errors are dropped.
type Manager struct {
	address  string
	watchdog time.Duration // 0: none
}

// FromEnvironment returns the manager that started this process. It removes the variables, so that
// children do not report in place of the service.
func FromEnvironment() *Manager {
	m := &Manager{address: os.Getenv("NOTIFY_SOCKET")}
	usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	pid := os.Getenv("WATCHDOG_PID")
	if err == nil && usec > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		m.watchdog = time.Duration(usec) * time.Microsecond
	}
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		_ = os.Unsetenv(name)
	}
	return m
}

// Ready reports that the service is ready, after its start or a reload.
func (m *Manager) Ready() { m.send("READY=1") }

// Reloading reports that the service reloads its configuration. Ready ends the reload.
func (m *Manager) Reloading() {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return
	}
	m.send("RELOADING=1\nMONOTONIC_USEC=" + strconv.FormatInt(now.Nano()/1000, 10))
}

// Stopping reports that the service ends.
func (m *Manager) Stopping() { m.send("STOPPING=1") }

// Feed feeds the watchdog until ctx ends, twice per period, as long as alive returns true. A service
// that is not alive gets no message, and the manager restarts it.
func (m *Manager) Feed(ctx context.Context, alive func() bool) {
	if m.address == "" || m.watchdog == 0 {
		return
	}
	ticker := time.NewTicker(m.watchdog / 2)
	defer ticker.Stop()
	m.send("WATCHDOG=1")
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if alive() {
			m.send("WATCHDOG=1")
		}
	}
}

// sendLimit bounds one message. A manager whose queue is full has stopped.
const sendLimit = time.Second

func (m *Manager) send(state string) {
	if m.address == "" {
		return
	}
	// A leading "@" stands for the abstract namespace here and in package net.
	c, err := (&net.Dialer{Timeout: sendLimit}).Dial("unixgram", m.address)
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	_ = c.SetWriteDeadline(time.Now().Add(sendLimit))
	_, _ = c.Write([]byte(state))
}
