// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/url"
	"reflect"
	"strconv"
	"strings"

	"xsched/internal/control"
)

// queryField is a parameter of a query: a field of the request by its JSON name.
type queryField struct {
	name  string
	index int
	typ   reflect.Type
}

func queryFields(t reflect.Type) []queryField {
	var out []queryField
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		out = append(out, queryField{name, i, f.Type})
	}
	return out
}

// readQuery reads the parameters of a query into a struct of numbers, strings and truth values. Unknown and
// repeated parameters are an error, as unknown fields of a body are.
func readQuery(raw string, into any) error {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return control.Errorf(control.ErrInvalid, "", "read query: %v", err)
	}
	v := reflect.ValueOf(into).Elem()
	for _, f := range queryFields(v.Type()) {
		texts := values[f.name]
		if delete(values, f.name); len(texts) == 0 {
			continue
		}
		if len(texts) > 1 {
			return control.Errorf(control.ErrInvalid, "name it once", "parameter %s is repeated", f.name)
		}
		if !setField(v.Field(f.index), texts[0]) {
			return control.Errorf(control.ErrInvalid, "use "+kindText(f.typ.Kind()), "parameter %s is %q", f.name, texts[0])
		}
	}
	for name := range values {
		return control.Errorf(control.ErrInvalid, "see "+control.Prefix+openAPIPath, "unknown parameter %q", name)
	}
	return nil
}

func kindText(k reflect.Kind) string {
	if k == reflect.Bool {
		return "true or false"
	}
	return "a number"
}

func setField(v reflect.Value, text string) bool {
	switch v.Kind() {
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, 64)
		v.SetInt(n)
		return err == nil
	case reflect.Uint64:
		n, err := strconv.ParseUint(text, 10, 64)
		v.SetUint(n)
		return err == nil
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		v.SetBool(b)
		return err == nil
	case reflect.String:
		v.SetString(text)
		return true
	}
	return false
}
