// SPDX-License-Identifier: Apache-2.0

package config

import (
	"reflect"
	"strconv"
	"strings"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// Schema returns the JSON schema of a file.
func Schema() map[string]any {
	s := schemaOf(reflect.TypeFor[File](), "")
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "XSched configuration"
	return s
}

func schemaOf(t reflect.Type, tag reflect.StructTag) map[string]any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	s := map[string]any{}
	if help := tag.Get("help"); help != "" {
		s["description"] = help
	}
	switch {
	case t == reflect.TypeFor[Hints]():
		s["type"], s["properties"], s["additionalProperties"] = "object", hintSchemas(), false
	case t == reflect.TypeFor[Policy]():
		s["enum"] = policy.Names()
	case t == reflect.TypeFor[Mode]():
		s["enum"] = []string{"off", "timeslice", "suspend", "level 1", "level 2", "level 3", "live"}
	case t == reflect.TypeFor[Duration]():
		s["type"], s["pattern"] = "string", `^[0-9.]+(ns|us|µs|ms|s|m|h)`
	case t == reflect.TypeFor[Name]():
		s["type"] = []string{"string", "integer"}
	case t == reflect.TypeFor[Pattern]():
		s["type"], s["minLength"], s["maxLength"] = "string", 1, maxPattern
	case t.Kind() == reflect.Struct:
		properties := map[string]any{}
		for field := range t.Fields() {
			if name := field.Tag.Get("yaml"); name != "" {
				properties[name] = schemaOf(field.Type, field.Tag)
			}
		}
		s["type"], s["properties"], s["additionalProperties"] = "object", properties, false
	case t.Kind() == reflect.Map:
		s["type"], s["additionalProperties"] = "object", schemaOf(t.Elem(), "")
	case t.Kind() == reflect.Slice:
		s["type"], s["items"] = "array", schemaOf(t.Elem(), "")
	case t.Kind() == reflect.Int:
		least, most, _ := strings.Cut(tag.Get("range"), "..")
		s["type"] = "integer"
		s["minimum"], _ = strconv.Atoi(least)
		s["maximum"], _ = strconv.Atoi(most)
	default:
		s["type"] = "string"
		if allowed := tag.Get("enum"); allowed != "" {
			s["enum"] = strings.Split(allowed, ",")
		}
	}
	return s
}

func hintSchemas() map[string]any {
	out := map[string]any{}
	for _, f := range model.HintFields() {
		s := map[string]any{"description": f.Help}
		switch f.Kind {
		case model.HintNumber:
			s["type"], s["minimum"], s["maximum"] = "integer", min(f.Min, 0), f.Max
		case model.HintSwitch:
			s["type"] = "boolean"
		case model.HintName:
			s["type"], s["maxLength"] = "string", f.Max
		default:
			s["type"] = []string{"string", "number"}
		}
		out[f.Flag] = s
	}
	return out
}
