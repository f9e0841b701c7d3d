// SPDX-License-Identifier: Apache-2.0

package model

import (
	"errors"
	"strings"
	"testing"
)

// TestHintFields checks that names are unique, values round-trip and ranges hold.
func TestHintFields(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range HintFields() {
		for _, name := range []string{"name " + f.Name, "flag " + f.Flag, "variable " + f.Env} {
			if seen[name] {
				t.Errorf("%s is there twice", name)
			}
			seen[name] = true
		}
		if f.Help == "" || f.Bit == "" || !strings.HasPrefix(f.Env, "XSCHED_") {
			t.Errorf("%s is not described: %+v", f.Name, f)
		}
		most, beyond := HintValue{Number: f.Max}, HintValue{Number: f.Max + 1}
		if f.Kind == HintName {
			most, beyond = HintValue{Text: strings.Repeat("x", int(f.Max))}, HintValue{Text: strings.Repeat("x", int(f.Max)+1)}
		}
		if f.Check(HintValue{}) != nil || f.Check(most) != nil || !errors.Is(f.Check(beyond), ErrHint) {
			t.Errorf("%s: the range is not %s", f.Name, f.Range())
		}
		if f.Kind != HintName && f.Min < 0 && (f.Check(HintValue{Number: f.Min}) != nil || f.Check(HintValue{Number: f.Min - 1}) == nil) {
			t.Errorf("%s: the range does not begin at %d", f.Name, f.Min)
		}
		var c HintChange
		var h Hint
		c.Set(f.Name, most)
		c.Apply(&h)
		if got := f.Value(&h); got != most || !c.Has(f.Name) || h.Check() != nil {
			t.Errorf("%s: %v came out of %v: %v", f.Name, got, most, h.Check())
		}
		if again, err := f.Parse(f.Format(most)); err != nil || again != most {
			t.Errorf("%s: %q is read as %v, %v", f.Name, f.Format(most), again, err)
		}
	}
}

// TestHintConstants compares the exported constants with the tags.
func TestHintConstants(t *testing.T) {
	share, slice, priority := FieldOf("utilization"), FieldOf("timeslice_us"), FieldOf("priority")
	if share.Max != UtilizationMax || slice.Min != TimesliceMin.Microseconds() || slice.Max != TimesliceMax.Microseconds() ||
		priority.Min != int64(PriorityNever) || priority.Max != int64(PriorityMax) {
		t.Errorf("constants and tags differ: %+v %+v %+v", share, slice, priority)
	}
	names := map[uint32]string{}
	for _, f := range HintFields() {
		if known, ok := names[f.Mask]; ok && known != f.Bit {
			t.Errorf("bit %#x is %s and %s", f.Mask, known, f.Bit)
		}
		names[f.Mask] = f.Bit
	}
}

// TestHintChange: the last change of a field wins.
func TestHintChange(t *testing.T) {
	var said, set, newer HintChange
	said.Set("priority", HintValue{Number: 1})
	said.Set("k", HintValue{Number: 2})
	set.Set("priority", HintValue{Number: 9})
	set.Set("k", HintValue{Number: 8})
	newer.Set("priority", HintValue{Number: 1}) // as before
	newer.Set("k", HintValue{Number: 3})
	left := set.Without(&said, &newer)
	h := Hint{}
	newer.Apply(&h)
	left.Apply(&h)
	if h.Priority != 9 || h.K != 3 || left.Has("k") || left.Empty() {
		t.Errorf("%+v", h)
	}
	if top, ok := set.Top(); !ok || top != 9 {
		t.Errorf("top %d, %v", top, ok)
	}
	if _, ok := (&HintChange{}).Top(); ok {
		t.Error("nothing asks for a priority")
	}
}

// A range has no value twice, and none that nobody would write.
func TestRange(t *testing.T) {
	for name, want := range map[string]string{
		"slo_us": "1µs to 1000000s, or 0 (none)", "in_flight": "1 to 1048576, or 0 (daemon default)", "utilization": "1 to 100, or 0 (unset)",
		"priority": "-256 to 255", "timeslice_us": "100µs to 10s, or 0 (policy default)",
	} {
		if f := FieldOf(name); f == nil || f.Range() != want {
			t.Errorf("%s: %+v, want %s", name, f, want)
		}
	}
}

// FuzzHintParse checks that any text gives a value in range, or an error with the range.
func FuzzHintParse(f *testing.F) {
	for i, text := range []string{"10", "-256", "auto", "20ms", "1h", "P99.9", "NaN", "true", "ranks", "", "9223372036854775808", "-9223372036854775808ns", "1e400"} {
		f.Add(uint8(i), text)
	}
	f.Fuzz(func(t *testing.T, which uint8, text string) {
		all := HintFields()
		field := &all[int(which)%len(all)]
		v, err := field.Parse(text)
		if err != nil {
			if bad, ok := errors.AsType[*RangeError](err); !ok || bad.Remedy == "" {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		if err := field.Check(v); err != nil {
			t.Fatalf("%q became %v: %v", text, v, err)
		}
		again, err := field.Parse(field.Format(v))
		if err != nil || again != v {
			t.Fatalf("%q: %v, then %v, %v", text, v, again, err)
		}
		var h Hint
		var c HintChange
		c.Set(field.Name, v)
		c.Apply(&h)
		if err := h.Check(); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
	})
}
