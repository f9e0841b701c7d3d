// SPDX-License-Identifier: Apache-2.0

package vdevice

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"xsched/internal/model"
	gpumodel "xsched/internal/virtual/model"
)

// A query is a packet of magic number and JSON. Its reply is packets of magic number, flags and
// JSON: pieces of one document, with flagLast in the last.
const (
	TruthMagic  = 0x47444756 // "VGDG"
	flagLast    = 1
	truthHeader = 8
	truthPiece  = 32 << 10
)

// Query asks a device for its ground truth or changes its faults.
type Query struct {
	Op    string `json:"op"` // stats, timeline, waits, fault, clear-faults, quit
	From  int64  `json:"from,omitempty"`
	To    int64  `json:"to,omitempty"`
	Fault string `json:"fault,omitempty"`
}

// Reply answers a Query.
type Reply struct {
	Error string          `json:"error,omitempty"`
	Stats *Stats          `json:"stats,omitempty"`
	Spans []gpumodel.Span `json:"spans,omitempty"`
	Waits []gpumodel.Wait `json:"waits,omitempty"`
}

// Stats is the state of a device process.
type Stats struct {
	NowNS   int64              `json:"now_ns"`
	Devices []gpumodel.Totals  `json:"devices"`
	Clients []gpumodel.Account `json:"clients"` // in the order of their first connection
	Files   int                `json:"files"`   // open connections to the driver

	// Remaps counts how often a GPU's queues were all unmapped and mapped again. AMD only.
	Remaps uint64 `json:"remaps,omitempty"`

	Objects  int `json:"objects"`  // RM objects. NVIDIA only
	Contexts int `json:"contexts"` // mapped submission memories. NVIDIA only

	Memory []MemoryUse `json:"memory,omitempty"` // device memory by process

	Held []Held `json:"held,omitempty"` // controls in progress on GPUs that hang. NVIDIA only

	// Wake-up latency of the device thread: the noise of the machine. NVIDIA only.
	Wakes         uint64 `json:"wakes"`
	WakeLateMean  int64  `json:"wake_late_mean_ns"`
	WakeLateMax   int64  `json:"wake_late_max_ns"`
	WakesOver100u uint64 `json:"wakes_over_100us"`
}

// MemoryUse is the memory that one process has on one GPU.
type MemoryUse struct {
	Device int    `json:"device"`
	PID    int    `json:"pid"`
	Bytes  uint64 `json:"bytes"`
}

// Held is a control that a GPU will answer once it no longer hangs.
type Held struct {
	Device  int    `json:"device"`
	Command uint32 `json:"command"`
}

// Client returns the account of a process, the newest if the number was reused.
func (s *Stats) Client(pid int) (gpumodel.Account, bool) {
	for _, a := range slices.Backward(s.Clients) {
		if a.PID == pid {
			return a, true
		}
	}
	return gpumodel.Account{}, false
}

// MemoryOf returns the device memory of a process on a GPU.
func (s *Stats) MemoryOf(pid, device int) uint64 {
	for _, m := range s.Memory {
		if m.PID == pid && m.Device == device {
			return m.Bytes
		}
	}
	return 0
}

// Look answers a query from the devices' timelines, or says that the operation is unknown.
func Look(q Query, timelines []*gpumodel.Timeline) (r Reply) {
	from, to := model.Time(q.From), model.Time(q.To)
	switch q.Op {
	case "timeline":
		for _, l := range timelines {
			r.Spans = append(r.Spans, l.Spans(from, to)...)
		}
	case "waits":
		for _, l := range timelines {
			r.Waits = append(r.Waits, l.Waits(from, to)...)
		}
	default:
		r.Error = "unknown request " + strconv.Quote(q.Op)
	}
	return r
}

// Answer answers queries on a connection until it ends. The first packet may have been read
// already. Only trusted peers may change the device.
func Answer(c net.Conn, first []byte, trusted bool, look func(Query) Reply) error {
	buffer := make([]byte, 4096)
	for packet := first; ; packet = nil {
		if packet == nil {
			n, err := c.Read(buffer)
			if err != nil || n == 0 {
				return err
			}
			packet = buffer[:n]
		}
		if len(packet) < 4 || binary.LittleEndian.Uint32(packet) != TruthMagic {
			return fmt.Errorf("read query: %w", ErrPacket)
		}
		var q Query
		if err := json.Unmarshal(packet[4:], &q); err != nil {
			return fmt.Errorf("read query: %w", err)
		}
		reply := Reply{Error: "permission denied: only root and the device's user may do this"}
		if trusted || q.Op == "stats" || q.Op == "timeline" || q.Op == "waits" {
			reply = look(q)
		}
		body, err := json.Marshal(reply)
		if err != nil {
			return fmt.Errorf("encode reply: %w", err)
		}
		if err := writePieces(c, body); err != nil {
			return err
		}
	}
}

func writePieces(c net.Conn, body []byte) error {
	for last := false; !last; {
		piece := body[:min(len(body), truthPiece)]
		body = body[len(piece):]
		last = len(body) == 0
		out := make([]byte, truthHeader, truthHeader+len(piece))
		binary.LittleEndian.PutUint32(out, TruthMagic)
		if last {
			binary.LittleEndian.PutUint32(out[4:], flagLast)
		}
		_ = c.SetWriteDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Write(append(out, piece...)); err != nil {
			return fmt.Errorf("send reply: %w", err)
		}
	}
	return nil
}
