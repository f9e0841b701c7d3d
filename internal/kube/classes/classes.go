// SPDX-License-Identifier: Apache-2.0

// Package classes decides which scheduling parameters a pod gets that asks for a class by name. The
// administrator writes the names, their parameters and the namespaces that may use them into a file.
package classes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"xsched/internal/kube/params"
)

// Bounds of a file. A ConfigMap has at most 1 MiB.
const (
	maxFile    = 256 << 10
	maxClasses = 64
)

// None is what a pod asks for that wants no class, not even that of its PriorityClass.
const None = "none"

// File is the administrator's file. The struct is the schema: an unknown key is an error.
type File struct {
	// Classes are the classes by name.
	Classes map[string]Class
	// PriorityClasses has the class of pods that ask for none, by the name of their PriorityClass. The
	// namespaces of the class do not count here: quotas limit who may use a PriorityClass.
	PriorityClasses map[string]string
}

// Class is one class: its parameters and the namespaces whose pods may ask for it. A namespace
// may use a class if it is listed or if the selector matches its labels.
type Class struct {
	params.Parameters `json:"-"` // the other keys
	// Namespaces are names of namespaces.
	Namespaces []string `json:"namespaces,omitempty"`
	// NamespaceSelector selects namespaces by their labels. As everywhere in Kubernetes, an empty selector
	// matches all and an absent one matches none.
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	selector labels.Selector
}

// Builtin is the file of a node without one.
const Builtin = `classes:
  latency:
    priority: 10
    namespaceSelector: {matchLabels: {xsched.dev/allow-latency: "true"}}
  batch:
    priority: -10
    namespaceSelector: {}
`

// Parse reads a file.
func Parse(text []byte) (*File, error) {
	if len(text) > maxFile {
		return nil, fmt.Errorf("the file has more than %d KiB; remove classes", maxFile>>10)
	}
	if err := oneDocument(text); err != nil {
		return nil, err
	}
	var raw struct {
		Classes         map[string]map[string]json.RawMessage `json:"classes"`
		PriorityClasses map[string]string                     `json:"priorityClasses"`
	}
	if err := yaml.UnmarshalStrict(text, &raw); err != nil {
		return nil, fmt.Errorf("%s; see docs/kubernetes/labels.md for the keys", line(err))
	}
	if len(raw.Classes) > maxClasses {
		return nil, fmt.Errorf("%d classes are too many; use at most %d", len(raw.Classes), maxClasses)
	}
	f := &File{Classes: make(map[string]Class, len(raw.Classes)), PriorityClasses: raw.PriorityClasses}
	for _, name := range slices.Sorted(maps.Keys(raw.Classes)) {
		keys := raw.Classes[name]
		if keys == nil {
			keys = map[string]json.RawMessage{}
		}
		c, err := readClass(name, keys)
		if err != nil {
			return nil, err
		}
		f.Classes[name] = c
	}
	for _, from := range slices.Sorted(maps.Keys(f.PriorityClasses)) {
		to := f.PriorityClasses[from]
		if wrong := validation.IsDNS1123Subdomain(from); len(wrong) > 0 {
			return nil, fmt.Errorf("priorityClasses: %.80q is not the name of a PriorityClass; use lower-case letters, digits, dots and -", from)
		}
		if _, ok := f.Classes[to]; !ok && to != None {
			return nil, fmt.Errorf("priorityClasses: %s names the class %.80q, which the file does not have; use %s", from, to, f.known())
		}
	}
	return f, nil
}

// oneDocument refuses further documents, which the decoder would drop silently.
func oneDocument(text []byte) error {
	d := yamlv3.NewDecoder(bytes.NewReader(text))
	var first, second yamlv3.Node
	switch err := d.Decode(&first); {
	case errors.Is(err, io.EOF):
		return errors.New("the file is empty; write `classes: {}` for no classes")
	case err != nil:
		return fmt.Errorf("%s; write YAML", line(err))
	case !errors.Is(d.Decode(&second), io.EOF):
		return errors.New("the file has several documents; write one, without ---")
	}
	return nil
}

// readClass reads a class: the keys about namespaces, and the parameters of device classes.
func readClass(name string, keys map[string]json.RawMessage) (Class, error) {
	c := Class{}
	if wrong := validation.IsDNS1123Label(name); len(wrong) > 0 || name == None {
		return c, fmt.Errorf("%.80q can't be the name of a class; use lower-case letters, digits and -, at most 63", name)
	}
	own := map[string]json.RawMessage{}
	for _, key := range []string{"namespaces", "namespaceSelector"} {
		if value, ok := keys[key]; ok {
			own[key] = value
		}
		delete(keys, key)
	}
	if err := decode(own, &c); err != nil {
		return c, fmt.Errorf("class %s: %s; see docs/kubernetes/labels.md for the keys", name, line(err))
	}
	for key, value := range map[string]string{"apiVersion": params.APIVersion, "kind": params.Kind} {
		if _, ok := keys[key]; ok {
			return c, fmt.Errorf("class %s: a class has no %s; leave it out", name, key)
		}
		keys[key] = json.RawMessage(strconv.Quote(value))
	}
	raw, err := json.Marshal(keys)
	if err == nil {
		c.Parameters, err = params.Parse(raw)
	}
	if err != nil {
		return c, fmt.Errorf("class %s: %w", name, err)
	}
	return c, c.check(name)
}

func decode(keys map[string]json.RawMessage, to *Class) error {
	raw, err := json.Marshal(keys)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	return d.Decode(to)
}

// check completes a class.
func (c *Class) check(name string) error {
	for _, n := range c.Namespaces {
		if wrong := validation.IsDNS1123Label(n); len(wrong) > 0 {
			return fmt.Errorf("class %s: %.80q is not the name of a namespace; for all namespaces write `namespaceSelector: {}`", name, n)
		}
	}
	var err error
	if c.selector, err = metav1.LabelSelectorAsSelector(c.NamespaceSelector); err != nil {
		return fmt.Errorf("class %s: namespaceSelector: %s; write it as in a NetworkPolicy", name, line(err))
	}
	return nil
}

// known lists the classes for messages.
func (f *File) known() string {
	if len(f.Classes) == 0 {
		return None
	}
	return strings.Join(slices.Sorted(maps.Keys(f.Classes)), ", ")
}

// line returns an error in one line.
func line(err error) string {
	return strings.TrimPrefix(strings.Join(strings.Fields(err.Error()), " "), "error unmarshaling JSON: ")
}
