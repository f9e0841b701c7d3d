// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"fmt"
	"slices"
	"strings"

	"xsched/internal/driver"
)

// packetBytes is the size of an AQL packet; a log gives a ring's size in packets.
const packetBytes = packetDwords * 4

// LoggedQueue is a queue in the runtime's log, identified by its ring address.
type LoggedQueue struct {
	Ring     uint64   `json:"-"`
	Bytes    uint64   `json:"-"`             // 0: unknown
	Software []string `json:"swq,omitempty"` // streams mapped to the queue
	HSAID    int32    `json:"hsa_id"`        // the runtime's counter, not the driver's number; -1: unknown
	Priority string   `json:"priority,omitempty"`
	Kernels  *uint64  `json:"kernels,omitempty"` // nil: the log does not say
	Deleted  bool     `json:"deleted"`
}

// JoinLog merges a log by ring address. A queue that the log deletes is not the one that has its
// ring now. Other unmatched queues are listed while a ring of the process is unknown.
func (f *Found) JoinLog(logged []LoggedQueue) {
	open := slices.ContainsFunc(f.Queues, func(q FoundQueue) bool { return q.Ring == 0 && q.Type == string(KindCompute) })
	deleted, apart := 0, 0
	for _, l := range logged {
		i := slices.IndexFunc(f.Queues, func(q FoundQueue) bool { return q.Ring != 0 && q.Ring == l.Ring })
		switch {
		case l.Deleted:
			deleted++
		case i >= 0:
			f.Queues[i].Log = &l
			f.Queues[i].Sources = append(f.Queues[i].Sources, "log")
		default:
			apart++
			if open {
				f.addLogged(l)
			}
		}
	}
	if deleted > 0 {
		f.Notes = append(f.Notes, driver.Remark{Source: "log", Text: fmt.Sprintf("%d of its %d queues were deleted", deleted, len(logged))})
	}
	switch {
	case apart > 0 && open:
		f.Notes = append(f.Notes, driver.Remark{Source: "log", Text: fmt.Sprintf("%d of its %d queues match no known ring and are listed without a number", apart, len(logged))})
	case apart > 0:
		f.Notes = append(f.Notes, driver.Remark{Source: "log", Text: fmt.Sprintf("%d of its %d queues match no ring of the process: destroyed, or from another run", apart, len(logged))})
	}
}

func (f *Found) addLogged(l LoggedQueue) {
	f.Queues = append(f.Queues, FoundQueue{ID: -1, Type: string(KindCompute), Bytes: l.Bytes, Ring: l.Ring, Log: &l, Sources: []string{"log"}})
}

// foundInLog describes a process by its log alone, because it has ended or ran elsewhere.
func foundInLog(pid int, logged []LoggedQueue) *Found {
	f := &Found{PID: pid, PIDs: []int{pid}, Queues: []FoundQueue{}, Notes: []driver.Remark{}}
	for _, l := range logged {
		f.addLogged(l)
	}
	f.Notes = append(f.Notes, driver.Remark{Source: "log", Text: "the driver does not list the process; a log has no queue numbers (its id= is the runtime's counter)"})
	return f
}

// select picks the entries of a process from a log: those with one of its pids or without any. The
// remark says why there are none, or what is doubtful.
func selectLogged(pids []int, logged []driver.LoggedQueue) (out []LoggedQueue, remark string) {
	var others []string
	anonymous := false
	for _, l := range logged {
		if l.PID != 0 && !slices.Contains(pids, l.PID) {
			if name := fmt.Sprint(l.PID); !slices.Contains(others, name) {
				others = append(others, name)
			}
			continue
		}
		anonymous = anonymous || l.PID == 0
		q := LoggedQueue{Ring: l.Ring, Bytes: uint64(l.Packets) * packetBytes, Software: l.Software, HSAID: l.ID, Priority: l.Priority, Deleted: l.Deleted}
		if l.Counted {
			q.Kernels = &l.Kernels
		}
		out = append(out, q)
	}
	switch {
	case anonymous:
		remark = "its lines have no pid: every queue without one is taken as this process's"
	case len(out) == 0 && len(others) > 0:
		remark = "has queues of other processes only: " + strings.Join(others[:min(len(others), 8)], ", ")
	case len(out) == 0:
		remark = "names no hardware queue; set AMD_LOG_LEVEL=4"
	}
	return out, remark
}
