// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"strconv"

	"go.yaml.in/yaml/v3"

	"xsched/internal/strict"
)

// Error is a mistake in a file.
type Error = strict.Error

// Errors are all mistakes in a file, in its order.
type Errors []*Error

// Error returns the first mistake and the number of others.
func (e Errors) Error() string {
	if len(e) == 1 {
		return e[0].Error()
	}
	return fmt.Sprintf("%v (and %d more; see `xsched config check`)", e[0], len(e)-1)
}

const (
	maxBytes  = 1 << 20 // of a file
	maxErrors = 20      // reported at once
	maxRules  = 1000
)

// Parse reads a file. Errors call it name. An error is of type Errors.
func Parse(name string, text []byte) (*File, error) {
	d := &decoder{file: name}
	f := &File{}
	if root := d.document(text); root != nil {
		d.value(root, reflectOf(f), "")
	}
	if len(d.errors) == 0 {
		d.checkRules(f)
	}
	if len(d.errors) > 0 {
		return nil, d.errors
	}
	return f, nil
}

// decoder converts nodes to values and collects the mistakes. The decoder of the YAML library reports
// neither columns nor ranges, and only the first mistake.
type decoder struct {
	file   string
	errors Errors
}

func (d *decoder) fail(n *yaml.Node, remedy, format string, args ...any) {
	if len(d.errors) < maxErrors {
		e := &Error{File: d.file, Cause: fmt.Sprintf(format, args...), Remedy: remedy}
		if n != nil {
			e.Line, e.Column = n.Line, n.Column
		}
		d.errors = append(d.errors, e)
	}
}

// document parses the text into nodes; nil: it is empty, or failed.
func (d *decoder) document(text []byte) *yaml.Node {
	if len(text) > maxBytes {
		d.fail(nil, "shorten it", "the file is larger than 1 MB")
		return nil
	}
	root, err := strict.Root(text)
	if e, bad := errors.AsType[*Error](err); bad {
		e.File = d.file
		d.errors = append(d.errors, e)
	}
	return root
}

// checkRules checks what one node alone does not show.
func (d *decoder) checkRules(f *File) {
	names := map[string]int{}
	if len(f.Rules) > maxRules {
		d.fail(nil, "use patterns, users or groups", "there are %d rules, at most %d are possible", len(f.Rules), maxRules)
	}
	for i := range f.Rules {
		r := &f.Rules[i]
		at := &yaml.Node{Line: r.line, Column: r.column}
		if r.Name == "" {
			r.Name = "rule " + strconv.Itoa(i+1)
		}
		if first, twice := names[r.Name]; twice {
			d.fail(at, "give each rule a name of its own", "rule %q exists already in line %d", r.Name, first)
		}
		names[r.Name] = r.line
		if r.Match == (Match{}) {
			d.fail(at, "add `match:` with command, executable, user, group, unit, cgroup or container", "%s matches nothing", r.Name)
		}
		if r.Hints.Empty() {
			d.fail(at, "add `hints: {priority: N}`", "%s gives no hints", r.Name)
		}
	}
}

// Warning is advice about a valid file.
type Warning Error

func (w *Warning) String() string { return (*Error)(w).Error() }

// Warnings returns what is valid but has less effect than one may expect. Errors call the file name.
func (f *File) Warnings(name string) []*Warning {
	var out []*Warning
	for i := range f.Rules {
		r := &f.Rules[i]
		top, raises := r.Hints.Top()
		if !raises || top <= 0 || r.Match.authorises() {
			continue
		}
		out = append(out, &Warning{
			File: name, Line: r.line, Column: r.column,
			Cause:  fmt.Sprintf("%s raises the priority to %d by command or executable alone, which any user can run: on root's daemon it counts only up to the user's cap", r.Name, top),
			Remedy: "add user, group, unit, cgroup or container to its conditions",
		})
	}
	return out
}
