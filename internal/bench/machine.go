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

// normalScheduling is what a process has that was given nothing better.
const NormalScheduling = "normal"

// Prioritized runs f, which starts a process, such that the process inherits a
// better place on the CPUs if that is permitted, and says which. The thread goes
// back to what it was, which needs no permission, and lives on: its end would
// end what it started (Pdeathsig).
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

// ThisMachine describes where we are; what can't be read is left out.
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

// String names the machine in one line of a table.
func (m Machine) String() string {
	text := fmt.Sprintf("%d-core machine", m.CPUs)
	if m.Model != "" {
		text += " (" + m.Model + ")"
	}
	return text
}
