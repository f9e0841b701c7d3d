// SPDX-License-Identifier: Apache-2.0

package amdlog

import "bytes"

// kind classifies messages.
type kind uint8

const (
	other    kind = iota
	dispatch      // a kernel packet
	barrier       // a barrier packet
	shader        // the name of the thread's next kernel
	created       // creation of a hardware queue
	deleted
	acquired // a stream acquired a hardware queue
	released
	command // a kernel that the application enqueued
	failed  // a call that launches kernels returned an error
)

// event is a parsed message.
type event struct {
	time, hwq, swq uint64 // swq of a command is the runtime's queue object
	rptr, wptr     uint64 // packet numbers
	object         uint64 // kernel_obj: address of the code
	grid, group    [3]uint32
	size           uint32 // capacity of the queue in packets
	writer         uint32 // index into chunk.writers
	name           [2]int32
	id             int32 // HSA's counter, not the kernel driver's queue id
	priority       int32 // 0 low, 1 normal, 2 high, at creation
	kind           kind
	hasGrid        bool // clustered dispatches have none
	hasPointers    bool // rptr and wptr are valid
	cut            bool // the message is truncated
}

const (
	dispatchMark = "Dispatch Header"
	barrierMark  = "Barrier"
	headerMark   = "Header = 0x"
	shaderMark   = "ShaderName :"
	createdMark  = "Created SWq="
	oldMark      = "created hardware queue 0x"
	deletedMark  = "Deleting hardware queue 0x"
	acquiredMark = "acquireQueue refCount: 0x"
	selectedMark = "Selected queue refCount: 0x"
	releasedMark = "releaseQueue refCount:0x"
	commandMark  = "Command (KernelExecution) enqueued"
	failedMark   = ": Returned hipError"
	returnedMark = ": Returned "
)

// classify compares only the start of a message, because most messages are
// irrelevant.
func classify(m []byte) kind {
	if len(m) < 5 {
		return other
	}
	switch m[0] {
	case 'S':
		switch m[1] {
		case 'W':
			if m[2] == 'q' && m[3] == '=' {
				return packetKind(m)
			}
		case 'h':
			if has(m, shaderMark) {
				return shader
			}
		case 'e':
			if has(m, selectedMark) {
				return acquired
			}
		}
	case 'H':
		if m[1] == 'W' && m[2] == 'q' && m[3] == '=' {
			return packetKind(m)
		}
	case 'C':
		if has(m, createdMark) {
			return created
		}
		if has(m, commandMark) {
			return command
		}
	case 'c':
		if has(m, oldMark) {
			return created
		}
	case 'D':
		if has(m, deletedMark) {
			return deleted
		}
	case 'a':
		if has(m, acquiredMark) {
			return acquired
		}
	case 'r':
		if has(m, releasedMark) {
			return released
		}
	case 'h':
		// The runtime's internal ihipLaunchKernel reports the same failure once more.
		if i := bytes.IndexByte(m, ':'); i > 0 && has(m[i:], failedMark) && bytes.Contains(m[:i], []byte("Launch")) {
			return failed
		}
	}
	return other
}

func has(m []byte, mark string) bool { return len(m) >= len(mark) && string(m[:len(mark)]) == mark }

// packetKind distinguishes kernels from barriers in a message that starts with
// the queue. A message truncated before either is other.
func packetKind(m []byte) kind {
	if bytes.Contains(m, []byte(dispatchMark)) {
		return dispatch
	}
	if bytes.Contains(m, []byte(barrierMark)) {
		return barrier
	}
	return other
}

// fields iterates over "key=value, key=value". All releases order the keys
// alike, so every search continues where the last one ended.
type fields struct{ m []byte }

// find advances past key.
func (f *fields) find(key string) bool {
	i := bytes.Index(f.m, []byte(key))
	if i < 0 {
		return false
	}
	f.m = f.m[i+len(key):]
	return true
}

// hex and decimal parse a number and report whether one was present.
func (f *fields) hex() (uint64, bool) {
	var v uint64
	i := 0
	for ; i < len(f.m) && i < 16; i++ {
		d := hexDigit(f.m[i])
		if d > 15 {
			break
		}
		v = v<<4 | uint64(d)
	}
	f.m = f.m[i:]
	return v, i > 0
}

func (f *fields) decimal() (uint64, bool) {
	var v uint64
	i := 0
	for ; i < len(f.m) && i < 19 && isDigit(f.m[i]); i++ {
		v = v*10 + uint64(f.m[i]-'0')
	}
	f.m = f.m[i:]
	return v, i > 0
}

// hexOf and decimalOf parse the number after key.
func (f *fields) hexOf(key string) (uint64, bool) {
	if !f.find(key) {
		return 0, false
	}
	return f.hex()
}

func (f *fields) decimalOf(key string) (uint64, bool) {
	if !f.find(key) {
		return 0, false
	}
	return f.decimal()
}

// triple parses "1024, 1, 1]" after key.
func (f *fields) triple(key string) (out [3]uint32, ok bool) {
	if !f.find(key) {
		return out, false
	}
	for i := range out {
		v, ok := f.decimal()
		if !ok || v > 1<<32-1 {
			return out, false
		}
		out[i] = uint32(v)
		end := ", "
		if i == 2 {
			end = "]"
		}
		if !has(f.m, end) {
			return out, false
		}
		f.m = f.m[len(end):]
	}
	return out, true
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// decode parses the message m of kind e.kind into e. The message starts at
// offset at of the chunk.
func decode(m []byte, at int, e *event) {
	e.id, e.priority = -1, -1
	f := fields{m: m}
	ok := true
	switch e.kind {
	case dispatch, barrier:
		ok = decodePacket(&f, e)
	case shader:
		name := bytes.TrimSpace(m[len(shaderMark):])
		start := at + len(shaderMark)
		for start < at+len(m) && (m[start-at] == ' ' || m[start-at] == '\t') {
			start++
		}
		e.name = [2]int32{int32(start), int32(start + len(name))}
		ok = len(name) > 0
	case failed:
		// From the call to the end of the error's name.
		end := bytes.Index(m, []byte(returnedMark)) + len(returnedMark)
		for end < len(m) && (isDigit(m[end]) || isLetter(m[end])) {
			end++
		}
		e.name = [2]int32{int32(at), int32(at + end)}
	case created:
		ok = decodeCreated(&f, e)
	case deleted:
		e.hwq, ok = f.hexOf("queue 0x")
	case acquired, released:
		if e.hwq, ok = f.hexOf("0x"); ok {
			ok = has(f.m, " (")
		}
	case command:
		// "enqueued: 0x2095b30 to queue: 0x1952020"; 5.x has no queue.
		if _, ok = f.hexOf("enqueued: 0x"); ok && f.find("to queue: ") {
			e.swq, ok = f.hexOf("0x")
		}
	}
	e.cut = !ok
}

// decodePacket parses both packet formats: "SWq=0x.., HWq=0x.., id=1,
// Dispatch Header = .. rptr=0, wptr=0", and the older "HWq=0x.., Dispatch
// Header = .. completion_signal=0x0". The result is false if truncated.
func decodePacket(f *fields, e *event) bool {
	header := bytes.Index(f.m, []byte(headerMark))
	if header < 0 {
		header = len(f.m)
	}
	queue := fields{m: f.m[:header]}
	isNew := false
	if v, ok := queue.hexOf("SWq=0x"); ok {
		e.swq, isNew = v, true
	}
	var ok bool
	e.hwq, ok = queue.hexOf("HWq=0x")
	if v, found := queue.decimalOf("id="); found && v < 1<<31 {
		e.id = int32(v)
	}
	if v, found := queue.decimalOf("priority="); found && v < 16 {
		e.priority = int32(v)
	}
	f.m = f.m[header:]
	if e.kind == dispatch {
		rest := *f
		if e.grid, e.hasGrid = rest.triple("grid=["); e.hasGrid {
			*f = rest
			e.group, _ = f.triple("workgroup=[")
		} else if !bytes.Contains(f.m, []byte("cluster_count")) {
			ok = false
		}
		if v, found := f.hexOf("kernel_obj=0x"); found {
			e.object = v
		}
	}
	if !f.find("completion_signal=0x") {
		return false
	}
	if _, found := f.hex(); !found {
		return false
	}
	if r, found := f.decimalOf("rptr="); found {
		if w, found := f.decimalOf("wptr="); found {
			e.rptr, e.wptr, e.hasPointers = r, w, true
		}
	}
	return ok && (e.hasPointers || !isNew)
}

// decodeCreated parses "Created SWq=0x.. to map on HWq=0x.. with size 16384
// with priority 2, cooperative: 0" and the older "created hardware queue 0x..",
// whose address is that of the software queue.
func decodeCreated(f *fields, e *event) bool {
	ok := true
	if f.m[0] == 'C' {
		e.swq, _ = f.hexOf("SWq=0x")
		e.hwq, ok = f.hexOf("HWq=0x")
	} else {
		e.swq, ok = f.hexOf("queue 0x")
	}
	size, sized := f.decimalOf("with size ")
	if sized && size < 1<<32 {
		e.size = uint32(size)
	}
	priority, ranked := f.decimalOf("with priority ")
	if ranked && priority < 16 {
		e.priority = int32(priority)
	}
	return ok && sized && ranked && f.find("cooperative: ")
}
