// SPDX-License-Identifier: Apache-2.0

// Package amd controls hardware queues of the amdkfd driver. The shim updates a process's own
// queues, or a debugger suspends them from outside. Parsers read the driver's debugfs dumps (mqds,
// hqds) and /sys/class/kfd/kfd.
package amd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

// QueueKind is a queue's purpose, as named in the dumps.
type QueueKind string

// Kinds of queues in dumps. HIQ is the driver's queue to the firmware.
const (
	KindCompute QueueKind = "compute"
	KindSDMA    QueueKind = "sdma"
	KindHIQ     QueueKind = "hiq"
	KindDIQ     QueueKind = "diq"
)

// ErrFormat marks text that is not a dump of the driver.
var ErrFormat = errors.New("not in the driver's format")

// ErrCut marks a dump that ends within a line or a descriptor. What precedes is whole.
var ErrCut = errors.New("the dump is cut; the queues behind the cut are unknown")

// maxDumpWords limits a register block; a memory queue descriptor has 512.
const maxDumpWords = 4096

// Ring is a queue's state in a descriptor or register set. From
// drivers/gpu/drm/amd/include/v9_structs.h: offsets of the gfx9 family.
type Ring struct {
	Address       uint64 `json:"address"` // ring address: the log's HWq, and ring_base_address
	Bytes         uint64 `json:"bytes"`
	MQD           uint64 `json:"mqd"`
	Active        bool   `json:"active"` // the queue exists; says nothing about execution
	VMID          uint32 `json:"vmid"`
	PipePriority  uint32 `json:"pipe_priority"`
	QueuePriority uint32 `json:"queue_priority"`
	ReadPointer   uint64 `json:"rptr"` // in dwords; a packet has 16
	WritePointer  uint64 `json:"wptr"`
	ReadReport    uint64 `json:"rptr_report"`
	WritePoll     uint64 `json:"wptr_poll"`
	Doorbell      uint32 `json:"doorbell"` // in dwords from the start of the page
	Empty         bool   `json:"empty"`
	AQL           bool   `json:"aql"`
	SaveAddress   uint64 `json:"save_address"` // where preempted waves are saved
	SaveBytes     uint32 `json:"save_bytes"`
}

const (
	packetDwords = 16
	mqdHeader    = 0xc0310800 // first word of a gfx9 compute descriptor
	mqdRegisters = 0x200      // offset of the register copy
	hqdFirst     = 0xc914     // byte address of the first register, in the first XCC
	hqdXCC       = 0xffff     // registers of other XCCs differ above these bits
)

// Offsets from the first register, in bytes.
const (
	regMQD      = 0x00
	regActive   = 0x08
	regVMID     = 0x0c
	regPipe     = 0x14
	regQueue    = 0x18
	regBase     = 0x20
	regRead     = 0x28
	regReport   = 0x2c
	regPoll     = 0x34
	regDoorbell = 0x3c
	regControl  = 0x44
	regSave     = 0xac
	regSaveSize = 0xc4
	regAQL      = 0xd4
	regWrite    = 0xd8
	regEnd      = 0xe0
)

// decodeRing decodes words from the first register on.
func decodeRing(words []uint32) (Ring, bool) {
	if len(words)*4 < regEnd {
		return Ring{}, false
	}
	at := func(offset int) uint32 { return words[offset/4] }
	pair := func(offset int) uint64 { return uint64(at(offset+4))<<32 | uint64(at(offset)) }
	control := at(regControl)
	r := Ring{
		Address:       pair(regBase) << 8,
		Bytes:         4 << ((control & 0x3f) + 1),
		MQD:           pair(regMQD),
		Active:        at(regActive)&1 != 0,
		VMID:          at(regVMID) & 0xf,
		PipePriority:  at(regPipe),
		QueuePriority: at(regQueue),
		ReadPointer:   uint64(at(regRead)),
		WritePointer:  pair(regWrite),
		ReadReport:    pair(regReport),
		WritePoll:     pair(regPoll),
		Doorbell:      at(regDoorbell) & 0x0ffffffc >> 2,
		Empty:         control&(1<<15) != 0,
		AQL:           at(regAQL)&1 != 0,
		SaveAddress:   pair(regSave),
		SaveBytes:     at(regSaveSize),
	}
	return r, true
}

// dumpLine is a line such as "    00000000: c0310800 00000000 ...".
type dumpLine struct {
	address uint32
	words   [8]uint32
	n       int
}

// parseDumpLine parses a line of words; ok is false for any other line.
func parseDumpLine(text string) (d dumpLine, ok bool) {
	address, rest, found := strings.Cut(strings.TrimLeft(text, " \t"), ":")
	if !found || len(address) != 8 {
		return d, false
	}
	if d.address, ok = parseHex(address); !ok {
		return d, false
	}
	for word := range strings.FieldsSeq(rest) {
		if d.n == len(d.words) || len(word) != 8 {
			return d, false
		}
		if d.words[d.n], ok = parseHex(word); !ok {
			return d, false
		}
		d.n++
	}
	return d, d.n > 0
}

// parseHex parses up to eight digits.
func parseHex(s string) (uint32, bool) {
	if s == "" || len(s) > 8 {
		return 0, false
	}
	var v uint32
	for i := range len(s) {
		c := s[i] | 0x20
		switch {
		case s[i] >= '0' && s[i] <= '9':
			v = v<<4 | uint32(s[i]-'0')
		case c >= 'a' && c <= 'f':
			v = v<<4 | uint32(c-'a'+10)
		default:
			return 0, false
		}
	}
	return v, true
}

// block is a run of dump lines with ascending addresses.
type block struct {
	first uint32
	words []uint32
}

// blocks collects dump lines. A non-contiguous line starts the next block, which separates the
// descriptors of several XCCs.
type blocks struct{ list []block }

func (b *blocks) add(d dumpLine) error {
	if n := len(b.list); n > 0 {
		last := &b.list[n-1]
		if uint64(d.address) == uint64(last.first)+4*uint64(len(last.words)) && len(last.words) < maxDumpWords {
			last.words = append(last.words, d.words[:d.n]...)
			return nil
		}
	}
	if len(b.list) >= 64 {
		return fmt.Errorf("more than 64 blocks in one queue: %w", ErrFormat)
	}
	b.list = append(b.list, block{d.address, append([]uint32(nil), d.words[:d.n]...)})
	return nil
}

// dumpLines calls line for each line of r and adds line numbers to errors. A last line without an end that
// is not understood is a cut.
func dumpLines(r io.Reader, what string, line func(string) error) error {
	s := bufio.NewScanner(r)
	ended := true // the line is
	s.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		advance, token, err := bufio.ScanLines(data, atEOF)
		ended = advance == 0 || data[advance-1] == '\n'
		return advance, token, err
	})
	for n := 1; s.Scan(); n++ {
		err := line(s.Text())
		switch {
		case err != nil && !ended:
			return fmt.Errorf("parse %s, line %d: %w", what, n, ErrCut)
		case err != nil:
			return fmt.Errorf("parse %s, line %d: %w", what, n, err)
		}
	}
	switch err := s.Err(); {
	case errors.Is(err, io.ErrUnexpectedEOF): // of a compressed file
		return fmt.Errorf("read %s: %w", what, ErrCut)
	case err != nil:
		return fmt.Errorf("read %s: %w", what, err)
	}
	return nil
}
