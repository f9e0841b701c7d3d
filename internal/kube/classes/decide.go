// SPDX-License-Identifier: Apache-2.0

package classes

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// Request is what a pod asks for.
type Request struct {
	Namespace     string
	Class         string // by label or annotation; empty: nothing
	PriorityClass string // of the pod's specification
}

// Outcome says what a pod gets.
type Outcome int

// Outcomes.
const (
	Nothing Outcome = iota // the pod did not ask
	Granted                // the pod asked and may use the class
	Default                // the class follows from the pod's PriorityClass
	Refused                // the pod asked for what it may not have
	Unknown                // the labels of the namespace are not known now
)

// Decision is the answer to a request.
type Decision struct {
	Outcome Outcome
	Name    string // of the class that was asked for, or that follows
	Class   Class  // if Granted or Default
	Reason  string // if Refused or Unknown: cause and remedy, for the pod's owner
}

// Decide answers a request. It calls namespaceLabels only if the decision depends on the labels.
func (f *File) Decide(r Request, namespaceLabels func(namespace string) (map[string]string, error)) Decision {
	if r.Class == None {
		return Decision{}
	}
	if r.Class == "" {
		name := f.PriorityClasses[r.PriorityClass]
		c, ok := f.Classes[name]
		if r.PriorityClass == "" || !ok {
			return Decision{}
		}
		return Decision{Outcome: Default, Name: name, Class: c}
	}
	c, ok := f.Classes[r.Class]
	if !ok {
		return Decision{Outcome: Refused, Name: r.Class, Reason: fmt.Sprintf(
			"the class %.63q does not exist; use %s, or ask the administrator for the class", r.Class, f.known(),
		)}
	}
	if slices.Contains(c.Namespaces, r.Namespace) || c.selector.Empty() {
		return Decision{Outcome: Granted, Name: r.Class, Class: c}
	}
	refused := Decision{Outcome: Refused, Name: r.Class, Reason: fmt.Sprintf(
		"namespace %s may not use the class %s; use another class, or ask the administrator to allow it", r.Namespace, r.Class,
	)}
	if c.NamespaceSelector == nil {
		return refused
	}
	found, err := namespaceLabels(r.Namespace)
	switch {
	case err != nil:
		return Decision{Outcome: Unknown, Name: r.Class, Reason: fmt.Sprintf(
			"the labels of namespace %s are not known: %s; the class %s applies when they are", r.Namespace, line(err), r.Class,
		)}
	case !c.selector.Matches(labels.Set(found)):
		refused.Reason = fmt.Sprintf(
			"namespace %s may not use the class %s; use another class, or ask the administrator to label the namespace with %s",
			r.Namespace, r.Class, c.selector,
		)
		return refused
	}
	return Decision{Outcome: Granted, Name: r.Class, Class: c}
}
