// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/model"
)

// Operations of submit.
const (
	opKernel = iota
	opCopy
	opFill
	opWait
	opMark
)

// Copies and fills run as kernels of the runtime at this rate.
const (
	copyStart   = 2 * time.Microsecond
	copyBytesNS = 25
	maxCopy     = 1 << 32
)

// effect is what work does to GPU memory. Addresses are offsets plus 1; 0 is none.
type effect struct {
	op, width, value uint32
	dst, src         uint64
	amount           uint64 // duration of a kernel, bytes of a copy
}

func (e effect) valid() bool {
	const end = 1 << 40
	if e.dst > end || e.src > end {
		return false
	}
	switch e.op {
	case opKernel:
		return e.amount <= uint64(time.Minute)
	case opCopy:
		return e.dst != 0 && e.src != 0 && e.amount <= maxCopy
	case opFill:
		return e.dst != 0 && e.amount <= maxCopy && (e.width == 1 || e.width == 2 || e.width == 4) && e.amount%uint64(e.width) == 0
	}
	return e.op == opWait || e.op == opMark
}

func (e effect) duration() time.Duration {
	if e.op == opKernel {
		return time.Duration(max(e.amount, 1))
	}
	return copyStart + time.Duration(e.amount/copyBytesNS)
}

// vram is the file behind a process's memory on a GPU, from ACQUIRE_VM. It is read and written but
// never mapped, because the process can truncate it at any time.
type vram struct{ fd int }

func (v vram) fold(at uint64, seed uint32, from, to int) {
	word := v.word(at)
	for b := from; b < to; b++ {
		word = Fold(word, seed, uint32(b))
	}
	v.setWord(at, word)
}

// apply applies the effect of completed work.
func (v vram) apply(e effect, at model.Time) {
	switch {
	case e.dst == 0:
	case e.op == opKernel:
		v.setWord(e.dst-1+8, v.word(e.dst-1+8)+1)
	case e.op == opMark:
		v.setWord(e.dst-1, uint64(at))
	case e.op == opCopy:
		v.copy(e.dst-1, e.src-1, e.amount)
	case e.op == opFill:
		v.fill(e)
	}
}

func (v vram) word(at uint64) uint64 {
	var b [8]byte
	_, _ = unix.Pread(v.fd, b[:], int64(at))
	return binary.LittleEndian.Uint64(b[:])
}

func (v vram) setWord(at, word uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], word)
	_, _ = unix.Pwrite(v.fd, b[:], int64(at))
}

const copyChunk = 1 << 16

func (v vram) copy(dst, src, bytes uint64) {
	buffer := make([]byte, min(bytes, copyChunk))
	for bytes > 0 {
		part := buffer[:min(bytes, copyChunk)]
		n, err := unix.Pread(v.fd, part, int64(src))
		if err != nil || n <= 0 {
			return
		}
		if _, err = unix.Pwrite(v.fd, part[:n], int64(dst)); err != nil {
			return
		}
		dst, src, bytes = dst+uint64(n), src+uint64(n), bytes-uint64(n)
	}
}

func (v vram) fill(e effect) {
	var value [4]byte
	binary.LittleEndian.PutUint32(value[:], e.value)
	buffer := make([]byte, min(e.amount, copyChunk))
	for i := range buffer {
		buffer[i] = value[i%int(e.width)]
	}
	for at, left := e.dst-1, e.amount; left > 0; {
		part := min(left, copyChunk)
		if _, err := unix.Pwrite(v.fd, buffer[:part], int64(at)); err != nil {
			return
		}
		at, left = at+part, left-part
	}
}

// keep takes over the file that came with ACQUIRE_VM.
func (p *Process) keep(gpu uint32, c *call) {
	if _, kept := p.vram[gpu]; !kept {
		p.vram[gpu] = vram{c.fd}
		c.fd = -1
	}
}

// memoryOf returns the file of a GPU, or -1.
func (p *Process) memoryOf(gpu uint32) vram {
	if v, ok := p.vram[gpu]; ok {
		return v
	}
	return vram{-1}
}
