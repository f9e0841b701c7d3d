// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"fmt"
	"time"

	"xsched/internal/model"
)

// Longest time and most launches that a hint may speak of; both far beyond use,
// and far below what overflows.
const (
	maxHintUS       = uint64(1e12)
	maxHintLaunches = 1 << 20
)

// check bounds what a client says, said or not: nobody reads these twice.
func (v *Hint) check() error {
	for _, p := range []int32{v.Priority, v.LaxPriority, v.CriticalPriority} {
		if p < PriorityMin || p > PriorityMax {
			return malformed("priority %d", p)
		}
	}
	switch {
	case v.Said&^HintAll != 0:
		return malformed("hints %#x", v.Said)
	case v.Level > LevelInterrupt:
		return malformed("level %d", v.Level)
	case v.InFlight > maxHintLaunches || v.Batch > maxHintLaunches:
		return malformed("limits %d, %d", v.InFlight, v.Batch)
	case v.TimesliceUS > maxHintUS || v.DeadlineUS > maxHintUS || v.LaxityUS > maxHintUS || v.SLOUS > maxHintUS:
		return malformed("a time beyond %v", time.Duration(maxHintUS)*time.Microsecond)
	case v.K > MaxQueues:
		return malformed("k %d", v.K)
	case v.WindowActive > 1 || v.PerQueue > 1:
		return malformed("neither yes nor no")
	case bytes.IndexByte(v.Gang[:], 0) < 0:
		return malformed("gang is not NUL-terminated")
	}
	var h model.Hint
	v.Apply(&h)
	if err := h.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrFrame, err)
	}
	return nil
}

// Apply changes in h what v says.
func (v *Hint) Apply(h *model.Hint) {
	us := func(n uint64) time.Duration { return time.Duration(n) * time.Microsecond }
	for _, f := range []struct {
		said uint32
		do   func()
	}{
		{HintPriority, func() { h.Priority = model.Priority(v.Priority) }},
		{HintLevel, func() { h.Level = model.Level(v.Level) }},
		{HintLimits, func() { h.InFlight, h.Batch = int(v.InFlight), int(v.Batch) }},
		{HintUtilization, func() { h.Utilization = int(v.Utilization) }},
		{HintTimeslice, func() { h.Timeslice = us(v.TimesliceUS) }},
		{HintDeadline, func() { h.Deadline = us(v.DeadlineUS) }},
		{HintLaxity, func() {
			h.Laxity = us(v.LaxityUS)
			h.LaxPriority, h.CriticalPriority = model.Priority(v.LaxPriority), model.Priority(v.CriticalPriority)
		}},
		{HintK, func() { h.K = int(v.K) }},
		{HintWindow, func() { h.WindowActive = v.WindowActive != 0 }},
		{HintSLO, func() { h.SLO = model.SLO{Percentile: float64(v.SLOPercentile) / 100, Latency: us(v.SLOUS)} }},
		{HintGang, func() { h.Gang = cString(v.Gang[:]) }},
		{HintPerQueue, func() { h.PerQueue = v.PerQueue != 0 }},
	} {
		if v.Said&f.said != 0 {
			f.do()
		}
	}
}

// DecodeHint reads a HINT packet.
func DecodeHint(packet []byte) (*HintFrame, error) {
	if err := decode(packet, FrameHint, SizeOfHintFrame); err != nil {
		return nil, err
	}
	h := &HintFrame{}
	h.get(packet)
	switch {
	case h.Queue != QueueAll && h.Queue >= MaxQueues:
		return nil, malformed("hint about queue %d", h.Queue)
	case bytes.IndexByte(h.Policy[:], 0) < 0:
		return nil, malformed("policy is not NUL-terminated")
	}
	return h, h.Hint.check()
}

// EncodeHint makes a HINT packet; the frame is filled in.
func EncodeHint(h HintFrame) []byte {
	b := make([]byte, SizeOfHintFrame)
	h.Frame = frame(FrameHint, len(b))
	h.put(b)
	return b
}

// PolicyString is the wished policy.
func (v *HintFrame) PolicyString() string { return cString(v.Policy[:]) }

// PolicyString is the wished policy.
func (v *Hello) PolicyString() string { return cString(v.Policy[:]) }

// Mark is a request that a program says it has finished.
type Mark struct {
	Name       string
	Begin, End model.Time
}

// Marks calls f for the requests finished since the count after, oldest first,
// and returns the new count and how many were overwritten before they were read.
// Each is read once, and what does not hold together is counted as lost.
func (p *Page) Marks(after uint64, f func(Mark)) (count, lost uint64) {
	at := RequestsOffset
	count = load64(p.mem, at+OffRequestsFinished)
	if count <= after {
		return count, 0 // fewer than before: the client writes nonsense, or nothing
	}
	first := after
	if count-first > RequestRing {
		lost = count - first - RequestRing
		first = count - RequestRing
	}
	for n := first; n < count; n++ {
		slot := at + OffRequestsRing + int(n%RequestRing)*SizeOfRequest
		sequence := load64(p.mem, slot+OffRequestSequence)
		begin, end := load64(p.mem, slot+OffRequestBeginNS), load64(p.mem, slot+OffRequestEndNS)
		name := load32(p.mem, slot+OffRequestName)
		if sequence != n+1 || load64(p.mem, slot+OffRequestSequence) != sequence ||
			begin == 0 || end < begin || end > 1<<62 || name >= RequestNames {
			lost++
			continue
		}
		f(Mark{Name: p.requestName(int(name)), Begin: model.Time(begin), End: model.Time(end)})
	}
	return count, lost
}

// requestName copies a name word by word: the client may write while we read.
func (p *Page) requestName(i int) string {
	var b [RequestNameBytes]byte
	at := RequestsOffset + OffRequestsNames + i*RequestNameBytes
	for w := 0; w < RequestNameBytes; w += 4 {
		v := load32(p.mem, at+w)
		b[w], b[w+1], b[w+2], b[w+3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
	}
	return cString(b[:])
}
