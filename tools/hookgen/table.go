// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// call is one line of the table.
type call struct {
	symbol string
	api    string
	since  int
	thread bool // stream 0 is the calling thread's own
	kind   string
	detail string
	types  []string // of the parameters; empty for void
}

// details lists what each kind may say; "N" stands for a parameter's position.
var details = map[string][]string{
	"launch":  {"N", "config", "default"},
	"work":    {"N"},
	"copy":    {"N", "default", "wait"},
	"sync":    {"N"},
	"event":   {"record"},
	"stream":  {"create", "destroy"},
	"capture": {"begin", "end", "wait"},
	"hand":    {"-"},
	"pass":    {"-"},
	"use":     {"-"},
}

// parseTable returns the calls sorted by symbol, the hooked ones first: the
// order of the slots, which the shim searches by bisection.
func parseTable(text string) ([]call, error) {
	var calls []call
	bySymbol := map[string]*call{}
	for number, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		c, err := parseLine(line, bySymbol)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number+1, err)
		}
		if bySymbol[c.symbol] != nil {
			return nil, fmt.Errorf("line %d: %s is there twice", number+1, c.symbol)
		}
		bySymbol[c.symbol] = &c
		calls = append(calls, c)
	}
	slices.SortFunc(calls, func(a, b call) int {
		if used := b2i(a.kind == "use") - b2i(b.kind == "use"); used != 0 {
			return used
		}
		return strings.Compare(a.symbol, b.symbol)
	})
	return calls, nil
}

func parseLine(line string, known map[string]*call) (call, error) {
	head, params, own := strings.Cut(line, ":")
	if !own {
		var other string
		head, other, _ = strings.Cut(line, "=")
		same := known[strings.TrimSpace(other)]
		if same == nil {
			return call{}, fmt.Errorf("parameters of unknown symbol %q", strings.TrimSpace(other))
		}
		params = strings.Join(same.types, ",")
	}
	field := strings.Fields(head)
	if len(field) != 6 {
		return call{}, fmt.Errorf("want 6 fields before the parameters, have %d", len(field))
	}
	c := call{symbol: field[0], api: field[1], kind: field[4], detail: field[5]}
	var err error
	if c.since, err = strconv.Atoi(field[2]); err != nil {
		return call{}, fmt.Errorf("since: %w", err)
	}
	switch field[3] {
	case "legacy":
	case "thread":
		c.thread = true
	default:
		return call{}, fmt.Errorf("default stream %q is neither legacy nor thread", field[3])
	}
	for t := range strings.SplitSeq(params, ",") {
		if t = strings.TrimSpace(t); t != "" && t != "void" {
			c.types = append(c.types, t)
		}
	}
	return c, checkDetail(c)
}

func checkDetail(c call) error {
	allowed, ok := details[c.kind]
	if !ok {
		return fmt.Errorf("unknown kind %q", c.kind)
	}
	if position, err := strconv.Atoi(c.detail); err == nil {
		if !slices.Contains(allowed, "N") {
			return fmt.Errorf("kind %s takes no position", c.kind)
		}
		if position >= len(c.types) || c.types[position] != "CUstream" {
			return fmt.Errorf("parameter %d of %s is no stream", position, c.symbol)
		}
		return nil
	}
	if !slices.Contains(allowed, c.detail) || c.detail == "N" {
		return fmt.Errorf("kind %s does not know %q", c.kind, c.detail)
	}
	return nil
}

// parameters is the list of a definition: types and names.
func (c call) parameters() string {
	if len(c.types) == 0 {
		return "void"
	}
	var out []string
	for i, t := range c.types {
		space := " "
		if strings.HasSuffix(t, "*") {
			space = ""
		}
		out = append(out, fmt.Sprintf("%s%sa%d", t, space, i))
	}
	return strings.Join(out, ", ")
}

// arguments is the list of a call.
func (c call) arguments() string {
	var out []string
	for i := range c.types {
		out = append(out, fmt.Sprintf("a%d", i))
	}
	return strings.Join(out, ", ")
}

// prototype is the list of a declaration: types alone.
func (c call) prototype() string {
	if len(c.types) == 0 {
		return "void"
	}
	return strings.Join(c.types, ", ")
}

// stream is the C expression of the stream the call works on, stream 0 made explicit.
func (c call) stream() string {
	which := "legacy"
	if c.thread {
		which = "thread"
	}
	switch c.detail {
	case "default", "wait":
		return "XSI_CU_" + strings.ToUpper(which)
	case "config":
		return "xsi_cu_" + which + "(xsi_cu_config_stream(a0))"
	case "record":
		return "xsi_cu_" + which + "(a1)"
	case "begin", "end":
		return "xsi_cu_" + which + "(a0)"
	}
	return "xsi_cu_" + which + "(a" + c.detail + ")"
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
