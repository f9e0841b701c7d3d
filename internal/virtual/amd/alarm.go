// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"xsched/internal/model"
)

// alarm is a timer on CLOCK_MONOTONIC. A time.Timer may be late by 1 ms in an idle process, which
// exceeds the device's own latencies.
type alarm struct {
	file *os.File

	mu sync.Mutex
	fd int // -1: closed; the number may be reused
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create timer: %w", err)
	}
	return &alarm{fd: fd, file: os.NewFile(uintptr(fd), "timer")}, nil
}

// run calls f at each expiry until stop.
func (a *alarm) run(f func()) {
	var count [8]byte
	for {
		if _, err := a.file.Read(count[:]); err != nil {
			return
		}
		f()
	}
}

// set replaces the expiry; a past time expires immediately.
func (a *alarm) set(at model.Time) {
	var spec unix.ItimerSpec
	if at != model.Never {
		spec.Value = unix.NsecToTimespec(max(1, int64(at)))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fd < 0 {
		return
	}
	_ = unix.TimerfdSettime(a.fd, unix.TFD_TIMER_ABSTIME, &spec, nil)
}

func (a *alarm) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fd = -1
	_ = a.file.Close()
}
