// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"go.yaml.in/yaml/v3"

	"xsched/internal/model"
	"xsched/internal/strict"
)

// Error is a mistake in a scenario or a trace.
type Error = strict.Error

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
	root, err := strict.Root(text)
	switch {
	case err != nil:
		return nil, nil, err
	case root == nil:
		return nil, nil, &Error{Cause: "the scenario is empty", Remedy: "give it at least `tenants:`"}
	}
	s := &Scenario{}
	if err := strict.Decode(root, s); err != nil {
		return nil, nil, err
	}
	return s, root, nil
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

// UnmarshalYAML implements yaml.Unmarshaler.
func (b *Bytes) UnmarshalYAML(n *yaml.Node) error {
	v, err := model.ParseBytes(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		return &Error{Line: n.Line, Cause: fmt.Sprintf("%q is not a size", n.Value), Remedy: "write it with a unit: 512MiB, 90GiB"}
	}
	*b = Bytes(v)
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
	if err := strict.Decode(n, &v); err != nil {
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
