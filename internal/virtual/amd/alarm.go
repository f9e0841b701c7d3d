// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"xsched/internal/model"
)

// alarm calls at a time of CLOCK_MONOTONIC. A time.Timer would do were it not up to a
// millisecond late in a process that sleeps: the device's own times are shorter.
type alarm struct {
	file *os.File

	mu sync.Mutex
	fd int // -1: closed, and its number perhaps somebody else's
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create timer: %w", err)
	}
	return &alarm{fd: fd, file: os.NewFile(uintptr(fd), "timer")}, nil
}

// run calls f whenever the time has come, until stop.
func (a *alarm) run(f func()) {
	var count [8]byte
	for {
		if _, err := a.file.Read(count[:]); err != nil {
			return
		}
		f()
	}
}

// set replaces the time; one that has passed is now.
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
