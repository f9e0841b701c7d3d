// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"

	"xsched/internal/model"
)

// check validates all fields, set or not, so that readers need no checks.
func (v *Hint) check(version uint32) error {
	known := HintAll
	if version == 4 {
		known = HintAll4
	}
	if v.Said&^known != 0 {
		return Malformed("hints %#x", v.Said)
	}
	for i := range hintFields {
		f := &hintFields[i]
		value, ok := f.read(v)
		if !ok {
			return Malformed("%s is not NUL-terminated", f.Name)
		}
		if f.Kind == model.HintName && v.Said&f.Mask == 0 {
			continue
		}
		if err := f.Check(value); err != nil {
			return fmt.Errorf("%w: %w", ErrFrame, err)
		}
	}
	return nil
}

// hintField is a hint with its position in the frame.
type hintField struct {
	model.HintField
	index int // in Hint
}

var hintFields = func() []hintField {
	var out []hintField
	t := reflect.TypeFor[Hint]()
	for _, f := range model.HintFields() {
		at, ok := t.FieldByNameFunc(func(name string) bool { return strings.EqualFold(name, strings.ReplaceAll(f.Name, "_", "")) })
		if !ok {
			panic("wire: no field for hint " + f.Name + "; run make generate")
		}
		out = append(out, hintField{f, at.Index[0]})
	}
	return out
}()

// read returns the field's value; false: an unterminated name.
func (f *hintField) read(v *Hint) (model.HintValue, bool) {
	at := reflect.ValueOf(v).Elem().Field(f.index)
	if f.Kind != model.HintName {
		return model.HintValue{Number: at.Int()}, true
	}
	text := at.Slice(0, at.Len()).Bytes()
	return model.HintValue{Text: cString(text)}, bytes.IndexByte(text, 0) >= 0
}

// Change returns the fields that v sets.
func (v *Hint) Change() model.HintChange {
	var c model.HintChange
	for i := range hintFields {
		f := &hintFields[i]
		if v.Said&f.Mask != 0 {
			value, _ := f.read(v)
			c.Set(f.Name, value)
		}
	}
	return c
}

// Apply writes the fields that v sets to h.
func (v *Hint) Apply(h *model.Hint) {
	c := v.Change()
	c.Apply(h)
}

// DecodeHint decodes a HINT packet.
func DecodeHint(packet []byte) (*HintFrame, error) {
	packet, err := widenHint(packet, OffHintFrameHint)
	if err != nil {
		return nil, err
	}
	if err := Decode(packet, FrameHint, SizeOfHintFrame); err != nil {
		return nil, err
	}
	h := &HintFrame{}
	h.get(packet)
	switch {
	case h.Queue != QueueAll && h.Queue >= MaxQueues:
		return nil, Malformed("hint about queue %d", h.Queue)
	case bytes.IndexByte(h.Policy[:], 0) < 0:
		return nil, Malformed("policy is not NUL-terminated")
	}
	return h, h.Hint.check(h.Frame.Version)
}

// EncodeHint encodes a HINT packet and fills in its frame.
func EncodeHint(h HintFrame) []byte {
	b := make([]byte, SizeOfHintFrame)
	h.Frame = NewFrame(FrameHint, len(b))
	h.put(b)
	return b
}

// PolicyString returns the requested policy.
func (v *HintFrame) PolicyString() string { return cString(v.Policy[:]) }

// PolicyString returns the requested policy.
func (v *Hello) PolicyString() string { return cString(v.Policy[:]) }

// Mark is a finished request that a program marked.
type Mark struct {
	Name       string
	Begin, End model.Time
}

// Begun returns how many requests the client has begun.
func (p *Page) Begun() uint64 { return load64(p.mem, RequestsOffset+OffRequestsBegun) }

// Marked reports whether requests have finished since the given count.
func (p *Page) Marked(after uint64) bool {
	return load64(p.mem, RequestsOffset+OffRequestsFinished) > after
}

// Marks calls f for the requests finished after the given count, oldest first, and returns the
// new count and the number lost. Each is read once; inconsistent ones count as lost.
func (p *Page) Marks(after uint64, f func(Mark)) (count, lost uint64) {
	at := RequestsOffset
	count = load64(p.mem, at+OffRequestsFinished)
	if count <= after {
		return count, 0 // the count went backwards: invalid client data
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

// requestName copies a name word by word, because the client may write concurrently.
func (p *Page) requestName(i int) string {
	var b [RequestNameBytes]byte
	at := RequestsOffset + OffRequestsNames + i*RequestNameBytes
	for w := 0; w < RequestNameBytes; w += 4 {
		v := load32(p.mem, at+w)
		b[w], b[w+1], b[w+2], b[w+3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
	}
	return cString(b[:])
}
