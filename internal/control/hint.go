// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"math"
	"reflect"
	"strings"

	"xsched/internal/model"
)

// HintRequest changes hints of a process, or of one of its queues; nil leaves a value as it is. The
// fields after Queue are those of model.HintFields: names, ranges and what 0 means are there.
type HintRequest struct {
	PID int `json:"pid"`
	// Queue is the index of the queue that is meant; nil: the process.
	Queue *uint32 `json:"queue,omitempty"`

	Priority         *int32   `json:"priority,omitempty"`
	Level            *int     `json:"level,omitempty"` // 0: auto
	InFlight         *int     `json:"in_flight,omitempty"`
	Batch            *int     `json:"batch,omitempty"`
	Utilization      *int     `json:"utilization,omitempty"` // percent
	TimesliceUS      *int64   `json:"timeslice_us,omitempty"`
	DeadlineUS       *int64   `json:"deadline_us,omitempty"`
	LaxityUS         *int64   `json:"laxity_us,omitempty"`
	LaxPriority      *int32   `json:"lax_priority,omitempty"`
	CriticalPriority *int32   `json:"critical_priority,omitempty"`
	K                *int     `json:"k,omitempty"`
	WindowActive     *bool    `json:"window_active,omitempty"`
	SLOUS            *int64   `json:"slo_us,omitempty"`
	SLOPercentile    *float64 `json:"slo_percentile,omitempty"`
	Gang             *string  `json:"gang,omitempty"`
	PerQueue         *bool    `json:"per_queue,omitempty"`
}

// Hints is all that is said of a process or a queue.
type Hints struct {
	Priority         int32   `json:"priority"`
	Level            int     `json:"level"`
	InFlight         int     `json:"in_flight"`
	Batch            int     `json:"batch"`
	Utilization      int     `json:"utilization"`
	TimesliceUS      int64   `json:"timeslice_us"`
	DeadlineUS       int64   `json:"deadline_us"`
	LaxityUS         int64   `json:"laxity_us"`
	LaxPriority      int32   `json:"lax_priority"`
	CriticalPriority int32   `json:"critical_priority"`
	K                int     `json:"k"`
	WindowActive     bool    `json:"window_active"`
	SLOUS            int64   `json:"slo_us"`
	SLOPercentile    float64 `json:"slo_percentile"`
	Gang             string  `json:"gang"`
	PerQueue         bool    `json:"per_queue"`
}

// HintReply is what is in force after a HintRequest.
type HintReply struct {
	PID   int     `json:"pid"`
	Queue *uint32 `json:"queue,omitempty"`
	Hints
}

// Where model.HintFields are in the two structs.
var (
	requestNames = hintNames(reflect.TypeFor[HintRequest]())
	shownNames   = hintNames(reflect.TypeFor[Hints]())
)

// hintNames finds the fields of a struct by their name in JSON.
func hintNames(t reflect.Type) map[string]int {
	out := map[string]int{}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		out[name] = i
	}
	return out
}

// Change reads what a request says.
func (r *HintRequest) Change() (model.HintChange, error) {
	var c model.HintChange
	v := reflect.ValueOf(r).Elem()
	for _, f := range model.HintFields() {
		p := v.Field(requestNames[f.Name])
		if p.IsNil() {
			continue
		}
		value := model.HintValue{}
		switch e := p.Elem(); e.Kind() {
		case reflect.Bool:
			if e.Bool() {
				value.Number = 1
			}
		case reflect.Float64:
			value.Number = -1
			if n := math.Round(e.Float() * 100); n >= 0 && n < 1e9 {
				value.Number = int64(n)
			}
		case reflect.String:
			value.Text = e.String()
		default:
			value.Number = e.Int()
		}
		if err := f.Check(value); err != nil {
			if bad, ok := errors.AsType[*model.RangeError](err); ok {
				return c, Errorf(ErrInvalid, "use "+bad.Remedy, "%s", bad.Cause)
			}
			return c, Errorf(ErrInvalid, "", "%v", err)
		}
		c.Set(f.Name, value)
	}
	if r.SLOUS != nil && *r.SLOUS == 0 && r.SLOPercentile == nil {
		c.Set("slo_percentile", model.HintValue{}) // it goes with its target
	}
	return c, nil
}

// Set enters a value that model.HintField.Parse has read.
func (r *HintRequest) Set(f *model.HintField, value model.HintValue) {
	v := reflect.ValueOf(r).Elem()
	p := v.Field(requestNames[f.Name])
	p.Set(reflect.New(p.Type().Elem()))
	put(p.Elem(), value)
}

func put(v reflect.Value, value model.HintValue) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(value.Number != 0)
	case reflect.Float64:
		v.SetFloat(float64(value.Number) / 100)
	case reflect.String:
		v.SetString(value.Text)
	default:
		v.SetInt(value.Number)
	}
}

// Value is the way back: what is said here.
func (h *Hints) Value(f *model.HintField) model.HintValue {
	v := reflect.ValueOf(h).Elem()
	switch p := v.Field(shownNames[f.Name]); p.Kind() {
	case reflect.Bool:
		if p.Bool() {
			return model.HintValue{Number: 1}
		}
		return model.HintValue{}
	case reflect.Float64:
		return model.HintValue{Number: int64(math.Round(p.Float() * 100))}
	case reflect.String:
		return model.HintValue{Text: p.String()}
	default:
		return model.HintValue{Number: p.Int()}
	}
}

// HintsOf converts a hint.
func HintsOf(h *model.Hint) Hints {
	var out Hints
	v := reflect.ValueOf(&out).Elem()
	for _, f := range model.HintFields() {
		put(v.Field(shownNames[f.Name]), f.Value(h))
	}
	return out
}
