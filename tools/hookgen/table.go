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
	dialect
	symbol string
	api    string // CUDA only: name and first version in cuGetProcAddress
	since  int
	node   string // HIP only: the symbol's version
	thread bool   // stream 0 is the per-thread stream
	kind   string
	detail string
	types  []string // of the parameters; empty for void
}

// dialect holds the differences between the runtimes' tables and code.
type dialect struct {
	dir    string // of table and generated files, below shim
	upper  string // prefix of constants: XSI_CU_
	lower  string // xsi_cu_
	result string // return type
	stream string // type of a stream
	fields int    // before the parameters
	guard  string // at the beginning of an entry point; symbol and arguments for %s
	done   string // around the real call; the call for %s
}

var cuda = dialect{dir: "cuda", upper: "XSI_CU_", lower: "xsi_cu_", result: "CUresult", stream: "CUstream", fields: 6, done: "%s"}

// The HIP runtime calls its own entry points, and only these calls reveal a device.
var hip = dialect{
	dir: "hip", upper: "XSI_HIP_", lower: "xsi_hip_", result: "hipError_t", stream: "hipStream_t", fields: 5,
	guard: "  XSI_HIP_GUARD(%s);\n",
	done:  "xsi_hip_done(%s)",
}

// Its platforms may lack any function, and some functions return objects.
var opencl = dialect{
	dir: "opencl", upper: "XSI_CL_", lower: "xsi_cl_", result: "cl_int", stream: "cl_command_queue", fields: 4,
	guard: "  XSI_CL_GUARD(%s);\n", done: "%s",
}

var dialects = []dialect{cuda, hip, opencl}

func dialectOf(dir string) dialect {
	return dialects[slices.IndexFunc(dialects, func(d dialect) bool { return d.dir == dir })]
}

// details lists the valid details of each kind; "N" is the position of a parameter.
var details = map[string][]string{
	"launch":  {"N", "config", "default"},
	"ext":     {},
	"work":    {"N"},
	"copy":    {"N", "default", "wait"},
	"inside":  {"N"},
	"sync":    {"N"},
	"query":   {"N"},
	"await":   {"N"},
	"event":   {"record", "forget"},
	"stream":  {"create", "destroy"},
	"capture": {"begin", "end", "wait"},
	"hand":    {"-"},
	"pass":    {"-", "look", "share"},
	"about":   {"-", "asks", "events"},
	"use":     {"-"},
}

// parseTable returns the calls sorted by symbol, the hooked ones first: the
// order of the slots, which the shim searches by bisection.
func parseTable(d dialect, text string) ([]call, error) {
	var calls []call
	bySymbol := map[string]*call{}
	for number, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		c, err := parseLine(d, line, bySymbol)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number+1, err)
		}
		if bySymbol[c.symbol] != nil {
			return nil, fmt.Errorf("line %d: duplicate symbol %s", number+1, c.symbol)
		}
		bySymbol[c.symbol] = &c
		calls = append(calls, c)
	}
	slices.SortFunc(calls, bySlot)
	return calls, nil
}

func bySlot(a, b call) int {
	if used := b2i(a.kind == "use") - b2i(b.kind == "use"); used != 0 {
		return used
	}
	return strings.Compare(a.symbol, b.symbol)
}

func parseLine(d dialect, line string, known map[string]*call) (call, error) {
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
	if len(field) != d.fields {
		return call{}, fmt.Errorf("want %d fields before the parameters, have %d", d.fields, len(field))
	}
	c := call{dialect: d, symbol: field[0], kind: field[d.fields-2], detail: field[d.fields-1]}
	switch d.dir {
	case cuda.dir:
		var err error
		if c.since, err = strconv.Atoi(field[2]); err != nil {
			return call{}, fmt.Errorf("since: %w", err)
		}
		c.api = field[1]
	case hip.dir:
		c.node = field[1]
	case opencl.dir:
		c.result = field[1]
	}
	switch which := field[d.fields-3]; {
	case d.dir == opencl.dir, which == "legacy":
	case which == "thread":
		c.thread = true
	default:
		return call{}, fmt.Errorf("default stream %q is neither legacy nor thread", which)
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
	if c.dialect.dir == opencl.dir {
		return checkCommand(c)
	}
	if parts := strings.Split(c.detail, "/"); len(parts) > 1 {
		return checkParts(c, parts)
	}
	if position, err := strconv.Atoi(c.detail); err == nil {
		if !slices.Contains(allowed, "N") {
			return fmt.Errorf("kind %s takes no position", c.kind)
		}
		return c.isOf(position, c.dialect.stream)
	}
	if !slices.Contains(allowed, c.detail) || c.detail == "N" {
		return fmt.Errorf("kind %s does not know %q", c.kind, c.detail)
	}
	return nil
}

// checkCommand validates a line of OpenCL.
func checkCommand(c call) error {
	switch c.kind {
	case "launch", "copy", "work":
		if c.result != opencl.result {
			return fmt.Errorf("%s returns %s; write it by hand", c.symbol, c.result)
		}
		if err := c.isOf(0, c.dialect.stream); err != nil || c.detail == "-" {
			return err
		}
		position, err := strconv.Atoi(c.detail)
		if err != nil {
			return fmt.Errorf("kind %s does not know %q", c.kind, c.detail)
		}
		return c.isOf(position, "cl_bool")
	case "hand", "use":
		return nil
	}
	return fmt.Errorf("OpenCL has no kind %q", c.kind)
}

// isOf checks the type of a parameter.
func (c call) isOf(position int, want string) error {
	if position >= len(c.types) || c.types[position] != want {
		return fmt.Errorf("parameter %d of %s is no %s", position, c.symbol, map[bool]string{true: "stream", false: want}[want == c.dialect.stream])
	}
	return nil
}

// checkParts validates the details with a second part.
func checkParts(c call, parts []string) error {
	if c.dialect.dir == cuda.dir || c.kind == "await" {
		return checkCondition(c, parts)
	}
	want := map[string][]string{"ext": {c.dialect.stream, "hipEvent_t", "hipEvent_t"}, "copy": {c.dialect.stream, "hipMemcpyKind"}}[c.kind]
	if c.dialect.dir != hip.dir || len(parts) != len(want) {
		return fmt.Errorf("kind %s does not know %q", c.kind, c.detail)
	}
	for i, part := range parts {
		if c.kind == "copy" && (i == 0 && part == "default" || i == 1 && part == "wait") {
			continue
		}
		position, err := strconv.Atoi(part)
		if err != nil {
			return fmt.Errorf("kind %s does not know %q", c.kind, c.detail)
		}
		if err := c.isOf(position, want[i]); err != nil {
			return err
		}
	}
	return nil
}

// checkCondition validates STREAM/NAME.N..: the call waits if xsi_cu_waits_NAME says so of these
// parameters.
func checkCondition(c call, parts []string) error {
	names := map[string][]string{"copy": {"to", "host", "size", "2d", "2dhost", "3d", "3dhost", "list", "operation", "operations"}, "await": {"batch"}}[c.kind]
	name, positions, _ := strings.Cut(parts[1], ".")
	if len(parts) != 2 || !slices.Contains(names, name) {
		return fmt.Errorf("kind %s does not know %q", c.kind, c.detail)
	}
	for p := range strings.SplitSeq(positions, ".") {
		if n, err := strconv.Atoi(p); err != nil || n >= len(c.types) {
			return fmt.Errorf("%s has no parameter %q", c.symbol, p)
		}
	}
	c.detail = parts[0]
	return checkDetail(c)
}

// condition returns the C expression of the second part.
func (c call) condition() string {
	_, second, _ := strings.Cut(c.detail, "/")
	name, positions, _ := strings.Cut(second, ".")
	return c.lower + "waits_" + name + "(a" + strings.ReplaceAll(positions, ".", ", a") + ")"
}

// parameters returns the parameter list of a definition: types and names.
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

// arguments returns the argument list of a call.
func (c call) arguments() string {
	var out []string
	for i := range c.types {
		out = append(out, fmt.Sprintf("a%d", i))
	}
	return strings.Join(out, ", ")
}

// returns is the return type.
func (c call) returns() string {
	if c.symbol == "hipGetStreamDeviceId" {
		return "int"
	}
	return c.result
}

// prototype returns the parameter list of a declaration: types only.
func (c call) prototype() string {
	if len(c.types) == 0 {
		return "void"
	}
	return strings.Join(c.types, ", ")
}

// on returns the C expression of the call's stream, with stream 0 made explicit.
func (c call) on() string {
	which := "legacy"
	if c.thread {
		which = "thread"
	}
	first, _, _ := strings.Cut(c.detail, "/")
	if c.kind == "capture" {
		return c.lower + which + "(a0)"
	}
	switch first {
	case "default", "wait":
		return c.upper + strings.ToUpper(which)
	case "config":
		return c.lower + which + "(" + c.lower + "config_stream(a0))"
	case "record":
		return c.lower + which + "(a1)"
	}
	return c.lower + which + "(a" + first + ")"
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
