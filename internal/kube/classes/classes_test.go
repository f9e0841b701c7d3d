// SPDX-License-Identifier: Apache-2.0

package classes

import (
	"errors"
	"strings"
	"testing"
)

const example = `
classes:
  latency:
    priority: 10
    namespaces: [serving]
    namespaceSelector: {matchLabels: {tier: gold}}
  batch:
    priority: -10
    namespaceSelector: {}
  listed:
    priority: 5
    namespaces: [serving]
  closed:
    priority: 3
priorityClasses:
  high: latency
  low: batch
  off: none
`

func parse(t *testing.T, text string) *File {
	t.Helper()
	f, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestDecide(t *testing.T) {
	f := parse(t, example)
	gold := map[string]string{"tier": "gold"}
	down := errors.New("connection\nrefused")
	for _, c := range []struct {
		name       string
		request    Request
		labels     map[string]string
		err        error
		outcome    Outcome
		class      string
		reason     string // part
		asksLabels bool
	}{
		{"nothing", Request{Namespace: "a"}, nil, nil, Nothing, "", "", false},
		{"all namespaces", Request{Namespace: "a", Class: "batch"}, nil, down, Granted, "batch", "", false},
		{"listed namespace", Request{Namespace: "serving", Class: "latency"}, nil, down, Granted, "latency", "", false},
		{"label of the namespace", Request{Namespace: "a", Class: "latency"}, gold, nil, Granted, "latency", "", true},
		{"another namespace", Request{Namespace: "a", Class: "latency"}, nil, nil, Refused, "latency", "label the namespace with tier=gold", true},
		{"listed namespaces only", Request{Namespace: "a", Class: "listed"}, gold, nil, Refused, "listed", "namespace a may not use the class listed; ", false},
		{"no namespaces", Request{Namespace: "serving", Class: "closed"}, gold, nil, Refused, "closed", "may not use", false},
		{"labels not known", Request{Namespace: "a", Class: "latency"}, nil, down, Unknown, "latency", "connection refused; ", true},
		{"unknown class", Request{Namespace: "a", Class: "turbo"}, gold, nil, Refused, "turbo", "does not exist; use batch, closed, latency, listed", false},
		{"odd class", Request{Namespace: "a", Class: strings.Repeat("\n", 9999)}, gold, nil, Refused, strings.Repeat("\n", 9999), "does not exist", false},
		{"by PriorityClass, whatever the namespace", Request{Namespace: "a", PriorityClass: "high"}, nil, down, Default, "latency", "", false},
		{"PriorityClass without a class", Request{Namespace: "a", PriorityClass: "middle"}, nil, down, Nothing, "", "", false},
		{"PriorityClass none", Request{Namespace: "a", PriorityClass: "off"}, nil, down, Nothing, "", "", false},
		{"the label before the PriorityClass", Request{Namespace: "a", Class: "batch", PriorityClass: "high"}, nil, down, Granted, "batch", "", false},
		{"a refusal does not fall back", Request{Namespace: "a", Class: "turbo", PriorityClass: "high"}, nil, nil, Refused, "turbo", "", false},
		{"opting out", Request{Namespace: "a", Class: None, PriorityClass: "high"}, nil, down, Nothing, "", "", false},
	} {
		asked := false
		d := f.Decide(c.request, func(namespace string) (map[string]string, error) {
			asked = true
			if namespace != c.request.Namespace {
				t.Errorf("%s: asked for namespace %s", c.name, namespace)
			}
			return c.labels, c.err
		})
		if d.Outcome != c.outcome || d.Name != c.class || asked != c.asksLabels || !strings.Contains(d.Reason, c.reason) {
			t.Errorf("%s: %+v, asked for labels: %v", c.name, d, asked)
		}
		if (d.Reason != "") != (d.Outcome == Refused || d.Outcome == Unknown) || strings.Contains(d.Reason, "\n") || len(d.Reason) > 500 {
			t.Errorf("%s: reason %q", c.name, d.Reason)
		}
		if has := d.Class.Priority != nil; has != (d.Outcome == Granted || d.Outcome == Default) {
			t.Errorf("%s: parameters %+v", c.name, d.Class)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ text, part string }{
		{"", "empty; "},
		{"classes: [", "YAML"},
		{"classes: {}\n---\nclasses: {}\n", "several documents; "},
		{"classes: {a: {priority: 1, colour: red}}", `unknown field "colour"`},
		{"classes: {a: {Priority: 1}}", `unknown field "Priority"`},
		{"classes: {a: {kind: GpuParameters}}", "class a: a class has no kind; "},
		{"classes: {a: {namespaces: x}}", "class a: "},
		{"classes: {a: {latencyTarget: 20}}", "not a time; "},
		{"classes: {a: {priority: 1, priority: 2}}", `"priority" already set`},
		{"classes: {a: {priority: high}}", "priority"},
		{"classes: {a: {priority: 1000}}", "class a: "},
		{"classes: {A_b: {}}", `"A_b" can't be the name of a class; `},
		{"classes: {none: {}}", `"none" can't be the name of a class; `},
		{"classes: {a: {namespaces: ['*']}}", "for all namespaces write `namespaceSelector: {}`"},
		{"classes: {a: {namespaceSelector: {matchExpressions: [{key: a, operator: Like}]}}}", "namespaceSelector: "},
		{"classes: {a: {}}\npriorityClasses: {high: b}", `names the class "b", which the file does not have; use a`},
		{"classes: {}\npriorityClasses: {high: b}", "use none"},
		{"classes: {a: {}}\npriorityClasses: {'High!': a}", `"High!" is not the name of a PriorityClass`},
		{"class: {}", `unknown field "class"`},
		{strings.Repeat("#", maxFile+1), "256 KiB; "},
	} {
		f, err := Parse([]byte(c.text))
		if err == nil {
			t.Errorf("%.60q was accepted: %+v", c.text, f)
			continue
		}
		if text := err.Error(); !strings.Contains(text, c.part) || strings.Contains(text, "\n") || !strings.Contains(text, "; ") {
			t.Errorf("%.60q: %q, want %q and a remedy in one line", c.text, text, c.part)
		}
	}
}

func TestBuiltin(t *testing.T) {
	f := parse(t, Builtin)
	labels := func(string) (map[string]string, error) { return nil, nil }
	if d := f.Decide(Request{Namespace: "a", Class: "batch"}, labels); d.Outcome != Granted || *d.Class.Priority != -10 {
		t.Errorf("batch: %+v", d)
	}
	if d := f.Decide(Request{Namespace: "a", Class: "latency"}, labels); d.Outcome != Refused {
		t.Errorf("latency without a label: %+v", d)
	}
	allowed := func(string) (map[string]string, error) {
		return map[string]string{"xsched.dev/allow-latency": "true"}, nil
	}
	if d := f.Decide(Request{Namespace: "a", Class: "latency"}, allowed); d.Outcome != Granted || *d.Class.Priority != 10 {
		t.Errorf("latency: %+v", d)
	}
	if d := f.Decide(Request{Namespace: "a", PriorityClass: "system-node-critical"}, labels); d.Outcome != Nothing {
		t.Errorf("a PriorityClass without an entry: %+v", d)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte(Builtin))
	f.Add([]byte("classes: {a: {priority: 1}}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := Parse(text)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error has several lines: %q", err)
			}
			return
		}
		for name := range file.Classes {
			// Nobody gets a class by asking for it in a namespace that nothing allows.
			d := file.Decide(Request{Namespace: "-", Class: name}, func(string) (map[string]string, error) { return nil, nil })
			if d.Outcome != Granted && d.Outcome != Refused {
				t.Errorf("%s: %+v", name, d)
			}
		}
	})
}
