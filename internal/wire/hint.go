// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"fmt"

	"xsched/internal/model"
)

// check bounds what a client says, said or not: nobody reads these twice.
func (v *Hint) check() error {
	switch {
	case v.Said&^HintAll != 0:
		return malformed("hints %#x", v.Said)
	case bytes.IndexByte(v.Gang[:], 0) < 0:
		return malformed("gang is not NUL-terminated")
	}
	for _, f := range model.HintFields() {
		if _, value := v.field(f.Name); f.Name != "gang" || v.Said&HintGang != 0 {
			if err := f.Check(value); err != nil {
				return fmt.Errorf("%w: %w", ErrFrame, err)
			}
		}
	}
	return nil
}

// field is the bit that says a field, and its value.
func (v *Hint) field(name string) (bit uint32, value model.HintValue) {
	number := func(bit uint32, n int64) (uint32, model.HintValue) { return bit, model.HintValue{Number: n} }
	long := func(bit uint32, n uint64) (uint32, model.HintValue) { return number(bit, int64(min(n, 1<<62))) }
	switch name {
	case "priority":
		return number(HintPriority, int64(v.Priority))
	case "level":
		return number(HintLevel, int64(v.Level))
	case "in_flight":
		return number(HintLimits, int64(v.InFlight))
	case "batch":
		return number(HintLimits, int64(v.Batch))
	case "utilization":
		return number(HintUtilization, int64(v.Utilization))
	case "timeslice_us":
		return long(HintTimeslice, v.TimesliceUS)
	case "deadline_us":
		return long(HintDeadline, v.DeadlineUS)
	case "laxity_us":
		return long(HintLaxity, v.LaxityUS)
	case "lax_priority":
		return number(HintLaxity, int64(v.LaxPriority))
	case "critical_priority":
		return number(HintLaxity, int64(v.CriticalPriority))
	case "k":
		return number(HintK, int64(v.K))
	case "window_active":
		return number(HintWindow, int64(v.WindowActive))
	case "slo_us":
		return long(HintSLO, v.SLOUS)
	case "slo_percentile":
		return number(HintSLO, int64(v.SLOPercentile))
	case "gang":
		return HintGang, model.HintValue{Text: cString(v.Gang[:])}
	case "per_queue":
		return number(HintPerQueue, int64(v.PerQueue))
	}
	return 0, model.HintValue{}
}

// Change is what v says.
func (v *Hint) Change() model.HintChange {
	var c model.HintChange
	for _, f := range model.HintFields() {
		if bit, value := v.field(f.Name); v.Said&bit != 0 {
			c.Set(f.Name, value)
		}
	}
	return c
}

// Apply changes in h what v says.
func (v *Hint) Apply(h *model.Hint) {
	c := v.Change()
	c.Apply(h)
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
