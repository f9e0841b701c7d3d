// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// ProcessMQDs is a process in /sys/kernel/debug/kfd/mqds, with the host's pid.
type ProcessMQDs struct {
	PID    int        `json:"pid"`
	PASID  uint64     `json:"pasid"`
	Queues []MQDQueue `json:"queues"` // newest first; the dump has no queue ids
}

// MQDQueue is a queue with one descriptor per XCC.
type MQDQueue struct {
	Kind  QueueKind `json:"kind"`
	GPUID uint32    `json:"gpu_id"`
	Rings []Ring    `json:"rings"` // empty for SDMA and for non-gfx9 descriptors
}

// Ring returns the first XCC's view; all XCCs share the ring.
func (q MQDQueue) Ring() (Ring, bool) {
	if len(q.Rings) == 0 {
		return Ring{}, false
	}
	return q.Rings[0], true
}

// ParseMQDs parses the dump of memory queue descriptors. With ErrCut it returns the queues before the cut.
func ParseMQDs(r io.Reader) ([]ProcessMQDs, error) {
	var p mqdParser
	err := dumpLines(r, "mqds", p.line)
	p.flush()
	if err == nil && p.partial {
		err = fmt.Errorf("parse mqds: %w", ErrCut)
	}
	if q := p.queue(); q != nil && errors.Is(err, ErrCut) && len(q.Rings) == 0 {
		last := &p.out[len(p.out)-1]
		last.Queues = last.Queues[:len(last.Queues)-1]
	}
	return p.out, err
}

// mqdParser takes the lines of a dump.
type mqdParser struct {
	out     []ProcessMQDs
	words   blocks // of the last queue
	partial bool   // the last descriptor is cut
}

// queue is the last one; nil: its process has none yet.
func (p *mqdParser) queue() *MQDQueue {
	if len(p.out) == 0 || len(p.out[len(p.out)-1].Queues) == 0 {
		return nil
	}
	queues := p.out[len(p.out)-1].Queues
	return &queues[len(queues)-1]
}

// flush decodes the words of the last queue.
func (p *mqdParser) flush() {
	q := p.queue()
	p.partial = false
	for _, b := range p.words.list {
		if q == nil || q.Kind != KindCompute || len(b.words) == 0 || b.words[0] != mqdHeader {
			continue
		}
		ring, ok := decodeRing(b.words[min(mqdRegisters/4, len(b.words)):])
		if ok {
			q.Rings = append(q.Rings, ring)
		}
		p.partial = !ok
	}
	p.words = blocks{}
}

func (p *mqdParser) line(text string) error {
	if d, ok := parseDumpLine(text); ok {
		if p.queue() == nil {
			return fmt.Errorf("words without a queue: %w", ErrFormat)
		}
		return p.words.add(d)
	}
	switch trimmed := strings.TrimSpace(text); {
	case trimmed == "":
		return nil
	case strings.HasPrefix(trimmed, "Process "):
		p.flush()
		process, err := parseMQDProcess(trimmed)
		if err == nil {
			p.out = append(p.out, process)
		}
		return err
	case strings.Contains(trimmed, " queue on device "):
		p.flush()
		if len(p.out) == 0 {
			return fmt.Errorf("a queue without a process: %w", ErrFormat)
		}
		q, err := parseMQDQueue(trimmed)
		if err == nil {
			last := &p.out[len(p.out)-1]
			last.Queues = append(last.Queues, q)
		}
		return err
	default:
		return fmt.Errorf("unknown line %.60q: %w", text, ErrFormat)
	}
}

// parseMQDProcess parses "Process 94314 PASID 0x8001:". AMD's own driver package prints
// the PASID in decimal.
func parseMQDProcess(text string) (p ProcessMQDs, err error) {
	words := strings.Fields(strings.TrimSuffix(text, ":"))
	if len(words) != 4 || words[2] != "PASID" {
		return p, fmt.Errorf("unknown line %.60q: %w", text, ErrFormat)
	}
	pid, err := strconv.ParseUint(words[1], 10, 31)
	if err != nil {
		return p, fmt.Errorf("pid %.20q: %w", words[1], ErrFormat)
	}
	pasid, err := strconv.ParseUint(words[3], 0, 32)
	if err != nil {
		return p, fmt.Errorf("pasid %.20q: %w", words[3], ErrFormat)
	}
	return ProcessMQDs{PID: int(pid), PASID: pasid}, nil
}

// parseMQDQueue parses "Compute queue on device f7bc" and "SDMA queue on ...".
func parseMQDQueue(text string) (q MQDQueue, err error) {
	kind, device, _ := strings.Cut(text, " queue on device ")
	switch strings.ToLower(kind) {
	case "compute":
		q.Kind = KindCompute
	case "sdma":
		q.Kind = KindSDMA
	case "diq":
		q.Kind = KindDIQ
	default:
		return q, fmt.Errorf("kind of queue %.20q: %w", kind, ErrFormat)
	}
	id, ok := parseHex(strings.TrimSuffix(strings.TrimSpace(device), ":"))
	if !ok {
		return q, fmt.Errorf("device %.20q: %w", device, ErrFormat)
	}
	q.GPUID = id
	return q, nil
}
