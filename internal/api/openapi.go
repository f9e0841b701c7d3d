// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"sync"

	"xsched/internal/control"
	"xsched/internal/model"
)

const openAPIPath = "/openapi.json"

// object is a JSON object.
type object = map[string]any

// OpenAPI returns the OpenAPI 3.1 document of the routes under control.Prefix, derived from the
// table of routes and the Go types.
func OpenAPI() ([]byte, error) {
	g := schemas{}
	failure := object{
		"description": "Refused: code is the error class, message the cause, remedy the next step",
		"content":     object{"application/json": object{"schema": g.of(reflect.TypeFor[control.ErrorReply]())}},
	}
	paths := object{}
	add := func(method, path string, operation object) {
		item, ok := paths[control.Prefix+path].(object)
		if !ok {
			item = object{}
			paths[control.Prefix+path] = item
		}
		name := strings.NewReplacer("/{", "Of", "}", "", ".json", "").Replace(path[1:])
		operation["operationId"] = strings.ToLower(method) + strings.ToUpper(name[:1]) + name[1:]
		operation["responses"].(object)["default"] = object{"$ref": "#/components/responses/Failure"}
		item[strings.ToLower(method)] = operation
	}
	body := func(t reflect.Type) object {
		return object{"application/json": object{"schema": g.of(t)}}
	}
	for _, r := range routes() {
		operation := object{
			"summary":   r.summary,
			"responses": object{"200": object{"description": "Done", "content": body(r.reply)}},
		}
		if r.request != nil {
			operation["requestBody"] = object{"required": true, "content": body(r.request)}
		}
		if r.query != nil {
			operation["parameters"] = parameters(g, r.query)
		}
		if r.parameter != "" {
			operation["parameters"] = []any{object{"name": r.parameter, "in": "path", "required": true, "schema": object{"type": "string"}}}
		}
		add(r.method, r.path, operation)
	}
	add(http.MethodGet, eventsPath, events(g))
	add(http.MethodGet, openAPIPath, object{
		"summary":   "This document",
		"responses": object{"200": object{"description": "Done", "content": object{"application/json": object{"schema": object{"type": "object"}}}}},
	})
	return json.MarshalIndent(object{
		"openapi": "3.1.0",
		"info": object{
			"title": "XSched", "version": "1", "license": object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
			"description": "Control interface of the XSched GPU scheduler.",
		},
		"servers":    []any{object{"url": "http://127.0.0.1:50000", "description": "default address of `xsched serve`"}},
		"paths":      paths,
		"components": object{"schemas": object(g), "responses": object{"Failure": failure}, "securitySchemes": object{"token": object{"type": "http", "scheme": "bearer"}}},
		"security":   []any{object{}, object{"token": []any{}}},
	}, "", "  ")
}

// events describes the stream of events.
func events(g schemas) object {
	return object{
		"summary":    "Server-sent events: the state at a period",
		"parameters": parameters(g, reflect.TypeFor[control.EventsRequest]()),
		"responses": object{"200": object{
			"description": "The data of each event is one JSON value: a List for `snapshot`, Devices, Journal or History",
			"content": object{"text/event-stream": object{"schema": object{"oneOf": []any{
				g.of(reflect.TypeFor[control.List]()), g.of(reflect.TypeFor[control.Devices]()), g.of(reflect.TypeFor[control.Journal]()), g.of(reflect.TypeFor[control.History]()),
			}}}},
		}},
	}
}

// parameters describes the fields of a query.
func parameters(g schemas, t reflect.Type) []any {
	var out []any
	for _, f := range queryFields(t) {
		out = append(out, object{"name": f.name, "in": "query", "schema": g.of(f.typ)})
	}
	return out
}

var openAPIOnce = sync.OnceValues(OpenAPI)

func serveOpenAPI(w http.ResponseWriter, _ *http.Request) {
	document, err := openAPIOnce()
	if err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(document, '\n'))
}

// schemas holds the types with a name that were found so far.
type schemas object

// of returns the JSON schema of a type as encoding/json writes it. Named structs become
// components.
func (g schemas) of(t reflect.Type) object {
	switch t.Kind() {
	case reflect.Pointer:
		return g.of(t.Elem())
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.Int, reflect.Int64:
		return object{"type": "integer", "format": "int64"}
	case reflect.Int8, reflect.Int16, reflect.Int32:
		return object{"type": "integer", "format": "int32"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return object{"type": "integer", "minimum": 0}
	case reflect.Slice:
		return object{"type": "array", "items": g.of(t.Elem())}
	case reflect.Array:
		return object{"type": "array", "items": g.of(t.Elem()), "minItems": t.Len(), "maxItems": t.Len()}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": g.of(t.Elem())}
	case reflect.Struct:
		return g.ref(t)
	}
	return object{}
}

// describeHint adds the range of a hint to its schema, from the table of hints.
func describeHint(name string, schema object) {
	f := model.FieldOf(name)
	if f == nil {
		return
	}
	schema["description"] = f.Help + ": " + f.Range()
	least := min(f.Min, 0) // 0 restores the default
	switch f.Kind {
	case model.HintName:
		schema["maxLength"] = f.Max
	case model.HintPercentile:
		schema["minimum"], schema["maximum"] = float64(least)/100, float64(f.Max)/100
	case model.HintSwitch:
	default:
		schema["minimum"], schema["maximum"] = least, f.Max
	}
}

func (g schemas) ref(t reflect.Type) object {
	name := strings.ToUpper(t.Name()[:1]) + t.Name()[1:]
	reference := object{"$ref": "#/components/schemas/" + name}
	if _, known := g[name]; known {
		return reference
	}
	properties := object{}
	schema := object{"type": "object", "properties": properties, "additionalProperties": false}
	g[name] = schema // before its fields, because a type may contain itself
	var required []string
	for _, f := range reflect.VisibleFields(t) { // JSON promotes the fields of embedded structs
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || tag == "-" || f.Anonymous {
			continue
		}
		if tag == "" {
			tag = f.Name
		}
		properties[tag] = g.of(f.Type)
		if strings.Contains(t.Name(), "Hint") {
			describeHint(tag, properties[tag].(object))
		}
		if !strings.Contains(options, "omitempty") && !strings.Contains(options, "omitzero") {
			required = append(required, tag)
		}
	}
	if len(required) > 0 {
		schema["required"] = required
	}
	return reference
}
