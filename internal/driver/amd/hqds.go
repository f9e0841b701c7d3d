// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// HQDNode is a GPU in /sys/kernel/debug/kfd/hqds.
type HQDNode struct {
	Node  int    `json:"node"`
	GPUID uint32 `json:"gpu_id"`
	Slots []HQD  `json:"slots"`
}

// HQD is a hardware queue slot. Only here does a running queue, loaded by the firmware, differ from
// a waiting one.
type HQD struct {
	Kind     QueueKind `json:"kind"`
	Instance int       `json:"instance"` // XCC
	MEC      int       `json:"mec"`      // of the HIQ
	Pipe     int       `json:"pipe"`     // of SDMA: the engine
	Queue    int       `json:"queue"`    // of SDMA: the RLC
	Ring     *Ring     `json:"ring,omitempty"`
}

// Loaded reports whether the slot holds a queue.
func (h HQD) Loaded() bool { return h.Ring != nil && h.Ring.Active && h.Ring.Address != 0 }

// ParseHQDs parses the dump of hardware queue slots.
func ParseHQDs(r io.Reader) ([]HQDNode, error) {
	var out []HQDNode
	var words blocks
	flush := func() {
		if len(out) == 0 || len(out[len(out)-1].Slots) == 0 {
			words = blocks{}
			return
		}
		n := &out[len(out)-1]
		h := &n.Slots[len(n.Slots)-1]
		if h.Kind != KindSDMA && len(words.list) > 0 && words.list[0].first&hqdXCC == hqdFirst {
			if ring, ok := decodeRing(words.list[0].words); ok {
				h.Ring = &ring
			}
		}
		words = blocks{}
	}
	err := dumpLines(r, "hqds", func(text string) error {
		if d, ok := parseDumpLine(text); ok {
			if len(out) == 0 || len(out[len(out)-1].Slots) == 0 {
				return fmt.Errorf("words without a queue: %w", ErrFormat)
			}
			return words.add(d)
		}
		trimmed := strings.TrimSpace(text)
		if trimmed == "" {
			return nil
		}
		flush()
		if rest, ok := strings.CutPrefix(trimmed, "Node "); ok {
			n, err := parseHQDNode(rest)
			if err != nil {
				return err
			}
			out = append(out, n)
			return nil
		}
		if len(out) == 0 {
			return fmt.Errorf("a slot without a node: %w", ErrFormat)
		}
		h, err := parseHQDSlot(trimmed)
		if err != nil {
			return err
		}
		n := &out[len(out)-1]
		n.Slots = append(n.Slots, h)
		return nil
	})
	flush()
	return out, err
}

// parseHQDNode parses "2, gpu_id f7bc:".
func parseHQDNode(text string) (n HQDNode, err error) {
	node, id, found := strings.Cut(strings.TrimSuffix(text, ":"), ", gpu_id ")
	number, bad := strconv.ParseUint(node, 10, 16)
	gpu, ok := parseHex(id)
	if !found || bad != nil || !ok {
		return n, fmt.Errorf("node %.40q: %w", text, ErrFormat)
	}
	return HQDNode{Node: int(number), GPUID: gpu}, nil
}

// parseHQDSlot parses "Inst 0, HIQ on MEC 2 Pipe 0 Queue 0", "Inst 0,  CP Pipe 0, Queue 2" and
// "SDMA Engine 0, RLC 0". Older drivers omit the instance.
func parseHQDSlot(text string) (h HQD, err error) {
	words := strings.Fields(strings.ReplaceAll(strings.TrimSuffix(text, ":"), ",", " "))
	h.Kind = KindCompute
	for i := 0; i < len(words); i++ {
		var into *int
		switch words[i] {
		case "HIQ":
			h.Kind = KindHIQ
			continue
		case "SDMA":
			h.Kind = KindSDMA
			continue
		case "CP", "on":
			continue
		case "Inst":
			into = &h.Instance
		case "MEC":
			into = &h.MEC
		case "Pipe", "Engine":
			into = &h.Pipe
		case "Queue", "RLC":
			into = &h.Queue
		default:
			return h, fmt.Errorf("unknown line %.60q: %w", text, ErrFormat)
		}
		if i++; i == len(words) {
			return h, fmt.Errorf("unknown line %.60q: %w", text, ErrFormat)
		}
		v, bad := strconv.ParseUint(words[i], 10, 16)
		if bad != nil {
			return h, fmt.Errorf("unknown line %.60q: %w", text, ErrFormat)
		}
		*into = int(v)
	}
	return h, nil
}
