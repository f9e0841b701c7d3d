// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// NormalScheduling is the scheduling class of an unprivileged process.
const NormalScheduling = "normal"

// Prioritized runs f, which starts a process, so that the process inherits a higher
// scheduling class where permitted, and returns the class. The thread then returns to its
// own class. It must not end, because Pdeathsig would kill the process.
func Prioritized(f func() error) (string, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	better := []struct {
		name string
		attr unix.SchedAttr
	}{
		{"SCHED_RR 1", unix.SchedAttr{Policy: unix.SCHED_RR, Priority: 1}},
		{"nice -10", unix.SchedAttr{Policy: unix.SCHED_NORMAL, Nice: -10}},
	}
	own, err := unix.SchedGetAttr(0, 0) // 0: this thread
	if err != nil {
		return NormalScheduling, f()
	}
	for _, b := range better {
		b.attr.Size = unix.SizeofSchedAttr
		if unix.SchedSetAttr(0, &b.attr, 0) == nil {
			defer func() { _ = unix.SchedSetAttr(0, own, 0) }()
			return b.name, f()
		}
	}
	return NormalScheduling, f()
}

// ThisMachine describes this machine, as far as it can be read.
func ThisMachine() Machine {
	m := Machine{CPUs: runtime.NumCPU()}
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		sc := bufio.NewScanner(f)
		for sc.Scan() && m.Model == "" {
			if key, value, ok := strings.Cut(sc.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
				m.Model = strings.TrimSpace(value)
			}
		}
		_ = f.Close()
	}
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		m.Kernel = unix.ByteSliceToString(uts.Release[:])
	}
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		if f := strings.Fields(string(data)); len(f) > 0 {
			m.Load, _ = strconv.ParseFloat(f[0], 64)
		}
	}
	return m
}

// String describes the machine in one line.
func (m Machine) String() string {
	text := fmt.Sprintf("%d-core machine", m.CPUs)
	if m.Model != "" {
		text += " (" + m.Model + ")"
	}
	return text
}
