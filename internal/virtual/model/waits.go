// SPDX-License-Identifier: Apache-2.0

package gpumodel

import "xsched/internal/model"

// Wait is the time between a kernel's submission and its start, CLOCK_MONOTONIC ns.
type Wait struct {
	PID       int   `json:"pid"`
	Submitted int64 `json:"submitted"` // handed to the device
	Started   int64 `json:"started"`   // first executed
}

// waitRecords bounds the memory of one device's waits.
const waitRecords = 1 << 15

// waitRing holds the newest waitRecords kernels that started.
type waitRing struct {
	records []Wait
	next    int
}

// started records the start of a kernel.
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

// Waits returns the started kernels that were submitted in [from, to), in order of start.
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
