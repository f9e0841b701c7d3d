// SPDX-License-Identifier: Apache-2.0

// Package upstream has upstream XSched's HTTP interface: its values, and a client. Upstream's
// tools work against this daemon, and ours work against upstream's server.
package upstream

import (
	"fmt"
	"strconv"
	"strings"

	"xsched/internal/control"
)

// DefaultPort is the default port of upstream's tools.
const DefaultPort = 50000

// Queue is a queue in upstream's format.
type Queue struct {
	Handle    uint64 `json:"handle"`
	Device    uint64 `json:"device"`
	Level     int    `json:"level"`
	PID       int    `json:"pid"`
	Threshold int64  `json:"threshold"`
	BatchSize int64  `json:"batch_size"`
	Ready     bool   `json:"ready"`
	Suspended bool   `json:"suspended"`

	index uint32
	own   bool   // scheduled individually
	pci   string // of its GPU
}

// PCI returns the PCI address of the queue's GPU.
func (q Queue) PCI() string { return q.pci }

// Process is a process in upstream's format.
type Process struct {
	PID     int    `json:"pid"`
	CmdLine string `json:"cmdline"`
}

// Queues is the reply of GET /xqueues.
type Queues struct {
	Queues    []Queue   `json:"xqueues"`
	Processes []Process `json:"processes"`
}

// QueueReply is the reply of GET /xqueue/HANDLE.
type QueueReply struct {
	Queue   Queue   `json:"xqueue"`
	Process Process `json:"process"`
}

// Hint is the body of POST /hint; its type determines the required fields.
type Hint struct {
	Type        *int    `json:"hint_type,omitempty"`
	Handle      *uint64 `json:"handle,omitempty"`
	PID         *int    `json:"pid,omitempty"`
	Priority    *int    `json:"priority,omitempty"`
	Utilization *int    `json:"utilization,omitempty"`
	Timeslice   *int64  `json:"timeslice,omitempty"` // microseconds
	Display     *uint64 `json:"display,omitempty"`
}

// Hint types of POST /hint.
const (
	HintPriority     = 1
	HintUtilization  = 2
	HintTimeslice    = 3
	HintWindowActive = 7
)

// Kinds of device in the upper half of Queue.Device.
const deviceGPU = 2

var deviceKinds = []string{"UNKNOWN", "CPU", "GPU", "NPU", "FPGA", "ASIC", "MCA"}

// DeviceText returns the device as `xcli list` shows it.
func (q Queue) DeviceText() string {
	kind := deviceKinds[0]
	if k := q.Device >> 32; k < uint64(len(deviceKinds)) {
		kind = deviceKinds[k]
	}
	return kind + "(" + HandleText(q.Device) + ")"
}

// HandleText returns a handle in hexadecimal.
func (q Queue) HandleText() string { return HandleText(q.Handle) }

// HandleText returns a handle in hexadecimal.
func HandleText(h uint64) string { return "0x" + strconv.FormatUint(h, 16) }

// handleBits is the width of the queue index in a handle; a page has 1024 queues.
const handleBits = 16

// HandleOf returns the handle of a queue, valid for the life of its session. Sessions start at 1,
// so no handle is 0, and handles are exact in a double.
func HandleOf(session uint64, index uint32) uint64 { return session<<handleBits | uint64(index) }

// ParseHandle reads a handle from a path.
func ParseHandle(text string) (uint64, bool) {
	digits := strings.TrimPrefix(strings.TrimPrefix(text, "0x"), "0X")
	h, err := strconv.ParseUint(digits, 16, 64)
	return h, err == nil && h != 0
}

// Own returns the queue's index if it is scheduled apart from the others of its process, else nil.
func (q Queue) Own() *uint32 {
	if !q.own {
		return nil
	}
	return &q.index
}

// deviceOf encodes a PCI address, domain:bus:slot.function, as upstream does.
func deviceOf(address string) uint64 {
	var domain, bus, slot, function uint64
	if n, err := fmt.Sscanf(address, "%x:%x:%x.%x", &domain, &bus, &slot, &function); n != 4 || err != nil {
		return deviceGPU << 32
	}
	return deviceGPU<<32 | (domain<<16|bus&0xff<<8|slot&0x1f<<3|function&7)&0xffffffff
}

// FromList converts a list. In upstream's format, queues with work are suspended or run. Those that
// yield to others are suspended, too: a tiny timeslice concurrently with a long one makes no progress.
func FromList(l control.List) Queues {
	out := Queues{Queues: []Queue{}, Processes: []Process{}}
	seen := map[int]bool{}
	for _, p := range l.Processes {
		if !seen[p.PID] { // a process that reconnects briefly has two sessions
			seen[p.PID] = true
			out.Processes = append(out.Processes, Process{p.PID, p.Command})
		}
		threshold, batch := p.InFlight, p.Batch
		if threshold == 0 {
			threshold = l.DefaultInFlight
		}
		if batch == 0 {
			batch = min(l.DefaultBatch, threshold)
		}
		for _, q := range p.Queues {
			out.Queues = append(out.Queues, Queue{
				Handle: HandleOf(p.Session, q.Index), Device: deviceOf(q.Device), Level: q.Level, PID: p.PID,
				Threshold: int64(threshold), BatchSize: int64(batch),
				Ready: q.Busy, Suspended: q.State == "suspended" || q.State == "held" || q.State == "yielding",
				index: q.Index, own: q.Hints.PerQueue, pci: q.Device,
			})
		}
	}
	return out
}

// Find returns one queue and its process.
func (x Queues) Find(handle uint64) (QueueReply, bool) {
	for _, q := range x.Queues {
		if q.Handle != handle {
			continue
		}
		for _, p := range x.Processes {
			if p.PID == q.PID {
				return QueueReply{q, p}, true
			}
		}
	}
	return QueueReply{}, false
}
