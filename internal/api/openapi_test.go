// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"xsched/internal/control"
	"xsched/internal/model"
)

// document is the OpenAPI document as a client reads it.
func document(t *testing.T) object {
	t.Helper()
	a := httptest.NewRecorder()
	Handler(newWorld(), as(0)).ServeHTTP(a, httptest.NewRequest("GET", control.Prefix+openAPIPath, nil))
	var doc object
	if err := json.Unmarshal(a.Body.Bytes(), &doc); err != nil || a.Code != http.StatusOK {
		t.Fatalf("%d, %v", a.Code, err)
	}
	return doc
}

// at follows keys into a document.
func at(t *testing.T, doc any, keys ...string) any {
	t.Helper()
	for _, key := range keys {
		o, ok := doc.(object)
		if !ok || o[key] == nil {
			t.Fatalf("no %s (of %v)", key, keys)
		}
		doc = o[key]
	}
	return doc
}

func TestOpenAPIHasEveryRoute(t *testing.T) {
	doc := document(t)
	if v := at(t, doc, "openapi"); v != "3.1.0" {
		t.Errorf("version %v", v)
	}
	said := map[string]bool{}
	ids := map[string]bool{}
	for path, item := range at(t, doc, "paths").(object) {
		for method, operation := range item.(object) {
			said[strings.ToUpper(method)+" "+path] = true
			id := at(t, operation, "operationId").(string)
			if ids[id] {
				t.Errorf("two operations are called %s", id)
			}
			ids[id] = true
			at(t, operation, "summary")
			at(t, operation, "responses", "200")
			if ref := at(t, operation, "responses", "default", "$ref").(string); ref != "#/components/responses/Failure" {
				t.Errorf("%s %s fails with %s", method, path, ref)
			}
		}
	}
	served := map[string]bool{"GET " + control.Prefix + openAPIPath: true, "GET " + control.Prefix + eventsPath: true}
	for _, r := range routes() {
		served[r.method+" "+control.Prefix+r.path] = true
	}
	if !maps.Equal(said, served) {
		t.Errorf("documented %v\nserved     %v", slices.Sorted(maps.Keys(said)), slices.Sorted(maps.Keys(served)))
	}
	// The mux serves every documented route: no reply is "no route".
	mux := Handler(newWorld(), func(*http.Request) (control.Caller, error) { return control.Caller{}, errSilent })
	for route := range served {
		method, path, _ := strings.Cut(route, " ")
		r := httptest.NewRequest(method, path, strings.NewReader("{}"))
		r.Header.Set("Content-Type", "application/json")
		a := httptest.NewRecorder()
		mux.ServeHTTP(a, r)
		if a.Code != http.StatusServiceUnavailable {
			t.Errorf("%s: %d %s", route, a.Code, a.Body)
		}
	}
}

// TestOpenAPIDescribesTheTypes fills every request and reply and holds its JSON to the schema.
func TestOpenAPIDescribesTheTypes(t *testing.T) {
	doc := document(t)
	check := func(where string, typ reflect.Type, content any) {
		t.Helper()
		schema := at(t, content, "application/json", "schema")
		for _, full := range []bool{true, false} {
			v := reflect.New(typ).Elem()
			if full {
				fill(v)
			} else {
				empty(v)
			}
			text, err := json.Marshal(v.Interface())
			if err != nil {
				t.Fatal(err)
			}
			var value any
			if err := json.Unmarshal(text, &value); err != nil {
				t.Fatal(err)
			}
			if err := valid(doc, schema.(object), value); err != nil {
				t.Errorf("%s: %v\n%s", where, err, text)
			}
		}
	}
	for _, r := range routes() {
		where := r.method + " " + r.path
		operation := at(t, doc, "paths", control.Prefix+r.path, strings.ToLower(r.method))
		check(where, r.reply, at(t, operation, "responses", "200", "content"))
		if r.request != nil {
			check(where, r.request, at(t, operation, "requestBody", "content"))
		}
	}
	check("failure", reflect.TypeFor[control.ErrorReply](), at(t, doc, "components", "responses", "Failure", "content"))
	// The validator rejects invalid documents.
	schema := at(t, doc, "components", "schemas", "PolicyRequest").(object)
	if valid(doc, schema, object{"name": 7.0}) == nil || valid(doc, schema, object{"nome": "x"}) == nil {
		t.Error("nonsense is valid")
	}
	// The schema has the range of every hint and rejects values beyond it, like the control.
	schema = at(t, doc, "components", "schemas", "HintRequest").(object)
	for _, f := range model.HintFields() {
		property, ok := at(t, schema, "properties").(object)[f.Name].(object)
		if !ok || !strings.Contains(fmt.Sprint(property["description"]), f.Range()) {
			t.Errorf("%s is not described: %v", f.Name, property)
		}
		if f.Kind == model.HintNumber || f.Kind == model.HintTime {
			if valid(doc, schema, object{"pid": 1.0, f.Name: float64(f.Max + 1)}) == nil || valid(doc, schema, object{"pid": 1.0, f.Name: float64(f.Max)}) != nil {
				t.Errorf("%s: the schema's range is not the daemon's", f.Name)
			}
		}
	}
}

// fill sets every field to a non-zero value.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("x")
	case reflect.Float32, reflect.Float64:
		v.SetFloat(1.5)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(-3)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(3)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		value := reflect.New(v.Type().Elem()).Elem()
		fill(value)
		v.SetMapIndex(reflect.ValueOf("x"), value)
	case reflect.Struct:
		for f, value := range v.Fields() {
			fill(value)
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if hint := model.FieldOf(tag); hint != nil && strings.Contains(v.Type().Name(), "Hint") {
				largest(reflect.Indirect(value), hint)
			}
		}
	}
}

// largest returns the upper end of a hint's range.
func largest(v reflect.Value, f *model.HintField) {
	switch {
	case v.CanInt():
		v.SetInt(f.Max)
	case v.CanFloat():
		v.SetFloat(float64(f.Max) / 100)
	}
}

// empty is the reply of an idle daemon: all lists are present and empty.
func empty(v reflect.Value) {
	switch v.Kind() {
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
	case reflect.Array:
		for i := range v.Len() {
			empty(v.Index(i))
		}
	case reflect.Struct:
		for _, f := range v.Fields() {
			empty(f)
		}
	}
}

// valid implements the subset of JSON Schema that the document uses.
func valid(doc, schema object, value any) error {
	if ref, ok := schema["$ref"].(string); ok {
		name := strings.TrimPrefix(ref, "#/components/schemas/")
		target, ok := doc["components"].(object)["schemas"].(object)[name].(object)
		if !ok {
			return fmt.Errorf("no schema %s", ref)
		}
		return valid(doc, target, value)
	}
	wrong := fmt.Errorf("%v is no %v", value, schema["type"])
	switch schema["type"] {
	case "object":
		o, ok := value.(object)
		if !ok {
			return wrong
		}
		properties, _ := schema["properties"].(object)
		for key, v := range o {
			p, ok := properties[key].(object)
			if !ok {
				if p, ok = schema["additionalProperties"].(object); !ok {
					return fmt.Errorf("%s is not described", key)
				}
			}
			if err := valid(doc, p, v); err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
		}
		required, _ := schema["required"].([]any)
		for _, key := range required {
			if _, ok := o[key.(string)]; !ok {
				return fmt.Errorf("%s is missing", key)
			}
		}
	case "array":
		list, ok := value.([]any)
		if !ok {
			return wrong
		}
		for _, v := range list {
			if err := valid(doc, schema["items"].(object), v); err != nil {
				return err
			}
		}
	case "string":
		if _, ok := value.(string); !ok {
			return wrong
		}
	case "boolean":
		if _, ok := value.(bool); !ok {
			return wrong
		}
	case "number", "integer":
		n, ok := value.(float64)
		if !ok || schema["type"] == "integer" && n != float64(int64(n)) {
			return wrong
		}
		if least, ok := schema["minimum"].(float64); ok && n < least {
			return fmt.Errorf("%v is less than %v", n, least)
		}
		if most, ok := schema["maximum"].(float64); ok && n > most {
			return fmt.Errorf("%v is more than %v", n, most)
		}
	default:
		return fmt.Errorf("schema %v says nothing", schema)
	}
	return nil
}
