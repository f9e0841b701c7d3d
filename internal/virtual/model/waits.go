// SPDX-License-Identifier: Apache-2.0

package gpumodel

import "xsched/internal/model"

// Wait is one kernel's way to the compute engine, CLOCK_MONOTONIC ns.
type Wait struct {
	PID       int   `json:"pid"`
	Submitted int64 `json:"submitted"` // it was handed over
	Started   int64 `json:"started"`   // it first executed
}

// waitRecords bounds the memory of one device's waits.
const waitRecords = 1 << 15

// waitRing remembers the newest waitRecords kernels that started.
type waitRing struct {
	records []Wait
	next    int
}

// started notes that a kernel executes for the first time.
func (l *Timeline) started(account *Account, submitted, started model.Time) {
	if l == nil {
		return
	}
	w := Wait{account.PID, int64(submitted), int64(started)}
	r := &l.waits
	if len(r.records) < waitRecords {
		r.records = append(r.records, w)
		return
	}
	r.records[r.next] = w
	r.next = (r.next + 1) % waitRecords
}

// Waits are the kernels that were submitted in [from, to) and have started, in the order they
// started.
func (l *Timeline) Waits(from, to model.Time) []Wait {
	var out []Wait
	for i := range l.waits.records {
		w := l.waits.records[(l.waits.next+i)%len(l.waits.records)]
		if w.Submitted >= int64(from) && w.Submitted < int64(to) {
			out = append(out, w)
		}
	}
	return out
}
