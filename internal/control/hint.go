// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"math"
	"reflect"
	"strings"

	"xsched/internal/model"
)

// HintReply holds the effective hints after a HintRequest.
type HintReply struct {
	PID   int     `json:"pid"`
	Queue *uint32 `json:"queue,omitempty"`
	Hints
}

// Field indices of the hints in the two structs.
var (
	requestNames = hintNames(reflect.TypeFor[HintRequest]())
	shownNames   = hintNames(reflect.TypeFor[Hints]())
)

// hintNames maps the JSON names of a struct to field indices.
func hintNames(t reflect.Type) map[string]int {
	out := map[string]int{}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		out[name] = i
	}
	return out
}

// Change converts a request and checks its ranges.
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
		c.Set("slo_percentile", model.HintValue{}) // the percentile is cleared with its target
	}
	return c, nil
}

// Set stores a value that model.HintField.Parse returned.
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

// Value returns the value of one hint.
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
