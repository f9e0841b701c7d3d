// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"fmt"

	"golang.org/x/sys/unix"

	"xsched/internal/model"
)

// initialPIDNamespace reports whether the daemon's PIDs are those of the driver's files.
func initialPIDNamespace() bool {
	const initial = 0xEFFFFFFC // PROC_PID_INIT_INO
	var st unix.Stat_t
	return unix.Stat("/proc/self/ns/pid", &st) == nil && st.Ino == initial
}

// Verifies implements driver.Verifier: the driver lists the queues of each process.
func (o *Owner) Verifies(model.DeviceID) bool { return o.pid != 0 }

// verified returns the GPUs on which the driver lists queues of the process; nil: it does not know.
func (o *Owner) verified() (map[uint32]bool, error) {
	if o.pid == 0 {
		return nil, nil
	}
	p, err := ReadProcess(o.sysfs, o.pid)
	if err != nil {
		return map[uint32]bool{}, fmt.Errorf("verify queues: %w", err)
	}
	out := map[uint32]bool{}
	for _, q := range p.Queues {
		out[q.GPUID] = true
	}
	return out, nil
}
