// SPDX-License-Identifier: Apache-2.0

package model

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// HintKind is how a value of a hint is written.
type HintKind int

// The kinds. In a HintValue a time is in microseconds, a percentile in hundredths of a percent,
// a switch 0 or 1; only a name is text.
const (
	HintNumber HintKind = iota
	HintTime
	HintPercentile
	HintSwitch
	HintLevel
	HintName
)

// HintValue is one value of a hint.
type HintValue struct {
	Number int64
	Text   string
}

// HintField is one thing that a hint can say. The table of them is the one place for names and
// ranges: the command line, the HTTP interface and the checks read it, and tools/hintgen writes it
// down for C and Python. 0 (or an empty name) is always allowed and goes back to the default.
type HintField struct {
	Name     string // in JSON, Python and C
	Flag     string // of `xsched hint` and `xsched run`
	Env      string
	Bit      string // of enum xsw_hint_field, without XSW_HINT_: fields of one bit are said together
	Kind     HintKind
	Min, Max int64  // of a name: Max bytes
	Zero     string // what 0 means where that needs a word
	Help     string

	value func(*Hint) HintValue
	put   func(*Hint, HintValue)
}

const (
	hintTimeMax     = int64(1e12) // far beyond use, and far below what overflows
	hintLaunchesMax = 1 << 20
	hintKMax        = 1024 // queues of a process
	hintGangMax     = 63   // XSW_GANG_BYTES with its NUL
)

var hintFields = [...]HintField{
	number("priority", "priority", "XSCHED_AUTO_XQUEUE_PRIORITY", "PRIORITY", int64(PriorityNever), int64(PriorityMax), "", "bigger is more important; -256 never runs",
		func(h *Hint) *Priority { return &h.Priority }),
	{
		Name: "level", Flag: "level", Env: "XSCHED_AUTO_XQUEUE_LEVEL", Bit: "LEVEL", Kind: HintLevel, Max: int64(LevelInterrupt),
		Help:  "how to stop it: auto, 1 (hold launches), 2 (end of slice), 3 (mid-kernel)",
		value: func(h *Hint) HintValue { return HintValue{Number: int64(h.Level)} },
		put:   func(h *Hint, v HintValue) { h.Level = Level(v.Number) },
	},
	number("in_flight", "in-flight", "XSCHED_AUTO_XQUEUE_THRESHOLD", "LIMITS", 0, hintLaunchesMax, "the daemon's default", "level 1: most launches in flight",
		func(h *Hint) *int { return &h.InFlight }),
	number("batch", "batch", "XSCHED_AUTO_XQUEUE_BATCH_SIZE", "LIMITS", 0, hintLaunchesMax, "the daemon's default", "level 1: launches between two completion checks",
		func(h *Hint) *int { return &h.Batch }),
	number("utilization", "share", "XSCHED_AUTO_XQUEUE_UTILIZATION", "UTILIZATION", 1, UtilizationMax, "nothing said", "share of the GPU in percent (UP, PUP, SPUP, CFS)",
		func(h *Hint) *int { return &h.Utilization }),
	length("timeslice_us", "timeslice", "XSCHED_AUTO_XQUEUE_TIMESLICE", "TIMESLICE", TimesliceMin.Microseconds(), TimesliceMax.Microseconds(), "the policy's", "one turn on the GPU",
		func(h *Hint) *time.Duration { return &h.Timeslice }),
	length("deadline_us", "deadline", "XSCHED_AUTO_XQUEUE_DEADLINE", "DEADLINE", 0, hintTimeMax, "none", "when work must be done, from when there is some (EDF, KEDF)",
		func(h *Hint) *time.Duration { return &h.Deadline }),
	length("laxity_us", "laxity", "XSCHED_AUTO_XQUEUE_LAXITY", "LAXITY", 0, hintTimeMax, "none", "how long work may be put off (LAX)",
		func(h *Hint) *time.Duration { return &h.Laxity }),
	number("lax_priority", "lax-priority", "XSCHED_AUTO_XQUEUE_LAX_PRIORITY", "LAXITY", int64(PriorityNever), int64(PriorityMax), "", "priority until the laxity is over",
		func(h *Hint) *Priority { return &h.LaxPriority }),
	number("critical_priority", "critical-priority", "XSCHED_AUTO_XQUEUE_CRITICAL_PRIORITY", "LAXITY", int64(PriorityNever), int64(PriorityMax), "", "priority after that",
		func(h *Hint) *Priority { return &h.CriticalPriority }),
	number("k", "k", "XSCHED_K", "K", 0, hintKMax, "the policy's", "how many of the earliest deadlines may run together (KEDF)",
		func(h *Hint) *int { return &h.K }),
	yesNo("window_active", "window-active", "XSCHED_WINDOW_ACTIVE", "WINDOW", "the user looks at a window of it now (AWF)",
		func(h *Hint) *bool { return &h.WindowActive }),
	length("slo_us", "slo", "XSCHED_SLO_US", "SLO", 0, hintTimeMax, "none", "requests shall take no longer (SLO)",
		func(h *Hint) *time.Duration { return &h.SLO.Latency }),
	{
		Name: "slo_percentile", Flag: "slo-percentile", Env: "XSCHED_SLO_PERCENTILE", Bit: "SLO", Kind: HintPercentile, Min: 100, Max: 9999,
		Zero: "99", Help: "of so many percent of them",
		value: func(h *Hint) HintValue { return HintValue{Number: hundredths(h.SLO.Percentile)} },
		put:   func(h *Hint, v HintValue) { h.SLO.Percentile = float64(v.Number) / 100 },
	},
	{
		Name: "gang", Flag: "gang", Env: "XSCHED_GANG", Bit: "GANG", Kind: HintName, Max: hintGangMax,
		Zero: "none", Help: "programs of one name run and stop together",
		value: func(h *Hint) HintValue { return HintValue{Text: h.Gang} },
		put:   func(h *Hint, v HintValue) { h.Gang = v.Text },
	},
	yesNo("per_queue", "per-queue", "XSCHED_GRANULARITY", "PER_QUEUE", "schedule its queues one by one, at level 1",
		func(h *Hint) *bool { return &h.PerQueue }),
}

func number[T ~int | ~int32](name, flag, env, bit string, least, most int64, zero, help string, in func(*Hint) *T) HintField {
	return HintField{
		Name: name, Flag: flag, Env: env, Bit: bit, Kind: HintNumber, Min: least, Max: most, Zero: zero, Help: help,
		value: func(h *Hint) HintValue { return HintValue{Number: int64(*in(h))} },
		put:   func(h *Hint, v HintValue) { *in(h) = T(v.Number) },
	}
}

func length(name, flag, env, bit string, least, most int64, zero, help string, in func(*Hint) *time.Duration) HintField {
	return HintField{
		Name: name, Flag: flag, Env: env, Bit: bit, Kind: HintTime, Min: least, Max: most, Zero: zero, Help: help,
		value: func(h *Hint) HintValue { return HintValue{Number: microseconds(*in(h))} },
		put:   func(h *Hint, v HintValue) { *in(h) = time.Duration(v.Number) * time.Microsecond },
	}
}

func yesNo(name, flag, env, bit, help string, in func(*Hint) *bool) HintField {
	return HintField{
		Name: name, Flag: flag, Env: env, Bit: bit, Kind: HintSwitch, Max: 1, Help: help,
		value: func(h *Hint) HintValue {
			if *in(h) {
				return HintValue{Number: 1}
			}
			return HintValue{}
		},
		put: func(h *Hint, v HintValue) { *in(h) = v.Number != 0 },
	}
}

// microseconds rounds away from 0, so that what is out of range stays so.
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

// hundredths of a percentile; one that is none is out of range.
func hundredths(p float64) int64 {
	if !(p >= 0 && p <= 1000) {
		return -1
	}
	return int64(math.Round(p * 100))
}

// HintFields is the table.
func HintFields() []HintField {
	all := hintFields
	return all[:]
}

// FieldOf finds a field by its name; nil: there is none.
func FieldOf(name string) *HintField {
	for i := range hintFields {
		if hintFields[i].Name == name {
			return &hintFields[i]
		}
	}
	return nil
}

// Value is what a hint says here.
func (f *HintField) Value(h *Hint) HintValue { return f.value(h) }

// label is the name without its unit.
func (f *HintField) label() string {
	return strings.ReplaceAll(strings.TrimSuffix(f.Name, "_us"), "_", " ")
}

// Range says which values there are.
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
		text = f.Format(HintValue{Number: f.Min}) + " to " + f.Format(HintValue{Number: f.Max})
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

// Format writes a value as the command line has it.
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
	case HintLevel:
		if v.Number == 0 {
			return "auto"
		}
	}
	return strconv.FormatInt(v.Number, 10)
}

// RangeError is a value that a field can't have.
type RangeError struct {
	Cause, Remedy string
}

func (e *RangeError) Error() string { return e.Cause + "; use " + e.Remedy }

// Unwrap makes it an ErrHint.
func (e *RangeError) Unwrap() error { return ErrHint }

func (f *HintField) refuse(text string) error {
	return &RangeError{fmt.Sprintf("%s %s is out of range", f.label(), text), f.Range()}
}

// Check holds a value to its range.
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

// Parse reads what a person writes: times as 20ms or in microseconds, levels also as auto.
func (f *HintField) Parse(text string) (HintValue, error) {
	v, err := HintValue{}, error(nil)
	switch f.Kind {
	case HintName:
		v.Text = text
	case HintTime:
		if v.Number, err = strconv.ParseInt(text, 10, 64); err != nil {
			var d time.Duration
			d, err = time.ParseDuration(text)
			v.Number = microseconds(d)
		}
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
		return HintValue{}, &RangeError{fmt.Sprintf("%s %q can't be read", f.label(), text), f.Range()}
	}
	return v, f.Check(v)
}

// HintChange is some of what a hint says.
type HintChange struct {
	said uint32 // by place in the table
	hint Hint
}

// Set adds a field.
func (c *HintChange) Set(name string, v HintValue) {
	for i := range hintFields {
		if f := &hintFields[i]; f.Name == name {
			c.said |= 1 << i
			f.put(&c.hint, v)
		}
	}
}

// Empty says that there is nothing to change.
func (c *HintChange) Empty() bool { return c.said == 0 }

// Has says whether a field is said.
func (c *HintChange) Has(name string) bool {
	for i := range hintFields {
		if hintFields[i].Name == name {
			return c.said&(1<<i) != 0
		}
	}
	return false
}

// Apply changes in h what c says.
func (c *HintChange) Apply(h *Hint) {
	for i := range hintFields {
		if c.said&(1<<i) != 0 {
			hintFields[i].put(h, hintFields[i].value(&c.hint))
		}
	}
}

// Merge adds what other says; the other wins.
func (c *HintChange) Merge(other *HintChange) {
	other.Apply(&c.hint)
	c.said |= other.said
}

// Without is c less what newer says anew: what it says that old did not, or not so.
func (c *HintChange) Without(old, newer *HintChange) HintChange {
	out := *c
	for i := range hintFields {
		f := &hintFields[i]
		if newer.said&(1<<i) != 0 && (old.said&(1<<i) == 0 || f.value(&old.hint) != f.value(&newer.hint)) {
			out.said &^= 1 << i
		}
	}
	return out
}

// Top is the highest priority that c asks for; false: it asks for none.
func (c *HintChange) Top() (Priority, bool) {
	top, said := PriorityNever, false
	for _, p := range []struct {
		name  string
		value Priority
	}{{"priority", c.hint.Priority}, {"lax_priority", c.hint.LaxPriority}, {"critical_priority", c.hint.CriticalPriority}} {
		if c.Has(p.name) {
			top, said = max(top, p.value), true
		}
	}
	return top, said
}

// EnvText writes a value as the environment has it: times in microseconds, switches as ON and OFF.
func (f *HintField) EnvText(v HintValue) string {
	switch {
	case f.Name == "per_queue" && v.Number != 0:
		return "queue"
	case f.Name == "per_queue":
		return "process"
	case f.Kind == HintTime:
		return strconv.FormatInt(v.Number, 10)
	case f.Kind == HintSwitch && v.Number != 0:
		return "ON"
	case f.Kind == HintSwitch:
		return "OFF"
	}
	return f.Format(v)
}
