// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Error is a mistake in a scenario or a trace: its place, its cause and a remedy.
type Error struct {
	File          string
	Line          int // 0: unknown
	Cause, Remedy string
}

func (e *Error) Error() string {
	text := e.File
	if e.Line > 0 {
		text += ":" + strconv.Itoa(e.Line)
	}
	text += ": " + e.Cause
	if e.Remedy != "" {
		text += "; " + e.Remedy
	}
	return text
}

// maxFile bounds the size of a scenario in bytes.
const maxFile = 4 << 20

// Load reads a scenario and the traces it names.
func Load(path string) (*Scenario, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read scenario: %w", err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read scenario: %w", err)
	}
	if len(text) > maxFile {
		return nil, &Error{File: path, Cause: "the file is larger than 4 MB", Remedy: "use count for identical tenants"}
	}
	return Parse(path, text, func(name string) (io.ReadCloser, error) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		return os.Open(name)
	})
}

// Parse reads a scenario. Errors call it file; open opens the traces that it names.
func Parse(file string, text []byte, open func(name string) (io.ReadCloser, error)) (*Scenario, error) {
	s, root, err := decode(text)
	if err == nil {
		err = s.readTraces(root, open)
	}
	if err == nil {
		s.complete()
		err = s.check(root)
	}
	if e, ok := errors.AsType[*Error](err); ok && e.File == "" {
		e.File = file
	}
	return s, err
}

// decode parses the text twice: into nodes, which know their lines, and then into the scenario.
func decode(text []byte) (*Scenario, *yaml.Node, error) {
	var document yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(text))
	switch err := d.Decode(&document); {
	case errors.Is(err, io.EOF) || err == nil && len(document.Content) == 0:
		return nil, nil, &Error{Cause: "the scenario is empty", Remedy: "give it at least `tenants:`"}
	case err != nil:
		return nil, nil, &Error{Cause: strings.TrimPrefix(err.Error(), "yaml: ")}
	}
	if err := d.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, nil, &Error{Cause: "the file contains more than one document", Remedy: "remove everything after `---`"}
	}
	root, s := document.Content[0], &Scenario{}
	if err := fits(root, reflect.TypeOf(*s)); err != nil {
		return nil, nil, err
	}
	if err := root.Decode(s); err != nil {
		if _, ok := errors.AsType[*Error](err); !ok {
			err = &Error{Cause: strings.TrimPrefix(err.Error(), "yaml: ")}
		}
		return nil, nil, err
	}
	return s, root, nil
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
				return unknownField(key, slices.DeleteFunc(names, func(s string) bool { return s == "" || s == "-" }))
			}
			if at >= 0 {
				if err := fits(n.Content[i+1], t.Field(at).Type); err != nil {
					return err
				}
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

func kindName(k reflect.Kind) string {
	switch {
	case k == reflect.Slice:
		return "a list"
	case k == reflect.Struct:
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

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	switch {
	case n.Kind != yaml.ScalarNode || err != nil:
		return &Error{Line: n.Line, Cause: fmt.Sprintf("%q is not a duration", n.Value), Remedy: "write it with a unit: 90us, 20ms, 10s"}
	case v < 0:
		return &Error{Line: n.Line, Cause: fmt.Sprintf("duration %q is negative", n.Value)}
	}
	*d = Duration(v)
	return nil
}

const distRemedy = "write 20ms, {uniform: [1ms, 5ms]}, {exponential: 2ms} or {lognormal: {median: 3ms, sigma: 0.5}}"

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *Dist) UnmarshalYAML(n *yaml.Node) error {
	var v struct {
		Fixed       Duration   `yaml:"fixed"`
		Uniform     []Duration `yaml:"uniform"`
		Exponential Duration   `yaml:"exponential"`
		LogNormal   struct {
			Median Duration `yaml:"median"`
			Sigma  float64  `yaml:"sigma"`
		} `yaml:"lognormal"`
	}
	if n.Kind == yaml.ScalarNode {
		err := v.Fixed.UnmarshalYAML(n)
		*d = Fixed(v.Fixed.D())
		return err
	}
	if err := fits(n, reflect.TypeOf(v)); err != nil {
		return err
	}
	if err := n.Decode(&v); err != nil {
		return err
	}
	bad := &Error{Line: n.Line, Cause: "not a duration or a distribution", Remedy: distRemedy}
	if len(n.Content) != 2 {
		return bad
	}
	switch n.Content[0].Value {
	case "fixed":
		*d = Fixed(v.Fixed.D())
	case "exponential":
		*d = Exponential(v.Exponential.D())
	case "lognormal":
		*d = LogNormal(v.LogNormal.Median.D(), v.LogNormal.Sigma)
	case "uniform":
		if len(v.Uniform) != 2 {
			return bad
		}
		*d = Uniform(v.Uniform[0].D(), v.Uniform[1].D())
	}
	return nil
}

const arrivalsRemedy = "use one of {poisson: 100}, {rate: 100}, {onoff: {rate: 100, on: 1s, off: 1s}}, {trace: file.csv}, closed or {closed: {depth: 2, think: 1ms}}"

// UnmarshalYAML implements yaml.Unmarshaler: `closed` alone is short for `{closed: {depth: 1}}`.
func (a *Arrivals) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode && n.Value == "closed" {
		a.Closed = &Closed{}
		return nil
	}
	if n.Kind != yaml.MappingNode {
		return &Error{Line: n.Line, Cause: "unknown kind of arrivals", Remedy: arrivalsRemedy}
	}
	type plain Arrivals
	return n.Decode((*plain)(a))
}
