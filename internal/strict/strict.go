// SPDX-License-Identifier: Apache-2.0

// Package strict reads YAML that people write: one document without unknown keys. Errors have a place, a
// cause and a remedy.
package strict

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Error is a mistake in a file: its place, its cause and a remedy.
type Error struct {
	File          string // empty: unknown
	Line, Column  int    // 0: unknown
	Cause, Remedy string
}

func (e *Error) Error() string {
	text := ""
	switch {
	case e.File != "" && e.Line > 0:
		text = e.File + ":" + strconv.Itoa(e.Line)
	case e.File != "":
		text = e.File
	case e.Line > 0:
		text = "line " + strconv.Itoa(e.Line)
	}
	if e.Column > 0 {
		text += ":" + strconv.Itoa(e.Column)
	}
	if text != "" {
		text += ": "
	}
	text += e.Cause
	if e.Remedy != "" {
		text += "; " + e.Remedy
	}
	return text
}

var place = regexp.MustCompile(`^(?:yaml: )?(?:unmarshal errors: )?(?:line (\d+): )?(.*)$`)

// placed returns an error of the YAML library with its place; the library omits the first line.
func placed(err error) *Error {
	m := place.FindStringSubmatch(strings.Join(strings.Fields(err.Error()), " "))
	line, _ := strconv.Atoi(m[1])
	return &Error{Line: max(line, 1), Cause: m[2], Remedy: "correct the YAML syntax; indent with spaces"}
}

// Root parses one document; nil: it is empty. An error is of type *Error.
func Root(text []byte) (*yaml.Node, error) {
	var document yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(text))
	switch err := d.Decode(&document); {
	case errors.Is(err, io.EOF) || err == nil && len(document.Content) == 0:
		return nil, nil
	case err != nil:
		return nil, placed(err)
	}
	if err := d.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, &Error{Cause: "the file contains more than one document", Remedy: "remove everything after `---`"}
	}
	root := document.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	return root, nil
}

// Decode converts a node to the value that into points to. An error is of type *Error.
func Decode(n *yaml.Node, into any) error {
	if err := fits(n, reflect.TypeOf(into).Elem()); err != nil {
		return err
	}
	err := n.Decode(into)
	if _, own := errors.AsType[*Error](err); err == nil || own {
		return err
	}
	return placed(err)
}

// fits reports the first node whose form is not that of the type, or which the type does not
// know. yaml's own KnownFields ends at every UnmarshalYAML, and its errors do not carry lines.
// An alias is checked where its anchor is.
func fits(n *yaml.Node, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	names := fieldNames(t)
	custom := reflect.PointerTo(t).Implements(reflect.TypeFor[yaml.Unmarshaler]())
	switch {
	case n.Kind == yaml.AliasNode || n.Tag == "!!null" || custom && (len(names) == 0 || n.Kind != yaml.MappingNode):
		return nil
	case t.Kind() == reflect.Struct && n.Kind == yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			at := slices.Index(names, key.Value)
			if at < 0 && key.Tag != "!!merge" {
				return UnknownField(key, slices.DeleteFunc(names, func(s string) bool { return s == "" || s == "-" }))
			}
			if at >= 0 {
				if err := fits(n.Content[i+1], t.Field(at).Type); err != nil {
					return err
				}
			}
		}
		return nil
	case t.Kind() == reflect.Map && n.Kind == yaml.MappingNode:
		for i := 1; i < len(n.Content); i += 2 {
			if err := fits(n.Content[i], t.Elem()); err != nil {
				return err
			}
		}
		return nil
	case t.Kind() == reflect.Slice && n.Kind == yaml.SequenceNode:
		for _, item := range n.Content {
			if err := fits(item, t.Elem()); err != nil {
				return err
			}
		}
		return nil
	case n.Kind == yaml.ScalarNode && n.Decode(reflect.New(t).Interface()) == nil:
		return nil
	}
	what := map[yaml.Kind]string{yaml.MappingNode: "a mapping", yaml.SequenceNode: "a list", yaml.ScalarNode: strconv.Quote(n.Value)}[n.Kind]
	return &Error{Line: n.Line, Cause: fmt.Sprintf("%s is not %s", what, kindName(t.Kind()))}
}

// UnknownField is the error of a key that is none of those known.
func UnknownField(key *yaml.Node, known []string) error {
	return &Error{
		Line: key.Line, Cause: fmt.Sprintf("unknown field %q", key.Value),
		Remedy: "known here are " + strings.Join(known, ", "),
	}
}

func kindName(k reflect.Kind) string {
	switch {
	case k == reflect.Slice:
		return "a list"
	case k == reflect.Struct || k == reflect.Map:
		return "a mapping"
	case k == reflect.Bool:
		return "true or false"
	case k >= reflect.Int && k <= reflect.Uint64:
		return "a whole number"
	case k == reflect.Float64:
		return "a number"
	}
	return "a string"
}

// fieldNames returns the YAML name of each field, "" for one without.
func fieldNames(t reflect.Type) []string {
	if t.Kind() != reflect.Struct {
		return nil
	}
	names, any := make([]string, t.NumField()), false
	for i := range names {
		names[i] = t.Field(i).Tag.Get("yaml")
		any = any || names[i] != ""
	}
	if !any {
		return nil
	}
	return names
}
