// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"xsched/internal/model"
	"xsched/internal/policy"
)

func reflectOf(f *File) reflect.Value { return reflect.ValueOf(f).Elem() }

// text is a type that is written as one word or number.
type text interface {
	// fromText reads a value; the error has cause and remedy.
	fromText(string) error
}

// value converts a node to v. tag holds the limits of the field.
func (d *decoder) value(n *yaml.Node, v reflect.Value, tag reflect.StructTag) {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		d.fail(n, "write the value out", "anchors and aliases are not supported")
		return
	case n.Tag == "!!null" && (v.Kind() == reflect.Struct || v.Kind() == reflect.Slice || v.Kind() == reflect.Map):
		return // a heading whose entries are commented out
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if h, ok := reflect.TypeAssert[*Hints](v.Addr()); ok {
		d.hints(n, h)
		return
	}
	if t, ok := reflect.TypeAssert[text](v.Addr()); ok {
		if d.isScalar(n, "a value") {
			d.text(n, t, v, tag)
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.mapping(n, v)
	case reflect.Map:
		d.table(n, v)
	case reflect.Slice:
		d.list(n, v)
	case reflect.Int:
		d.number(n, v, tag)
	default:
		d.word(n, v, tag)
	}
}

// isScalar reports a node that is not a plain value.
func (d *decoder) isScalar(n *yaml.Node, want string) bool {
	switch {
	case n.Kind == yaml.MappingNode:
		d.fail(n, "", "a mapping is not %s", want)
	case n.Kind == yaml.SequenceNode:
		d.fail(n, "", "a list is not %s", want)
	case n.Tag == "!!null":
		d.fail(n, "remove the key, or give it a value", "the key has no value")
	default:
		return true
	}
	return false
}

func (d *decoder) text(n *yaml.Node, t text, v reflect.Value, tag reflect.StructTag) {
	if err := t.fromText(n.Value); err != nil {
		cause, remedy, _ := strings.Cut(err.Error(), "; ")
		d.fail(n, remedy, "%s", cause)
		return
	}
	limits := tag.Get("range")
	if length, ok := reflect.TypeAssert[Duration](v); ok && limits != "" {
		least, most, _ := strings.Cut(limits, "..")
		low, _ := time.ParseDuration(least)
		high, _ := time.ParseDuration(most)
		if time.Duration(length) < low || time.Duration(length) > high {
			d.fail(n, fmt.Sprintf("use %s to %s", least, most), "%s is out of range", n.Value)
		}
	}
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.fail(n, "write `key: value` lines", "this is not a mapping")
		return
	}
	if r, ok := reflect.TypeAssert[*Rule](v.Addr()); ok {
		r.line, r.column = n.Line, n.Column
	}
	names, fields := known(v.Type())
	d.pairs(n, func(key, value *yaml.Node) {
		i := slices.Index(names, key.Value)
		if i < 0 {
			d.fail(key, "use "+strings.Join(names, ", "), "unknown key %q", key.Value)
			return
		}
		field := v.Type().Field(fields[i])
		d.value(value, v.Field(fields[i]), field.Tag)
	})
}

// known returns the keys of a struct and their fields.
func known(t reflect.Type) (names []string, fields []int) {
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("yaml"); name != "" {
			names, fields = append(names, name), append(fields, i)
		}
	}
	return names, fields
}

// pairs visits the entries of a mapping and reports keys that are no words, or occur twice.
func (d *decoder) pairs(n *yaml.Node, visit func(key, value *yaml.Node)) {
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		first, twice := lines[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode || key.Anchor != "":
			d.fail(key, "write `key: value`", "a key is one word")
		case twice:
			d.fail(key, "remove one of them", "key %q exists already in line %d", key.Value, first)
		default:
			lines[key.Value] = key.Line
			visit(key, n.Content[i+1])
		}
	}
}

func (d *decoder) table(n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.fail(n, "write `name: {...}` lines", "this is not a mapping")
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	d.pairs(n, func(key, value *yaml.Node) {
		k, e := reflect.New(v.Type().Key()), reflect.New(v.Type().Elem()).Elem()
		before := len(d.errors)
		d.text(key, k.Interface().(text), k.Elem(), "")
		d.value(value, e, "")
		if len(d.errors) > before {
			return
		}
		if v.MapIndex(k.Elem()).IsValid() {
			d.fail(key, "remove one of them", "key %q exists already", key.Value)
			return
		}
		v.SetMapIndex(k.Elem(), e)
	})
}

func (d *decoder) list(n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.fail(n, "begin each entry with `- `", "this is not a list")
		return
	}
	for _, item := range n.Content {
		e := reflect.New(v.Type().Elem()).Elem()
		d.value(item, e, "")
		v.Set(reflect.Append(v, e))
	}
}

func (d *decoder) number(n *yaml.Node, v reflect.Value, tag reflect.StructTag) {
	if !d.isScalar(n, "a number") {
		return
	}
	least, most, _ := strings.Cut(tag.Get("range"), "..")
	low, _ := strconv.Atoi(least)
	high, _ := strconv.Atoi(most)
	remedy := fmt.Sprintf("use %d to %d", low, high)
	number, err := strconv.Atoi(n.Value)
	switch {
	case err != nil || n.Tag != "!!int":
		d.fail(n, remedy, "%q is not a whole number", n.Value)
	case number < low || number > high:
		d.fail(n, remedy, "%d is out of range", number)
	default:
		v.SetInt(int64(number))
	}
}

func (d *decoder) word(n *yaml.Node, v reflect.Value, tag reflect.StructTag) {
	if !d.isScalar(n, "text") {
		return
	}
	allowed := tag.Get("enum")
	switch {
	case n.Tag != "!!str":
		d.fail(n, "put it in quotes if it is meant", "%s is not text", n.Value)
	case n.Value == "":
		d.fail(n, "remove the key, or give it a value", "the value is empty")
	case len(n.Value) > 4096 || strings.ContainsFunc(n.Value, func(r rune) bool { return r < ' ' || r == 0x7f }):
		d.fail(n, "use at most 4096 plain characters", "the value is too long or has a control character")
	case allowed != "" && !slices.Contains(strings.Split(allowed, ","), n.Value):
		d.fail(n, "use "+strings.ReplaceAll(allowed, ",", ", "), "unknown value %q", n.Value)
	default:
		v.SetString(n.Value)
	}
}

// hints reads hints by the names of their flags.
func (d *decoder) hints(n *yaml.Node, h *Hints) {
	if n.Kind != yaml.MappingNode {
		d.fail(n, "write `hints: {priority: 10}`", "hints are not a mapping")
		return
	}
	fields := model.HintFields()
	d.pairs(n, func(key, value *yaml.Node) {
		i := slices.IndexFunc(fields, func(f model.HintField) bool { return f.Flag == strings.ReplaceAll(key.Value, "_", "-") })
		if i < 0 {
			var names []string
			for _, f := range fields {
				names = append(names, f.Flag)
			}
			d.fail(key, "use "+strings.Join(names, ", "), "unknown hint %q", key.Value)
			return
		}
		if value.Kind == yaml.AliasNode || value.Anchor != "" || !d.isScalar(value, "a hint") {
			return
		}
		got, err := fields[i].Parse(value.Value)
		if err != nil {
			cause, remedy, _ := strings.Cut(err.Error(), "; ")
			d.fail(value, remedy, "%s", cause)
			return
		}
		h.Set(fields[i].Name, got)
	})
}

func (p *Policy) fromText(text string) error {
	found, err := policy.New(text)
	if err != nil {
		return fmt.Errorf("unknown policy %q; %s", text, policy.Remedy(text))
	}
	*p = Policy(found.Name())
	return nil
}

func (m *Mode) fromText(text string) (err error) {
	*m, err = ParseMode(text)
	return err
}

func (d *Duration) fromText(text string) error {
	t, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q is not a duration; write 20ms, 500us or 2s", text)
	}
	*d = Duration(t)
	return nil
}

func (a *Amount) fromText(text string) error {
	n, err := model.ParseBytes(text)
	*a = Amount(n)
	return err
}

func (g *GPU) fromText(text string) error {
	id, err := model.ParseDeviceID(text)
	if err != nil || id == 0 || id.String() != strings.ToLower(text) {
		return fmt.Errorf("%q is not a PCI address like 0000:01:00.0; see `xsched list --devices`", text)
	}
	*g = GPU(id)
	return nil
}

func (a *Address) fromText(text string) error {
	if _, port, err := net.SplitHostPort(text); text != "off" {
		if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 && port != "0" {
			return fmt.Errorf("%q is not an address; use HOST:PORT or off", text)
		}
	}
	*a = Address(text)
	return nil
}

func (n *Name) fromText(text string) error {
	if text == "" || len(text) > 256 || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f || r == ':' }) {
		return fmt.Errorf("%q is not a name; use a name or a number", text)
	}
	*n = Name(text)
	return nil
}
