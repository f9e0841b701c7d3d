// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"xsched/internal/daemon"
	"xsched/internal/policy"
)

// This file has the values of XSched's own HTTP interface: its tools and those
// written for it work against this daemon, and ours against its server.

// DefaultPort is where XSched's tools look for a server.
const DefaultPort = 50000

// XQueue is a queue as XSched's routes show it.
type XQueue struct {
	Handle    uint64 `json:"handle"`
	Device    uint64 `json:"device"`
	Level     int    `json:"level"`
	PID       int    `json:"pid"`
	Threshold int64  `json:"threshold"`
	BatchSize int64  `json:"batch_size"`
	Ready     bool   `json:"ready"`
	Suspended bool   `json:"suspended"`

	index uint32
	own   bool // it is scheduled by itself, not with the others of its program
}

// XProcess is a program as XSched's routes show it.
type XProcess struct {
	PID     int    `json:"pid"`
	CmdLine string `json:"cmdline"`
}

// XQueues is the answer of GET /xqueues.
type XQueues struct {
	XQueues   []XQueue   `json:"xqueues"`
	Processes []XProcess `json:"processes"`
}

// xqueueReply is the answer of GET /xqueue/HANDLE.
type xqueueReply struct {
	XQueue  XQueue   `json:"xqueue"`
	Process XProcess `json:"process"`
}

// XHint is the body of POST /hint; which fields it needs depends on its type.
type XHint struct {
	Type        *int    `json:"hint_type,omitempty"`
	Handle      *uint64 `json:"handle,omitempty"`
	PID         *int    `json:"pid,omitempty"`
	Priority    *int    `json:"priority,omitempty"`
	Utilization *int    `json:"utilization,omitempty"`
	Timeslice   *int64  `json:"timeslice,omitempty"` // microseconds
	Display     *uint64 `json:"display,omitempty"`
}

// The types of hint that POST /hint takes.
const (
	XHintPriority     = 1
	XHintUtilization  = 2
	XHintTimeslice    = 3
	XHintWindowActive = 7
)

// Kinds of device in the upper half of XQueue.Device.
const deviceGPU = 2

var deviceKinds = []string{"UNKNOWN", "CPU", "GPU", "NPU", "FPGA", "ASIC", "MCA"}

// DeviceText is a device the way `xcli list` shows it.
func (q XQueue) DeviceText() string {
	kind := deviceKinds[0]
	if k := q.Device >> 32; k < uint64(len(deviceKinds)) {
		kind = deviceKinds[k]
	}
	return kind + "(" + handleText(q.Device) + ")"
}

// HandleText is a handle in hexadecimal.
func (q XQueue) HandleText() string { return handleText(q.Handle) }

func handleText(h uint64) string { return "0x" + strconv.FormatUint(h, 16) }

// handleBits is the room for the index in a handle: a page has 1024 queues.
const handleBits = 16

// handleOf names a queue for as long as its session lives. Sessions count from
// 1, so no handle is 0, and all stay exact in a JSON reader that knows only doubles.
func handleOf(session uint64, index uint32) uint64 { return session<<handleBits | uint64(index) }

// parseHandle reads a handle from a path.
func parseHandle(text string) (uint64, bool) {
	digits := strings.TrimPrefix(strings.TrimPrefix(text, "0x"), "0X")
	h, err := strconv.ParseUint(digits, 16, 64)
	return h, err == nil && h != 0
}

// deviceOf packs a PCI address, domain:bus:slot.function, in XSched's way.
func deviceOf(address string) uint64 {
	var domain, bus, slot, function uint64
	if n, err := fmt.Sscanf(address, "%x:%x:%x.%x", &domain, &bus, &slot, &function); n != 4 || err != nil {
		return deviceGPU << 32
	}
	return deviceGPU<<32 | (domain<<16|bus&0xff<<8|slot&0x1f<<3|function&7)&0xffffffff
}

// xqueues shows a list in XSched's way. A queue that is held or stopped is suspended.
func xqueues(l daemon.List) XQueues {
	out := XQueues{XQueues: []XQueue{}, Processes: []XProcess{}}
	seen := map[int]bool{}
	for _, p := range l.Processes {
		if !seen[p.PID] { // one that joins again has two sessions for a moment
			seen[p.PID] = true
			out.Processes = append(out.Processes, XProcess{p.PID, p.Command})
		}
		threshold, batch := p.InFlight, p.Batch
		if threshold == 0 {
			threshold = l.DefaultInFlight
		}
		if batch == 0 {
			batch = min(l.DefaultBatch, threshold)
		}
		for _, q := range p.Queues {
			out.XQueues = append(out.XQueues, XQueue{
				Handle: handleOf(p.Session, q.Index), Device: deviceOf(q.Device), Level: q.Level, PID: p.PID,
				Threshold: int64(threshold), BatchSize: int64(batch),
				Ready: q.Busy, Suspended: q.State == "suspended" || q.State == "held",
				index: q.Index, own: q.Hints.PerQueue,
			})
		}
	}
	return out
}

// find returns one queue and its process.
func (x XQueues) find(handle uint64) (xqueueReply, bool) {
	for _, q := range x.XQueues {
		if q.Handle != handle {
			continue
		}
		for _, p := range x.Processes {
			if p.PID == q.PID {
				return xqueueReply{q, p}, true
			}
		}
	}
	return xqueueReply{}, false
}

// XPolicies are the numbers and names of XSched's policies, in its order.
func XPolicies() []string {
	return []string{"HPF", "HHPF", "CHPF", "UP", "PUP", "SPUP", "KEDF", "LAX", "AWF", "CFS", "MLFQ"}
}

// XPolicyNumber is the number of a policy, XSched's or ours, in any case of letters.
func XPolicyNumber(name string) (int, error) {
	for i, n := range XPolicies() {
		if strings.EqualFold(n, name) {
			return i + 1, nil
		}
	}
	if n := policy.Number(name); n != 0 {
		return n, nil
	}
	return 0, errors.New("invalid policy name: " + strconv.Quote(name))
}

// XPolicyName is the way back; empty if the number is not known.
func XPolicyName(number int) string {
	if all := XPolicies(); number >= 1 && number <= len(all) {
		return all[number-1]
	}
	return policy.NameOf(number)
}
