// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/model"
	gpumodel "xsched/internal/virtual/model"
)

// The layout of shim/virtual/vgpu.h; a test compares both.
const (
	ringEntries    = 1024
	headerBytes    = 4096
	entryBytes     = 64
	numberShift    = 44 // of an offset: whose memory
	channelBytes   = headerBytes + ringEntries*entryBytes
	areaMagic      = 0x41414756
	noAddress      = ^uint64(0)
	blockNS        = 10000
	offsetAsk      = 12 // of the control block: not 0: ask before a copy
	offsetPut      = 0
	offsetWaiters  = 8
	offsetDone     = 64
	offsetDone32   = 72
	offsetError    = 76
	longestKernel  = time.Hour
	shortestKernel = time.Microsecond
	mostUpload     = 64 << 10  // a larger copy never goes through the compute channel
	inlineCopy     = 256 << 10 // larger copies run in the background
)

// area is the memory that a context shares with the device: a control block with rings, and VRAM.
// It is hostile input: the client can change every byte at any time.
type area struct {
	control  []byte
	vram     []byte
	doorbell int
	send     [2]int // control and VRAM descriptors until sent
	gpu      *gpumodel.GPU
	device   int // number of the GPU
	account  *gpumodel.Account
	channels []*areaChannel

	number   uint64
	siblings map[uint64]*area   // of the same file, by number
	movers   sync.WaitGroup     // copies that use its memory
	finished func(*areaChannel) // called by a mover
	changed  func(*area)        // schedules publication of a fence
	forget   func()             // the doorbell is about to be closed
	dirty    bool
	closed   bool
}

// areaChannel is a channel's ring and the Sink of its work.
type areaChannel struct {
	area    *area
	base    int // offset of its block in control
	channel *gpumodel.Channel
	fetched uint64
	done    uint64
	dirty   bool
	dead    bool
	moved   atomic.Bool // the background copy is complete
}

// newArea creates the memory for the channels of one compute group. /proc shows the name for a
// process that maps it, like the device file of a real GPU.
func newArea(name string, vramBytes int64, gpu *gpumodel.GPU, account *gpumodel.Account, group *gpumodel.Group, lanes []*gpumodel.Group) (_ *area, err error) {
	a := &area{gpu: gpu, account: account, doorbell: -1, send: [2]int{-1, -1}}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	if a.send[0], a.control, err = sharedMemory(name, int64(headerBytes+len(group.Channels())*channelBytes)); err != nil {
		return nil, err
	}
	if a.send[1], a.vram, err = sharedMemory("vgpu-vram", vramBytes); err != nil {
		return nil, err
	}
	if a.doorbell, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return nil, fmt.Errorf("create doorbell: %w", err)
	}
	le := binary.LittleEndian
	le.PutUint32(a.control, areaMagic)
	le.PutUint32(a.control[4:], uint32(len(group.Channels())))
	le.PutUint32(a.control[8:], ringEntries)
	for i, c := range group.Channels() {
		ch := &areaChannel{area: a, base: headerBytes + i*channelBytes, channel: c}
		c.SetSink(ch)
		c.SetLanes(lanes)
		a.channels = append(a.channels, ch)
	}
	return a, nil
}

// sharedMemory returns zeroed memory, sealed against resizing.
func sharedMemory(name string, size int64) (int, []byte, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, nil, fmt.Errorf("create %s: %w", name, err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		return fd, nil, fmt.Errorf("size %s: %w", name, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return fd, nil, fmt.Errorf("seal %s: %w", name, err)
	}
	memory, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return fd, nil, fmt.Errorf("map %s: %w", name, err)
	}
	return fd, memory, nil
}

// askBeforeCopies sets whether the client asks before each copy from or to registered host memory.
func (a *area) askBeforeCopies(f *gpumodel.Faults) {
	ask := slices.ContainsFunc(f.Steps, func(s *gpumodel.StepFault) bool { return s.Op == memoryCopy })
	store32(a.control, offsetAsk, map[bool]uint32{true: 1}[ask])
}

// fds returns the descriptors for the client.
func (a *area) fds() []int { return []int{a.send[0], a.send[1], a.doorbell} }

// sent closes the descriptors that only the client needs.
func (a *area) sent() {
	for i, fd := range a.send {
		if fd >= 0 {
			_ = unix.Close(fd)
			a.send[i] = -1
		}
	}
}

func (a *area) close() {
	if a.closed {
		return
	}
	a.closed = true
	delete(a.siblings, a.number)
	a.sent()
	if a.forget != nil {
		a.forget()
	}
	if a.doorbell >= 0 {
		_ = unix.Close(a.doorbell)
	}
	a.movers.Wait()
	if a.control != nil {
		_ = unix.Munmap(a.control)
	}
	if a.vram != nil {
		_ = unix.Munmap(a.vram)
	}
	a.control, a.vram = nil, nil
}

// submission is work read from a ring.
type submission struct {
	at   model.Time
	area *area
	ch   *areaChannel
	work gpumodel.Work
}

var errEntry = errors.New("bad entry")

// collect reads new entries from the client's rings. It reads every word once; an invalid entry
// kills the channel.
func (a *area) collect(now model.Time, out []submission) []submission {
	for _, ch := range a.channels {
		if ch.dead {
			continue
		}
		put := load64(a.control, ch.base+offsetPut)
		if put < ch.fetched || put > ch.done+ringEntries {
			ch.kill()
			continue
		}
		var last model.Time
		for ch.fetched < put {
			var e [entryBytes]byte
			slot := ch.base + headerBytes + int(ch.fetched%ringEntries)*entryBytes
			copy(e[:], a.control[slot:slot+entryBytes])
			at, work, err := a.decode(&e, now)
			if err != nil {
				ch.kill()
				break
			}
			ch.fetched++
			work.Seq = ch.fetched
			last = max(last, at)
			out = append(out, submission{last, a, ch, work})
		}
	}
	return out
}

// decode reads a ring entry and checks that every address lies in VRAM.
func (a *area) decode(e *[entryBytes]byte, now model.Time) (model.Time, gpumodel.Work, error) {
	le := binary.LittleEndian
	op, width := le.Uint32(e[0:]), le.Uint32(e[4:])
	at := model.Time(le.Uint64(e[8:]))
	amount, dst, src := le.Uint64(e[16:]), le.Uint64(e[24:]), le.Uint64(e[32:])
	w := gpumodel.Work{
		Kind: gpumodel.WorkKind(op), Dst: dst, Src: src,
		Seed: le.Uint32(e[40:]), Width: width,
	}
	if at > now || at < 0 {
		at = now
	}
	switch {
	case op == 0 || op > uint32(gpumodel.WorkValue):
		return 0, w, errEntry
	case w.Kind == gpumodel.WorkKernel:
		if amount > uint64(longestKernel) || dst != noAddress && !a.inside(dst, 16) {
			return 0, w, errEntry
		}
		w.Duration = max(time.Duration(amount), shortestKernel)
	case w.Kind == gpumodel.WorkCopy, w.Kind == gpumodel.WorkFill:
		w.Bytes = int64(amount)
		w.Lane = int(le.Uint32(e[44:]))
		if w.Lane > gpumodel.LaneCompute || w.Lane == gpumodel.LaneCompute && (w.Kind != gpumodel.WorkCopy || w.Bytes > mostUpload) || !a.inside(dst, amount) || w.Kind == gpumodel.WorkCopy && !a.inside(src, amount) {
			return 0, w, errEntry
		}
		if w.Kind == gpumodel.WorkFill && (bits.OnesCount32(width) != 1 || width > 4 || amount%uint64(width) != 0) {
			return 0, w, errEntry
		}
	case w.Kind == gpumodel.WorkWait:
		n := le.Uint32(e[48:])
		if n >= uint32(len(a.channels)) {
			return 0, w, errEntry
		}
		w.On, w.OnSeq = a.channels[n].channel, le.Uint64(e[56:])
	case w.Kind == gpumodel.WorkMark:
		if dst != noAddress && !a.inside(dst, 8) {
			return 0, w, errEntry
		}
	case w.Kind == gpumodel.WorkValue:
		if dst%4 != 0 || !a.inside(dst, 4) {
			return 0, w, errEntry
		}
	}
	return at, w, nil
}

// owner returns the area that an offset is in: the area itself, or another one of the same process and device.
func (a *area) owner(offset uint64) *area {
	n := offset >> numberShift
	if n == 0 {
		return a
	}
	if other := a.siblings[n]; other != nil && !other.closed && other.device == a.device {
		return other
	}
	return nil
}

// view returns a range of VRAM; nil: there is none. Alignment is not required.
func (a *area) view(offset, bytes uint64) []byte {
	owner := a.owner(offset)
	if owner == nil {
		return nil
	}
	offset &= 1<<numberShift - 1
	if offset > uint64(len(owner.vram)) || bytes > uint64(len(owner.vram))-offset {
		return nil
	}
	return owner.vram[offset : offset+bytes : offset+bytes]
}

// inside reports whether a range lies in VRAM.
func (a *area) inside(offset, bytes uint64) bool { return a.view(offset, bytes) != nil }

// kill disables a channel and sets its error word for the client.
func (ch *areaChannel) kill() {
	ch.dead = true
	ch.area.account.Faults++
	store32(ch.area.control, ch.base+offsetError, 1)
	wakeAll(ch.area.control, ch.base+offsetDone32)
}

// fold applies one executed block to a kernel's result word, like vg_fold in vgpu.h.
func fold(word uint64, seed, block uint32) uint64 {
	word ^= uint64(seed)<<32 | uint64(block)
	return bits.RotateLeft64(word, 23)*0x9E3779B97F4A7C15 + 1
}

// Blocks implements Sink.
func (ch *areaChannel) Blocks(w *gpumodel.Work, from, to int) {
	if w.Dst == noAddress {
		return
	}
	at := ch.area.view(w.Dst, 8)
	if at == nil {
		return // freed meanwhile
	}
	word := binary.LittleEndian.Uint64(at)
	for b := from; b < to; b++ {
		word = fold(word, w.Seed, uint32(b))
	}
	binary.LittleEndian.PutUint64(at, word)
}

// Done implements Sink. The next flush publishes the fence.
func (ch *areaChannel) Done(w *gpumodel.Work, at model.Time) {
	le := binary.LittleEndian
	if w.Kind == gpumodel.WorkCopy && w.Lane == gpumodel.LaneCompute {
		dst, src := ch.area.ends(w)
		move(w, dst, src)
	}
	if words := ch.area.view(w.Dst, 8); words != nil {
		switch w.Kind {
		case gpumodel.WorkKernel:
			if count := ch.area.view(w.Dst+8, 8); count != nil {
				le.PutUint64(count, le.Uint64(count)+1)
			}
		case gpumodel.WorkMark:
			le.PutUint64(words, uint64(at))
		case gpumodel.WorkCopy, gpumodel.WorkFill, gpumodel.WorkWait, gpumodel.WorkValue:
		}
	}
	ch.done = w.Seq
	ch.dirty = true
	if !ch.area.dirty {
		ch.area.dirty = true
		ch.area.changed(ch.area)
	}
}

// CopyStart implements Sink.
func (ch *areaChannel) CopyStart(w *gpumodel.Work) {
	if w.Bytes <= inlineCopy {
		return
	}
	ch.moved.Store(false)
	job := *w
	dst, src := ch.area.ends(w)
	users := []*area{ch.area, ch.area.owner(w.Dst), ch.area.owner(w.Src)}
	for _, user := range users {
		if user != nil {
			user.movers.Add(1)
		}
	}
	go func() {
		move(&job, dst, src)
		ch.moved.Store(true)
		for _, user := range users { // before finished: close waits for it on the thread that finished needs
			if user != nil {
				user.movers.Done()
			}
		}
		ch.area.finished(ch)
	}()
}

// CopyReady implements Sink.
func (ch *areaChannel) CopyReady(w *gpumodel.Work) bool {
	if w.Bytes <= inlineCopy {
		dst, src := ch.area.ends(w)
		move(w, dst, src)
		return true
	}
	return ch.moved.Load()
}

// Reached implements Sink.
func (ch *areaChannel) Reached(w *gpumodel.Work) bool {
	word := ch.area.view(w.Dst, 4)
	return word == nil || int32(load32(word, 0)-w.Seed) >= 0
}

// ends returns the memory that a copy or a fill uses.
func (a *area) ends(w *gpumodel.Work) (dst, src []byte) {
	dst = a.view(w.Dst, uint64(w.Bytes))
	if w.Kind == gpumodel.WorkCopy {
		src = a.view(w.Src, uint64(w.Bytes))
	}
	return dst, src
}

// move executes a copy or a fill.
func move(w *gpumodel.Work, dst, src []byte) {
	if w.Kind == gpumodel.WorkCopy {
		copy(dst, src)
		return
	}
	if len(dst) == 0 {
		return
	}
	var pattern [4]byte
	binary.LittleEndian.PutUint32(pattern[:], w.Seed)
	n := copy(dst, pattern[:w.Width])
	for n < len(dst) { // double the filled part
		n += copy(dst[n:], dst[:n])
	}
}

// flush publishes the fences.
func (a *area) flush() {
	a.dirty = false
	if a.closed {
		return
	}
	for _, ch := range a.channels {
		if !ch.dirty {
			continue
		}
		ch.dirty = false
		store64(a.control, ch.base+offsetDone, ch.done)
		store32(a.control, ch.base+offsetDone32, uint32(ch.done))
		if load32(a.control, ch.base+offsetWaiters) != 0 {
			wakeAll(a.control, ch.base+offsetDone32)
		}
	}
}

// discard is the Sink of a channel without submission memory.
type discard struct{}

func (discard) Blocks(*gpumodel.Work, int, int) {}
func (discard) CopyStart(*gpumodel.Work)        {}
func (discard) CopyReady(*gpumodel.Work) bool   { return true }
func (discard) Reached(*gpumodel.Work) bool     { return true }
func (discard) Done(*gpumodel.Work, model.Time) {}
