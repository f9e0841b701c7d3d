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
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Error is a mistake in a scenario or a trace: where it is, what it is, what to do.
type Error struct {
	File          string
	Line          int // 0: not known
	Cause, Remedy string
}

func (e *Error) Error() string {
	where := e.File
	if e.Line > 0 {
		where += ":" + strconv.Itoa(e.Line)
	}
	if e.Remedy == "" {
		return where + ": " + e.Cause
	}
	return where + ": " + e.Cause + "; " + e.Remedy
}

// maxFile bounds what is read of a scenario.
const maxFile = 4 << 20

// Load reads a scenario and the traces it names.
func Load(path string) (*Scenario, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open scenario: %w", err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read scenario: %w", err)
	}
	if len(text) > maxFile {
		return nil, &Error{File: path, Cause: "the file has more than 4 MB", Remedy: "use count for tenants that are alike"}
	}
	return Parse(path, text, func(name string) (io.ReadCloser, error) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		return os.Open(name)
	})
}

// Parse reads a scenario; open opens the traces it names, and file is its name in errors.
func Parse(file string, text []byte, open func(name string) (io.ReadCloser, error)) (*Scenario, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		return nil, yamlError(file, err)
	}
	if len(root.Content) == 0 {
		return nil, &Error{File: file, Cause: "the scenario is empty", Remedy: "give it at least `tenants:`"}
	}
	s := &Scenario{}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(s); err != nil {
		return nil, yamlError(file, err)
	}
	if err := d.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, &Error{File: file, Cause: "there is more than one document in the file", Remedy: "remove what follows `---`"}
	}
	for i := range s.Tenants {
		if err := s.Tenants[i].Arrivals.readTrace(file, open); err != nil {
			return nil, err
		}
	}
	s.complete()
	if err := s.check(file, root.Content[0]); err != nil {
		return nil, err
	}
	return s, nil
}

var (
	linePattern  = regexp.MustCompile(`line (\d+): (.*)`)
	fieldPattern = regexp.MustCompile(`field (\S+) not found in type sim\.(\w+)`)
	typePattern  = regexp.MustCompile("cannot unmarshal !!(\\w+)(?: `([^`]*)`)? into (\\S+)")
)

// yamlError says what the YAML reader found in our words: the first mistake, and how many more
// there are.
func yamlError(file string, err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		e.File = file
		return e
	}
	text, more := strings.TrimPrefix(err.Error(), "yaml: "), 0
	if t, ok := errors.AsType[*yaml.TypeError](err); ok && len(t.Errors) > 0 {
		text, more = t.Errors[0], len(t.Errors)-1
	}
	e := &Error{File: file, Cause: text}
	if m := linePattern.FindStringSubmatch(text); m != nil {
		e.Line, _ = strconv.Atoi(m[1])
		e.Cause = m[2]
	}
	switch f, t := fieldPattern.FindStringSubmatch(e.Cause), typePattern.FindStringSubmatch(e.Cause); {
	case f != nil:
		e.Cause = fmt.Sprintf("unknown field %q", f[1])
		for _, v := range []any{Scenario{}, Knobs{}, GPU{}, RPC{}, Host{}, Tenant{}} {
			if t := reflect.TypeOf(v); t.Name() == f[2] {
				e.Remedy = "known here are " + strings.Join(fieldNames(t), ", ")
			}
		}
	case t != nil:
		e.Cause = fmt.Sprintf("%s is not what belongs here", describe(t[1], t[2]))
		e.Remedy = "it takes " + kindName(t[3])
	case e.Cause == text && e.Line == 0:
		e.Remedy = "check the YAML"
	}
	if more > 0 {
		e.Cause += fmt.Sprintf(" (and %d more mistakes)", more)
	}
	return e
}

func describe(kind, value string) string {
	switch kind {
	case "map":
		return "a mapping"
	case "seq":
		return "a list"
	}
	return strconv.Quote(value)
}

func kindName(kind string) string {
	switch {
	case strings.HasPrefix(kind, "[]"):
		return "a list"
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"):
		return "a whole number"
	case strings.HasPrefix(kind, "float"):
		return "a number"
	case kind == "bool":
		return "true or false"
	case strings.HasPrefix(kind, "sim."):
		return "a mapping"
	}
	return "a text"
}

func fieldNames(t reflect.Type) []string {
	var out []string
	for field := range t.Fields() {
		if tag := field.Tag.Get("yaml"); tag != "" {
			out = append(out, tag)
		}
	}
	return out
}

// mistake is an error at a node that the YAML reader collects.
func mistake(n *yaml.Node, cause, remedy string) error {
	text := fmt.Sprintf("line %d: %s", n.Line, cause)
	if remedy != "" {
		text += "; " + remedy
	}
	return &yaml.TypeError{Errors: []string{text}}
}

// strict decodes a mapping into a struct and refuses what it does not know: a node's
// own Decode has forgotten that it should.
func strict(n *yaml.Node, into any) error {
	if n.Kind != yaml.MappingNode {
		return mistake(n, "a mapping belongs here", "")
	}
	known := fieldNames(reflect.TypeOf(into).Elem())
	for i := 0; i+1 < len(n.Content); i += 2 {
		found := false
		for _, k := range known {
			found = found || k == n.Content[i].Value
		}
		if !found {
			return mistake(n.Content[i], fmt.Sprintf("unknown field %q", n.Content[i].Value), "known here are "+strings.Join(known, ", "))
		}
	}
	return n.Decode(into)
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	const remedy = "write it with a unit: 90us, 20ms, 10s"
	if n.Kind != yaml.ScalarNode {
		return mistake(n, "a length of time belongs here", remedy)
	}
	if n.Value == "0" {
		*d = 0
		return nil
	}
	v, err := time.ParseDuration(n.Value)
	if err != nil {
		return mistake(n, fmt.Sprintf("%q is not a length of time", n.Value), remedy)
	}
	if v < 0 {
		return mistake(n, fmt.Sprintf("%q is negative", n.Value), "time goes forward here")
	}
	*d = Duration(v)
	return nil
}

const distRemedy = "write 20ms, {uniform: [1ms, 5ms]}, {exponential: 2ms} or {lognormal: {median: 3ms, sigma: 0.5}}"

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *Dist) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		var v Duration
		if err := v.UnmarshalYAML(n); err != nil {
			return err
		}
		*d = Fixed(v.D())
		return nil
	}
	if n.Kind != yaml.MappingNode || len(n.Content) != 2 {
		return mistake(n, "not a length of time, fixed or drawn", distRemedy)
	}
	value := n.Content[1]
	switch n.Content[0].Value {
	case "fixed", "exponential":
		var v Duration
		if err := v.UnmarshalYAML(value); err != nil {
			return err
		}
		*d = Fixed(v.D())
		if n.Content[0].Value == "exponential" {
			*d = Exponential(v.D())
		}
	case "uniform":
		var ends []Duration
		if err := value.Decode(&ends); err != nil {
			return err
		}
		if len(ends) != 2 {
			return mistake(value, "uniform takes two lengths", distRemedy)
		}
		*d = Uniform(ends[0].D(), ends[1].D())
	case "lognormal":
		var v struct {
			Median Duration `yaml:"median"`
			Sigma  float64  `yaml:"sigma"`
		}
		if err := strict(value, &v); err != nil {
			return err
		}
		*d = LogNormal(v.Median.D(), v.Sigma)
	default:
		return mistake(n.Content[0], fmt.Sprintf("%q is no way to draw a length", n.Content[0].Value), distRemedy)
	}
	return nil
}

const arrivalsRemedy = "write one of {poisson: 100}, {rate: 100}, {onoff: {rate: 100, on: 1s, off: 1s}}, {trace: file.csv}, closed or {closed: {depth: 2, think: 1ms}}"

// UnmarshalYAML implements yaml.Unmarshaler.
func (a *Arrivals) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode && n.Value == "closed" {
		a.Closed = &Closed{Depth: 1}
		return nil
	}
	if n.Kind != yaml.MappingNode {
		return mistake(n, "not a way for requests to come", arrivalsRemedy)
	}
	kinds := 0
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		kinds++
		var err error
		switch key.Value {
		case "poisson":
			err = value.Decode(&a.Poisson)
		case "rate":
			err = value.Decode(&a.Rate)
		case "jitter":
			kinds--
			err = value.Decode(&a.Jitter)
		case "onoff":
			a.OnOff = &OnOff{}
			err = strict(value, a.OnOff)
		case "closed":
			a.Closed = &Closed{Depth: 1}
			err = strict(value, a.Closed)
		case "trace":
			a.traceLine = value.Line
			err = value.Decode(&a.tracePath)
		default:
			err = mistake(key, fmt.Sprintf("unknown way for requests to come %q", key.Value), arrivalsRemedy)
		}
		if err != nil {
			return err
		}
	}
	if kinds != 1 {
		return mistake(n, fmt.Sprintf("%d ways for requests to come", kinds), arrivalsRemedy)
	}
	return nil
}
