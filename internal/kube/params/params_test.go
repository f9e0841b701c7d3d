// SPDX-License-Identifier: Apache-2.0

package params

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// text completes the body of parameters.
func text(body string) string {
	if body != "" {
		body = "," + body
	}
	return `{"apiVersion":"` + APIVersion + `","kind":"` + Kind + `"` + body + `}`
}

func TestParse(t *testing.T) {
	for _, c := range []struct{ text, err string }{
		{text(``), ""},
		{text(`"priority":10,"share":30,"latencyTarget":"20ms","level":3,"group":"ranks.a"`), ""},
		{text(`"priority":-256`), ""},
		{text(`"priority":256`), "priority 256 is out of range; use -256 to 255"},
		{text(`"priority":1.5`), "priority"},
		{text(`"priority":"high"`), "the parameters are not a valid GpuParameters: "},
		{text(`"Priority":1`), `unknown field "Priority"`},
		{text(`"priority":1,"priority":2`), `duplicate field "priority"`},
		{text(`"speed":1`), `unknown field "speed"; the fields are priority, share, latencyTarget, level and group`},
		{text(`"share":101`), "share 101 is out of range"},
		{text(`"level":4`), "level 4 is out of range"},
		{text(`"latencyTarget":"20"`), `latencyTarget "20" is not a time; write it with a unit, such as "20ms"`},
		{text(`"latencyTarget":20`), "latencyTarget 20 is not a time"},
		{text(`"latencyTarget":"0s"`), "latencyTarget 0s is out of range"},
		{text(`"latencyTarget":"-1s"`), "out of range"},
		{text(`"group":"a b"`), `group "a b" is not a name`},
		{text(`"group":"` + strings.Repeat("x", 64) + `"`), "is not a name; use up to 63"},
		{`{"kind":"GpuParameters","apiVersion":"gpu.xsched.dev/v2"}`, `apiVersion "gpu.xsched.dev/v2" are not known; use apiVersion gpu.xsched.dev/v1alpha1`},
		{`{"kind":"GpuConfig"}`, `kind "GpuConfig" are not known; use kind GpuParameters`},
		{`null`, `kind "" are not known`},
		{`[]`, "not a valid GpuParameters"},
		{`{`, "not a valid GpuParameters"},
		{``, "not a valid GpuParameters"},
		{text(``) + strings.Repeat(" ", MaxBytes), "bytes; use at most 10240"},
	} {
		_, err := Parse([]byte(c.text))
		switch {
		case c.err == "" && err != nil:
			t.Errorf("%s: %v", c.text, err)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%.80s: error %v, want %q", c.text, err, c.err)
		}
	}
}

func must(t *testing.T, bodies ...string) []Parameters {
	t.Helper()
	var out []Parameters
	for _, body := range bodies {
		p, err := Parse([]byte(text(body)))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

func TestResolve(t *testing.T) {
	latency := `"priority":10,"share":40,"latencyTarget":"20ms","level":3`
	for _, c := range []struct {
		name         string
		class, claim []string
		want         Resolved
		err          string
	}{
		{"nothing is best effort", nil, nil, Resolved{Priority: DefaultPriority}, ""},
		{"class", []string{latency}, nil, Resolved{Priority: 10, Share: 40, LatencyTarget: 20 * time.Millisecond, Level: 3}, ""},
		{"later class fields count", []string{latency, `"priority":5`}, nil, Resolved{Priority: 5, Share: 40, LatencyTarget: 20 * time.Millisecond, Level: 3}, ""},
		{"claim lowers", []string{latency}, []string{`"priority":-5,"share":10,"latencyTarget":"1s","group":"g"`}, Resolved{-5, 10, time.Second, 3, "g"}, ""},
		{"equal is allowed", []string{latency}, []string{latency}, Resolved{Priority: 10, Share: 40, LatencyTarget: 20 * time.Millisecond, Level: 3}, ""},
		{"claim raises priority", []string{latency}, []string{`"priority":11`}, Resolved{}, "priority 11 of the claim is above the 10 of its device class"},
		{"claim raises itself without class parameters", nil, []string{`"priority":0`}, Resolved{}, "above the -10"},
		{"claim raises itself in two steps", []string{latency}, []string{`"priority":0`, `"priority":10`}, Resolved{}, "above the 0"},
		{"claim raises share", []string{latency}, []string{`"share":41`}, Resolved{}, "share 41"},
		{"claim drops the bound of share", []string{latency}, []string{`"share":0`}, Resolved{}, "share 0"},
		{"claim takes a share", nil, []string{`"share":1`}, Resolved{}, "request capacity share instead"},
		{"claim takes a latency target", nil, []string{`"latencyTarget":"1s"`}, Resolved{}, "no latency target"},
		{"claim shortens the target", []string{latency}, []string{`"latencyTarget":"19ms"`}, Resolved{}, "below the 20ms"},
		{"claim lowers the level, which spares it", []string{latency}, []string{`"level":1`}, Resolved{}, "level 1 of the claim differs"},
		{"claim sets the level", nil, []string{`"level":3`}, Resolved{}, "level 3 of the claim differs"},
		{"claim leaves the group of its class", []string{`"group":"a"`}, []string{`"group":"b"`}, Resolved{}, `group "b" of the claim differs`},
	} {
		got, err := Resolve(must(t, c.class...), must(t, c.claim...))
		if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) || c.err == "" && err != nil {
			t.Errorf("%s: error %v, want %q", c.name, err, c.err)
		}
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// anyParameters draws parameters that are in range.
func anyParameters(t *rapid.T, label string) Parameters {
	var p Parameters
	if rapid.Bool().Draw(t, label+" has priority") {
		v := rapid.Int32Range(-256, 255).Draw(t, label+" priority")
		p.Priority = &v
	}
	if rapid.Bool().Draw(t, label+" has share") {
		v := rapid.IntRange(0, 100).Draw(t, label+" share")
		p.Share = &v
	}
	if rapid.Bool().Draw(t, label+" has target") {
		v := Duration(rapid.Int64Range(1000, 1e12).Draw(t, label+" target"))
		p.LatencyTarget = &v
	}
	if rapid.Bool().Draw(t, label+" has level") {
		v := rapid.IntRange(0, 3).Draw(t, label+" level")
		p.Level = &v
	}
	return p
}

// TestClaimsNeverRaise: whatever a claim says, it gets no more than its class gives.
func TestClaimsNeverRaise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		class := []Parameters{anyParameters(t, "class")}
		claim := []Parameters{anyParameters(t, "claim 1"), anyParameters(t, "claim 2")}
		bound, err := Resolve(class, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Resolve(class, claim)
		if err != nil {
			return
		}
		if got.Priority > bound.Priority || got.Share > bound.Share || (got.Share == 0) != (bound.Share == 0) ||
			got.Level != bound.Level || got.LatencyTarget < bound.LatencyTarget || (got.LatencyTarget == 0) != (bound.LatencyTarget == 0) {
			t.Fatalf("class gives %+v, claim got %+v", bound, got)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(text(`"priority":10,"share":30,"latencyTarget":"20ms","level":3,"group":"ranks"`)))
	f.Add([]byte(text(`"latencyTarget":1`)))
	f.Add([]byte(`{"kind":1}`))
	f.Add([]byte("{\"kind\":\"\xff\"}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := Parse(raw)
		if err != nil {
			if own, ok := errors.AsType[*Error](err); !ok || own.Remedy == "" {
				t.Fatalf("%q: error without a remedy: %v", raw, err)
			}
			if s := err.Error(); strings.ContainsAny(s, "\n\r") || len(s) > 600 || !utf8.ValidString(s) {
				t.Fatalf("%q: not one short line: %q", raw, s)
			}
			return
		}
		again, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(again); err != nil {
			t.Fatalf("%q was accepted, its form %s was not: %v", raw, again, err)
		}
	})
}
