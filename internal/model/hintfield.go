// SPDX-License-Identifier: Apache-2.0

package model

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// HintKind is the form of a hint's values.
type HintKind int

// In a HintValue a duration is in microseconds, a percentile in hundredths of a percent, a switch is
// 0 or 1, and only a name is text.
const (
	HintNumber HintKind = iota
	HintTime
	HintPercentile
	HintSwitch
	HintLevel
	HintName
	HintBytes
)

// HintValue is one value of a hint.
type HintValue struct {
	Number int64
	Text   string
}

// HintField describes one hint, as the tags of Hint define it. 0 (or an empty name) is always allowed
// and restores the default.
type HintField struct {
	Name     string // in JSON, Python and C
	Flag     string // of `xsched hint` and `xsched run`
	Env      string
	Bit      string // name of its wire bit; fields with the same bit are set together
	Mask     uint32 // that bit
	Kind     HintKind
	Priority bool  // a priority, which needs permission above 0
	Process  bool  // applies to a whole process only
	API      bool  // part of the C and Python interfaces
	Min, Max int64 // of a name: Max bytes
	Zero     string
	Help     string
	Policies []string // that read it; empty: all

	index []int // path in Hint
}

var hintFields = hintFieldsOf(reflect.TypeFor[Hint](), nil)

// hintFieldsOf reads the tags of a struct. A malformed tag is a programming error and panics when
// the program starts.
func hintFieldsOf(t reflect.Type, path []int) []HintField {
	var out []HintField
	for i := range t.NumField() {
		s := t.Field(i)
		index := append(slices.Clone(path), i)
		name, ok := s.Tag.Lookup("hint")
		if !ok {
			if s.Type.Kind() == reflect.Struct {
				out = append(out, hintFieldsOf(s.Type, index)...)
			}
			continue
		}
		f := HintField{
			Name: name, Flag: s.Tag.Get("flag"), Env: s.Tag.Get("env"), Zero: s.Tag.Get("zero"), Help: s.Tag.Get("help"),
			Process: s.Tag.Get("scope") == "process", API: s.Tag.Get("api") != "no", Kind: kindOf(s.Type), Max: 1, index: index,
			Priority: s.Type == reflect.TypeFor[Priority](), Policies: strings.Fields(s.Tag.Get("policies")),
		}
		bit := 0
		if _, err := fmt.Sscanf(s.Tag.Get("bit"), "%d %s", &bit, &f.Bit); err != nil {
			panic(fmt.Sprintf("hint %s: bit: %v", name, err))
		}
		f.Mask = 1 << bit
		if f.Kind != HintSwitch {
			if _, err := fmt.Sscanf(s.Tag.Get("range"), "%d..%d", &f.Min, &f.Max); err != nil {
				panic(fmt.Sprintf("hint %s: range: %v", name, err))
			}
		}
		out = append(out, f)
	}
	return out
}

func kindOf(t reflect.Type) HintKind {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return HintTime
	case t == reflect.TypeFor[Bytes]():
		return HintBytes
	case t == reflect.TypeFor[Level]():
		return HintLevel
	case t.Kind() == reflect.Bool:
		return HintSwitch
	case t.Kind() == reflect.Float64:
		return HintPercentile
	case t.Kind() == reflect.String:
		return HintName
	}
	return HintNumber
}

// Value returns the field's value in h.
func (f *HintField) Value(h *Hint) HintValue {
	switch v := reflect.ValueOf(h).Elem().FieldByIndex(f.index); f.Kind {
	case HintName:
		return HintValue{Text: v.String()}
	case HintTime:
		return HintValue{Number: microseconds(time.Duration(v.Int()))}
	case HintPercentile:
		return HintValue{Number: hundredths(v.Float())}
	case HintSwitch:
		if v.Bool() {
			return HintValue{Number: 1}
		}
		return HintValue{}
	default:
		return HintValue{Number: v.Int()}
	}
}

func (f *HintField) put(h *Hint, value HintValue) {
	switch v := reflect.ValueOf(h).Elem().FieldByIndex(f.index); f.Kind {
	case HintName:
		v.SetString(value.Text)
	case HintTime:
		v.SetInt(int64(time.Duration(value.Number) * time.Microsecond))
	case HintPercentile:
		v.SetFloat(float64(value.Number) / 100)
	case HintSwitch:
		v.SetBool(value.Number != 0)
	default:
		v.SetInt(value.Number)
	}
}

// microseconds rounds away from 0, so that a value out of range stays out of range.
func microseconds(d time.Duration) int64 {
	n, rest := int64(d/time.Microsecond), d%time.Microsecond
	switch {
	case rest > 0:
		n++
	case rest < 0:
		n--
	}
	return n
}

// hundredths converts a percentile. NaN and absurd values become -1, which is out of range.
func hundredths(p float64) int64 {
	if !(p >= 0 && p <= 1000) {
		return -1
	}
	return int64(math.Round(p * 100))
}

// HintFields returns the descriptions of all hints, in wire order.
func HintFields() []HintField { return slices.Clone(hintFields) }

// FieldOf returns the field with this name, or nil.
func FieldOf(name string) *HintField {
	for i := range hintFields {
		if hintFields[i].Name == name {
			return &hintFields[i]
		}
	}
	return nil
}

// label returns the name without its unit, for messages.
func (f *HintField) label() string {
	return strings.ReplaceAll(strings.TrimSuffix(f.Name, "_us"), "_", " ")
}

// Range describes the allowed values.
func (f *HintField) Range() string {
	text := ""
	switch f.Kind {
	case HintName:
		text = fmt.Sprintf("up to %d bytes", f.Max)
	case HintSwitch:
		return "true or false"
	case HintLevel:
		return "auto, 1, 2 or 3"
	default:
		least, most := f.Min, f.Format(HintValue{Number: f.Max})
		if least == 0 && f.Zero != "" {
			least = 1 // 0 has a meaning of its own
		}
		if d := time.Duration(f.Max) * time.Microsecond; f.Kind == HintTime && d >= time.Hour {
			most = fmt.Sprintf("%ds", d/time.Second) // "277h46m40s" is no value that anyone would write
		}
		text = f.Format(HintValue{Number: least}) + " to " + most
	}
	if f.Zero != "" {
		nothing := "0"
		if f.Kind == HintName {
			nothing = "nothing"
		}
		text += fmt.Sprintf(", or %s (%s)", nothing, f.Zero)
	}
	return text
}

// Format writes a value in the form of the command line.
func (f *HintField) Format(v HintValue) string {
	switch f.Kind {
	case HintName:
		return v.Text
	case HintTime:
		return (time.Duration(v.Number) * time.Microsecond).String()
	case HintPercentile:
		return strconv.FormatFloat(float64(v.Number)/100, 'f', -1, 64)
	case HintSwitch:
		return strconv.FormatBool(v.Number != 0)
	case HintBytes:
		return Bytes(v.Number).String()
	case HintLevel:
		if v.Number == 0 {
			return "auto"
		}
	}
	return strconv.FormatInt(v.Number, 10)
}

// RangeError reports a value that is not allowed, and which are.
type RangeError struct {
	Cause, Remedy string
}

func (e *RangeError) Error() string { return e.Cause + "; use " + e.Remedy }

// Unwrap makes every RangeError an ErrHint.
func (e *RangeError) Unwrap() error { return ErrHint }

func (f *HintField) refuse(text string) error {
	return &RangeError{fmt.Sprintf("%s %s is out of range", f.label(), text), f.Range()}
}

// Check returns an error if v is out of range.
func (f *HintField) Check(v HintValue) error {
	if f.Kind == HintName {
		switch {
		case len(v.Text) > int(f.Max):
			return &RangeError{fmt.Sprintf("%s has %d bytes", f.label(), len(v.Text)), f.Range()}
		case strings.ContainsFunc(v.Text, func(r rune) bool { return r < ' ' || r == 0x7f }):
			return &RangeError{f.label() + " has a control character", "a plain name"}
		}
		return nil
	}
	if v.Number != 0 && (v.Number < f.Min || v.Number > f.Max) {
		return f.refuse(f.Format(v))
	}
	return nil
}

// Parse reads a value from text. A duration is a Go duration, such as 20ms.
func (f *HintField) Parse(text string) (HintValue, error) {
	v, err := HintValue{}, error(nil)
	switch f.Kind {
	case HintName:
		v.Text = text
	case HintTime:
		var d time.Duration
		if d, err = time.ParseDuration(text); err != nil {
			if _, number := strconv.ParseInt(text, 10, 64); number == nil {
				return HintValue{}, &RangeError{fmt.Sprintf("%s %s has no unit", f.label(), text), fmt.Sprintf("%sms, %[1]sus or %[1]ss", text)}
			}
		}
		v.Number = microseconds(d)
	case HintPercentile:
		var p float64
		p, err = strconv.ParseFloat(strings.TrimPrefix(strings.ToLower(text), "p"), 64)
		if v.Number = hundredths(p); err == nil && v.Number < 0 {
			return HintValue{}, f.refuse(text)
		}
	case HintSwitch:
		var on bool
		if on, err = strconv.ParseBool(text); on {
			v.Number = 1
		}
	case HintBytes:
		var b Bytes
		b, err = ParseBytes(text)
		v.Number = int64(b)
	case HintLevel:
		if text != "auto" {
			v.Number, err = strconv.ParseInt(text, 10, 64)
		}
	default:
		v.Number, err = strconv.ParseInt(text, 10, 64)
	}
	if errors.Is(err, strconv.ErrRange) {
		return HintValue{}, f.refuse(text)
	}
	if err != nil {
		return HintValue{}, &RangeError{fmt.Sprintf("%s %q can't be parsed", f.label(), text), f.Range()}
	}
	return v, f.Check(v)
}

// HintChange is a set of hints to change; unset fields keep their value.
type HintChange struct {
	said uint32 // by index in hintFields
	hint Hint
}

// Set adds a field to the change.
func (c *HintChange) Set(name string, v HintValue) {
	for i := range hintFields {
		if f := &hintFields[i]; f.Name == name {
			c.said |= 1 << i
			f.put(&c.hint, v)
		}
	}
}

// Empty reports whether the change is empty.
func (c *HintChange) Empty() bool { return c.said == 0 }

// Has reports whether the change sets a field.
func (c *HintChange) Has(name string) bool {
	for i := range hintFields {
		if hintFields[i].Name == name {
			return c.said&(1<<i) != 0
		}
	}
	return false
}

// Apply writes the change into h.
func (c *HintChange) Apply(h *Hint) {
	for i := range hintFields {
		if c.said&(1<<i) != 0 {
			hintFields[i].put(h, hintFields[i].Value(&c.hint))
		}
	}
}

// Merge adds other to c. Fields of other win.
func (c *HintChange) Merge(other *HintChange) {
	other.Apply(&c.hint)
	c.said |= other.said
}

// Complete writes c into h where neither said nor set has a field. A field that none of the three has
// gets its default.
func (c *HintChange) Complete(h *Hint, said, set *HintChange) {
	for i := range hintFields {
		f, bit := &hintFields[i], uint32(1)<<i
		switch {
		case (said.said|set.said)&bit != 0:
		case c.said&bit != 0:
			f.put(h, f.Value(&c.hint))
		default:
			f.put(h, HintValue{})
		}
	}
}

// Texts returns the change in the form of the command line, by the names of the fields.
func (c *HintChange) Texts() map[string]string {
	out := map[string]string{}
	for i := range hintFields {
		if f := &hintFields[i]; c.said&(1<<i) != 0 {
			out[f.Name] = f.Format(f.Value(&c.hint))
		}
	}
	return out
}

// ParseHintChange reads the result of Texts.
func ParseHintChange(texts map[string]string) (HintChange, error) {
	var c HintChange
	for name, text := range texts {
		f := FieldOf(name)
		if f == nil {
			return c, &RangeError{fmt.Sprintf("unknown hint %q", name), "a hint of this release"}
		}
		v, err := f.Parse(text)
		if err != nil {
			return c, err
		}
		c.Set(name, v)
	}
	return c, nil
}

// Pin adds other to c, except for priorities. The value 0 removes a field from c.
func (c *HintChange) Pin(other *HintChange) {
	c.Merge(other)
	for i := range hintFields {
		if f := &hintFields[i]; f.Priority || f.Value(&c.hint) == (HintValue{}) {
			c.said &^= 1 << i
		}
	}
}

// Without returns c less the fields that newer changes with respect to old.
func (c *HintChange) Without(old, newer *HintChange) HintChange {
	out := *c
	for i := range hintFields {
		f := &hintFields[i]
		if newer.said&(1<<i) != 0 && (old.said&(1<<i) == 0 || f.Value(&old.hint) != f.Value(&newer.hint)) {
			out.said &^= 1 << i
		}
	}
	return out
}

// Restored returns the fields of c that change sets to their defaults.
func (c *HintChange) Restored(change *HintChange) HintChange {
	out := *c
	for i := range hintFields {
		if change.said&(1<<i) == 0 || hintFields[i].Value(&change.hint) != (HintValue{}) {
			out.said &^= 1 << i
		}
	}
	return out
}

// Top returns the highest priority that c sets, and whether it sets one.
func (c *HintChange) Top() (Priority, bool) {
	top, set := PriorityNever, false
	for i := range hintFields {
		if f := &hintFields[i]; f.Priority && c.said&(1<<i) != 0 {
			top, set = max(top, Priority(f.Value(&c.hint).Number)), true
		}
	}
	return top, set
}

// EnvText writes a value in the form of the environment: microseconds, and ON or OFF.
func (f *HintField) EnvText(v HintValue) string {
	switch {
	case f.Name == "per_queue" && v.Number != 0:
		return "queue"
	case f.Name == "per_queue":
		return "process"
	case f.Kind == HintTime, f.Kind == HintBytes:
		return strconv.FormatInt(v.Number, 10)
	case f.Kind == HintSwitch && v.Number != 0:
		return "ON"
	case f.Kind == HintSwitch:
		return "OFF"
	}
	return f.Format(v)
}
