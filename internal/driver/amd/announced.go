// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"fmt"
	"slices"

	"xsched/internal/driver"
)

// Announced is a queue that the program's shim announced to a daemon.
type Announced struct {
	ID, GPUID uint32
	Copies    bool
	PCI       string
	Ring      uint64
	Bytes     uint32
	Priority  *uint32 // nil: unknown
}

// AnnouncedQueue decodes a queue from a daemon's report. A debugger does not see priorities.
func AnnouncedQueue(pci, kind string, details map[string]uint64) Announced {
	a := Announced{
		ID: uint32(details["id"]), GPUID: uint32(details["gpu_id"]), Copies: kind == "copy", PCI: pci,
		Ring: details["ring"], Bytes: uint32(details["bytes"]),
	}
	if n, ok := details["priority"]; ok {
		p := uint32(n)
		a.Priority = &p
	}
	return a
}

// JoinAnnounced merges the shim's announcements by queue id. An announcement is authoritative: it
// comes from the request that created the queue.
func (f *Found) JoinAnnounced(all []Announced) {
	for _, a := range all {
		at := -1
		for i, q := range f.Queues {
			if q.ID == int(a.ID) {
				at = i
			}
		}
		if at < 0 {
			q := FoundQueue{ID: int(a.ID), Type: "compute", GPUID: a.GPUID, Bytes: uint64(a.Bytes)}
			if a.Copies {
				q.Type = "sdma"
			}
			f.Queues = append(f.Queues, q)
			at = len(f.Queues) - 1
		}
		q := &f.Queues[at]
		if q.Ring != 0 && q.Ring != a.Ring {
			f.Notes = append(f.Notes, driver.Remark{Source: "debugfs mqds", Text: fmt.Sprintf("queue %d: the dump matched another ring; showing the announced one", a.ID)})
			q.Read, q.Write, q.Priority, q.Active, q.Loaded = nil, nil, nil, nil, nil
		}
		q.Ring, q.Unknown = a.Ring, ""
		if q.PCI == "" {
			q.PCI = a.PCI
		}
		if a.Priority != nil && q.Priority == nil {
			q.Priority = a.Priority
		}
		q.Sources = append(q.Sources, "shim")
	}
	f.dropApart()
}

// dropApart removes descriptors without an id whose ring belongs to a known queue, after merging
// them.
func (f *Found) dropApart() {
	known := map[uint64]bool{} // rings of matched descriptors
	for _, q := range f.Queues {
		if q.ID < 0 && f.take(q) {
			known[q.Ring] = true
		}
	}
	f.Queues = slices.DeleteFunc(f.Queues, func(q FoundQueue) bool { return q.ID < 0 && known[q.Ring] })
}

func (f *Found) take(d FoundQueue) bool {
	for i := range f.Queues {
		q := &f.Queues[i]
		if q.ID < 0 || q.Ring != d.Ring || q.GPUID != d.GPUID {
			continue
		}
		q.Read, q.Write, q.Active, q.Loaded = d.Read, d.Write, d.Active, d.Loaded
		if q.Priority == nil {
			q.Priority = d.Priority
		}
		q.Sources = append(q.Sources, d.Sources...)
		return true
	}
	return false
}
