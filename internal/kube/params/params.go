// SPDX-License-Identifier: Apache-2.0

// Package params defines the opaque parameters of XSched's devices: what a DeviceClass gives to the
// claims of it, and what a claim may change. The class decides; a claim can only lower itself.
package params

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	strict "sigs.k8s.io/json"

	"xsched/internal/model"
)

// APIVersion and Kind identify the parameters.
const (
	APIVersion = "gpu.xsched.dev/v1alpha1"
	Kind       = "GpuParameters"
)

// MaxBytes limits the text of one set of parameters. Kubernetes has the same limit.
const MaxBytes = 10 << 10

// DefaultPriority is that of claims whose class sets none: best effort.
const DefaultPriority int32 = -10

// Error is a mistake in parameters.
type Error struct{ Cause, Remedy string }

func (e *Error) Error() string { return e.Cause + "; " + e.Remedy }

func refuse(remedy, format string, args ...any) *Error {
	return &Error{Cause: fmt.Sprintf(format, args...), Remedy: remedy}
}

// Parameters are the parameters of a class or of a claim. Absent fields say nothing.
type Parameters struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	Priority *int32 `json:"priority,omitempty"` // larger is more important
	// Share is the weight in percent of claims that reserve no share. Reserving is the scheduler's part.
	Share         *int      `json:"share,omitempty"`
	LatencyTarget *Duration `json:"latencyTarget,omitempty"` // of 99 % of the requests
	Level         *int      `json:"level,omitempty"`         // preemption level; 0: the highest that works
	Group         *string   `json:"group,omitempty"`         // programs of a group are suspended together
}

// Duration is a time with its unit, such as "20ms".
type Duration time.Duration

// UnmarshalJSON reads a text such as "20ms".
func (d *Duration) UnmarshalJSON(text []byte) error {
	var s string
	if json.Unmarshal(text, &s) != nil {
		return refuse(`write it with a unit, such as "20ms"`, "latencyTarget %s is not a time", text)
	}
	parsed, err := time.ParseDuration(s)
	if err != nil {
		return refuse(`write it with a unit, such as "20ms"`, "latencyTarget %.40q is not a time", s)
	}
	*d = Duration(parsed)
	return nil
}

// MarshalJSON writes the form that UnmarshalJSON reads.
func (d Duration) MarshalJSON() ([]byte, error) {
	return json.Marshal(time.Duration(d).String())
}

// fields lists what parameters may contain, for messages.
const fields = "the fields are priority, share, latencyTarget, level and group"

// Parse reads parameters and checks kind, fields, types and ranges.
func Parse(raw []byte) (Parameters, error) {
	var p Parameters
	if len(raw) > MaxBytes {
		return p, refuse(fmt.Sprintf("use at most %d", MaxBytes), "the parameters have %d bytes", len(raw))
	}
	unknown, err := strict.UnmarshalStrict(raw, &p)
	if own, ok := errors.AsType[*Error](err); ok {
		return p, own
	}
	if err != nil {
		return p, refuse(fields, "the parameters are not a valid %s: %s", Kind, brief(err))
	}
	switch {
	case p.Kind != Kind:
		return p, refuse("use kind "+Kind, "parameters of kind %.64q are not known", p.Kind)
	case p.APIVersion != APIVersion:
		return p, refuse("use apiVersion "+APIVersion, "parameters of apiVersion %.64q are not known", p.APIVersion)
	case len(unknown) > 0:
		return p, refuse(fields, "the parameters are not a valid %s: %s", Kind, brief(unknown[0]))
	}
	return p, p.check()
}

// brief makes a decoder's error one short line.
func brief(err error) string {
	text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "json: "), "cannot unmarshal ")
	text = strings.ReplaceAll(text, "Go struct field Parameters.", "field ")
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 160 {
		text = text[:160] + "..."
	}
	return strings.ToValidUTF8(text, "?")
}

// groupName is that of a label value: names of groups come from labels, too.
var groupName = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

// check compares the values with the ranges of the hints that they set.
func (p *Parameters) check() error {
	for _, f := range model.HintFields() {
		value, set := p.value(f.Name)
		if !set {
			continue
		}
		if err := f.Check(value); err != nil {
			bad, ok := errors.AsType[*model.RangeError](err)
			if !ok {
				return refuse("see the documentation of device classes", "%v", err)
			}
			return refuse("use "+bad.Remedy, "%s", strings.NewReplacer("utilization", "share", "slo", "latencyTarget").Replace(bad.Cause))
		}
	}
	if p.LatencyTarget != nil && time.Duration(*p.LatencyTarget) < time.Microsecond {
		return refuse("use a time above 0, or leave it out", "latencyTarget %s is out of range", time.Duration(*p.LatencyTarget))
	}
	if p.Group != nil && !groupName.MatchString(*p.Group) {
		return refuse("use up to 63 letters, digits, -, _ and .", "group %.64q is not a name", *p.Group)
	}
	return nil
}

// value returns the parameter that sets a hint.
func (p *Parameters) value(hint string) (v model.HintValue, set bool) {
	switch {
	case hint == "priority" && p.Priority != nil:
		return model.HintValue{Number: int64(*p.Priority)}, true
	case hint == "utilization" && p.Share != nil:
		return model.HintValue{Number: int64(*p.Share)}, true
	case hint == "level" && p.Level != nil:
		return model.HintValue{Number: int64(*p.Level)}, true
	case hint == "slo_us" && p.LatencyTarget != nil:
		return model.HintValue{Number: time.Duration(*p.LatencyTarget).Microseconds()}, true
	}
	return v, false
}
