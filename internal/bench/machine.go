// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// tenantsNice is asked for the tenants; only root, or who has the limit, gets it.
const tenantsNice = -10

// hurried runs f, which starts a process, such that the process inherits a
// better CPU priority if that is permitted, and says which it has.
func hurried(f func() error) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Setpriority(unix.PRIO_PROCESS, 0, tenantsNice) != nil { // 0: this thread
		return 0, f()
	}
	err := f()
	if unix.Setpriority(unix.PRIO_PROCESS, 0, 0) != nil {
		// Stay locked: the thread ends with its goroutine and takes the priority along.
		runtime.LockOSThread()
	}
	return tenantsNice, err
}

// thisMachine describes where we are; what can't be read is left out.
func thisMachine() Machine {
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
