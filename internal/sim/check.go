// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"xsched/internal/engine"
	"xsched/internal/model"
)

// locate finds the line of the part of a document that a path leads to, or of the
// nearest part above it.
func locate(n *yaml.Node, path []any) int {
	if n == nil {
		return 0
	}
	line := n.Line
	for _, step := range path {
		var next *yaml.Node
		switch step := step.(type) {
		case string:
			for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == step {
					next = n.Content[i+1]
				}
			}
		case int:
			if n.Kind == yaml.SequenceNode && step < len(n.Content) {
				next = n.Content[step]
			}
		}
		if next == nil {
			break
		}
		n, line = next, next.Line
	}
	return line
}

// Check says what is wrong with a scenario that was made by a program.
func (s *Scenario) Check() error {
	s.complete()
	return s.check(s.Name, nil)
}

// check says what is wrong with the values.
func (s *Scenario) check(file string, root *yaml.Node) error {
	bad := func(cause, remedy string, path ...any) error {
		return &Error{File: file, Line: locate(root, path), Cause: cause, Remedy: remedy}
	}
	switch {
	case len(s.Tenants) == 0:
		return bad("there are no tenants", "list them under `tenants:`", "tenants")
	case s.Devices < 1 || s.Devices > maxDevices:
		return bad(fmt.Sprintf("%d devices are out of range", s.Devices), fmt.Sprintf("use 1 to %d", maxDevices), "devices")
	case s.Duration.D() > maxDuration:
		return bad(fmt.Sprintf("duration %v is out of range", s.Duration.D()), "use 24h at most", "duration")
	case *s.Warmup >= s.Duration:
		return bad(fmt.Sprintf("warmup %v leaves nothing of duration %v", s.Warmup.D(), s.Duration.D()), "make it shorter", "warmup")
	case s.GPU.Level < 1 || s.GPU.Level > 3:
		return bad(fmt.Sprintf("gpu level %d is out of range", s.GPU.Level), "use 1 to 3", "gpu", "level")
	case s.GPU.Channels < 0 || s.GPU.Channels > 64:
		return bad(fmt.Sprintf("%d channels are out of range", s.GPU.Channels), "use 1 to 64", "gpu", "channels")
	case s.GPU.Slice != nil && s.GPU.Slice.D() < time.Microsecond:
		return bad(fmt.Sprintf("gpu slice %v is too short", s.GPU.Slice.D()), "use at least 1us", "gpu", "slice")
	}
	if d := s.Host.Dispatch; d != nil {
		if why := d.check(0); why != "" {
			return bad("dispatch "+why, distRemedy, "host", "dispatch")
		}
	}
	if _, err := engine.New(s.engineConfig(s.Policy, s.Mode)); err != nil {
		field := "policy"
		if strings.Contains(err.Error(), "mode") {
			field = "mode"
		}
		return bad(err.Error(), "see `xsched sim --help`", field)
	}
	total := 0
	for i := range s.Tenants {
		t := &s.Tenants[i]
		at := func(cause, remedy string, path ...any) error {
			name := t.Name
			if name == "" {
				name = strconv.Itoa(i + 1)
			}
			return bad("tenant "+name+": "+cause, remedy, append([]any{"tenants", i}, path...)...)
		}
		if err := t.check(s, at); err != nil {
			return err
		}
		for j := range i {
			if s.Tenants[j].Name == t.Name {
				return at("another tenant has the same name", "give each entry its own; use count for several alike", "name")
			}
		}
		if total += t.Count * t.Ranks; total > maxInstances {
			return at(fmt.Sprintf("more than %d programs in all", maxInstances), "lower a count", "count")
		}
	}
	return nil
}

func (t *Tenant) check(s *Scenario, bad func(cause, remedy string, path ...any) error) error {
	switch {
	case t.Name == "" || len(t.Name) > 64 || strings.ContainsFunc(t.Name, func(r rune) bool { return r < ' ' }):
		return bad("it has no usable name", "give it a `name:` of up to 64 characters", "name")
	case t.Count < 1 || t.Count > maxInstances:
		return bad(fmt.Sprintf("count %d is out of range", t.Count), fmt.Sprintf("use 1 to %d", maxInstances), "count")
	case t.Ranks < 1 || t.Ranks > s.Devices:
		return bad(fmt.Sprintf("%d ranks on %d devices", t.Ranks, s.Devices), "each rank needs a device of its own", "ranks")
	case t.Kernels < 1 || t.Kernels > maxKernels:
		return bad(fmt.Sprintf("%d kernels a request are out of range", t.Kernels), fmt.Sprintf("use 1 to %d", maxKernels), "kernels")
	case t.Stop > 0 && t.Stop <= t.Start:
		return bad("it stops before it starts", "make stop later than start", "stop")
	}
	for i, d := range t.On {
		if d < 0 || d >= s.Devices {
			return bad(fmt.Sprintf("there is no device %d", d), fmt.Sprintf("use 0 to %d", s.Devices-1), "on", i)
		}
	}
	if len(t.On) > 0 && t.Ranks > 1 {
		sorted := slices.Compact(slices.Sorted(slices.Values(t.On)))
		if len(t.On)%t.Ranks != 0 || len(sorted) != len(t.On) {
			return bad("its ranks do not fit on its devices", "list as many different devices as one program has ranks, or a multiple of that", "on")
		}
	}
	if why := t.Kernel.check(1); why != "" && (t.Arrivals.Trace == nil || t.needsKernel()) {
		return bad("kernel length "+why, distRemedy, "kernel")
	}
	hint := t.Hint.model()
	if err := hint.Check(); err != nil {
		return bad(err.Error(), "see the hints in docs/simulator.md", "hint")
	}
	if int(t.Hint.Level) > s.GPU.Level {
		return bad(fmt.Sprintf("level %d can't be had: the device does %d", t.Hint.Level, s.GPU.Level), "ask for less, or raise gpu level", "hint", "level")
	}
	return t.Arrivals.check(bad)
}

func (t *Tenant) needsKernel() bool {
	return slices.ContainsFunc(t.Arrivals.Trace, func(r Request) bool { return r.Work == 0 })
}

func (a *Arrivals) check(bad func(cause, remedy string, path ...any) error) error {
	const maxRate = 1e6
	rate := func(v float64) bool { return v > 0 && v <= maxRate && !math.IsNaN(v) }
	switch {
	case a.Jitter < 0 || a.Jitter > 1 || math.IsNaN(a.Jitter):
		return bad(fmt.Sprintf("jitter %v is out of range", a.Jitter), "use 0 to 1", "arrivals", "jitter")
	case a.OnOff != nil:
		if why := a.OnOff.On.check(1); why != "" {
			return bad("on "+why, distRemedy, "arrivals", "onoff", "on")
		}
		if why := a.OnOff.Off.check(0); why != "" {
			return bad("off "+why, distRemedy, "arrivals", "onoff", "off")
		}
		if !rate(a.OnOff.Rate) {
			return bad(fmt.Sprintf("rate %v is out of range", a.OnOff.Rate), "use up to 1000000 requests a second", "arrivals", "onoff", "rate")
		}
	case a.Closed != nil:
		if a.Closed.Depth < 1 || a.Closed.Depth > 1024 {
			return bad(fmt.Sprintf("depth %d is out of range", a.Closed.Depth), "use 1 to 1024", "arrivals", "closed", "depth")
		}
		if why := a.Closed.Think.check(0); why != "" {
			return bad("think time "+why, distRemedy, "arrivals", "closed", "think")
		}
	case a.Trace != nil:
	case !rate(a.Poisson) && !rate(a.Rate):
		return bad("nothing says when its requests come, or the rate is out of range", arrivalsRemedy, "arrivals")
	}
	return nil
}

// Bounds of a trace.
const (
	maxTraceLine = 256
	maxTrace     = 10_000_000
)

// readTrace reads the trace that was named, if one was.
func (a *Arrivals) readTrace(scenario string, open func(string) (io.ReadCloser, error)) error {
	if a.tracePath == "" {
		return nil
	}
	if open == nil {
		return &Error{File: scenario, Line: a.traceLine, Cause: "traces can't be read here"}
	}
	f, err := open(a.tracePath)
	if err != nil {
		return &Error{
			File: scenario, Line: a.traceLine, Cause: fmt.Sprintf("open trace: %v", err),
			Remedy: "name a file beside the scenario",
		}
	}
	defer func() { _ = f.Close() }()
	a.Trace, err = ReadTrace(a.tracePath, f)
	return err
}

// ReadTrace reads lines "seconds[,kernel microseconds[,kernels]]", in order of time; what
// follows a # is a remark.
func ReadTrace(name string, r io.Reader) ([]Request, error) {
	const remedy = "lines are seconds[,kernel microseconds[,kernels]], in order of time"
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4096), maxTraceLine)
	out := []Request{}
	for number := 1; lines.Scan(); number++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		bad := func(cause string) error { return &Error{File: name, Line: number, Cause: cause, Remedy: remedy} }
		fields := strings.Split(text, ",")
		if len(fields) > 3 {
			return nil, bad("more than three fields")
		}
		var v [3]float64
		for i, f := range fields {
			x, err := strconv.ParseFloat(strings.TrimSpace(f), 64)
			if err != nil || !(x >= 0 && x <= 1e9) {
				return nil, bad(fmt.Sprintf("%q is not a number that can be used here", strings.TrimSpace(f)))
			}
			v[i] = x
		}
		q := Request{
			At: time.Duration(v[0] * float64(time.Second)), Work: time.Duration(v[1] * float64(time.Microsecond)), Kernels: int(v[2]),
		}
		switch {
		case q.At > maxDuration:
			return nil, bad("later than 24 h")
		case q.Work > longest || q.Kernels > maxKernels:
			return nil, bad("too much work for one request")
		case len(out) > 0 && q.At < out[len(out)-1].At:
			return nil, bad("earlier than the line before")
		case len(out) == maxTrace:
			return nil, bad(fmt.Sprintf("more than %d requests", maxTrace))
		}
		out = append(out, q)
	}
	if err := lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return nil, &Error{File: name, Cause: "a line is too long", Remedy: remedy}
		}
		return nil, fmt.Errorf("read trace: %w", err)
	}
	return out, nil
}

// variant is one policy in one mode.
type variant struct {
	name, policy string
	mode         model.Mode
}

// variants reads the names of what is compared: POLICY, POLICY:MODE, native.
func (s *Scenario) variants(names []string) ([]variant, error) {
	var out []variant
	for _, name := range names {
		v := variant{name: strings.TrimSpace(name), mode: s.Mode}
		policy, mode, ok := strings.Cut(v.name, ":")
		if ok {
			v.mode = model.Mode(mode)
		}
		if v.policy = policy; strings.EqualFold(policy, "native") && !ok {
			v.policy, v.mode = s.Policy, model.ModeOff
		}
		e, err := engine.New(s.engineConfig(v.policy, v.mode))
		if err != nil {
			return nil, fmt.Errorf("compare %q: %w", name, err)
		}
		v.policy = e.Config().Policy
		if !ok && v.mode != model.ModeOff {
			v.name = v.policy
		}
		out = append(out, v)
	}
	return out, nil
}
