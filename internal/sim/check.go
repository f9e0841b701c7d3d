// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"xsched/internal/engine"
	"xsched/internal/model"
)

// locate returns the line of the node at a path such as "tenants.2.hint", or of its nearest
// existing parent.
func locate(n *yaml.Node, path string) int {
	if n == nil {
		return 0
	}
	for step := range strings.SplitSeq(path, ".") {
		var next *yaml.Node
		switch n.Kind {
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == step {
					next = n.Content[i+1]
				}
			}
		case yaml.SequenceNode:
			if i, err := strconv.Atoi(step); err == nil && i < len(n.Content) {
				next = n.Content[i]
			}
		}
		if next == nil {
			break
		}
		n = next
	}
	return n.Line
}

// checker collects the first mistake in a scenario.
type checker struct {
	root *yaml.Node // nil: not from a file
	at   string     // path of the current value
	name string     // of the tenant checked now
	err  error
}

// require records a mistake unless ok.
func (c *checker) require(ok bool, path, cause, remedy string) {
	if !ok && c.err == nil {
		c.err = &Error{Line: locate(c.root, c.at+path), Cause: c.name + cause, Remedy: remedy}
	}
}

// within requires an integer in a range.
func (c *checker) within(path string, v, lo, hi int) {
	c.require(v >= lo && v <= hi, path, fmt.Sprintf("%s %d is out of range", path, v), fmt.Sprintf("use %d to %d", lo, hi))
}

// dist requires a valid distribution of at least the given length.
func (c *checker) dist(path string, d *Dist, least time.Duration) {
	why := d.check(least)
	c.require(why == "", path, path+" "+why, distRemedy)
}

// Check validates a scenario built by a program.
func (s *Scenario) Check() error {
	s.complete()
	err := s.check(nil)
	if e, ok := errors.AsType[*Error](err); ok {
		e.File = s.Name
	}
	return err
}

// check validates the values.
func (s *Scenario) check(root *yaml.Node) error {
	c := &checker{root: root}
	c.require(len(s.Tenants) > 0, "tenants", "there are no tenants", "list them under `tenants:`")
	c.within("devices", s.Devices, 1, maxDevices)
	c.require(s.Duration.D() <= maxDuration, "duration", fmt.Sprintf("duration %v is out of range", s.Duration.D()), "use at most 24h")
	c.require(*s.Warmup < s.Duration, "warmup", fmt.Sprintf("warmup %v is not shorter than duration %v", s.Warmup.D(), s.Duration.D()), "")
	for i, d := range s.PerDevice {
		c.within(fmt.Sprintf("per_device.%d.device", i), d.Device, 0, s.Devices-1)
	}
	c.within("gpu.level", s.GPU.Level, 1, 3)
	c.within("gpu.channels", s.GPU.Channels, 0, 64)
	c.require(s.GPU.Slice == nil || s.GPU.Slice.D() >= time.Microsecond, "gpu.slice", "gpu.slice is too short", "use at least 1us")
	c.require(s.GPU.CopySlowdown >= 0 && s.GPU.CopySlowdown <= 0.9, "gpu.copy_slowdown", fmt.Sprintf("gpu.copy_slowdown %v is out of range", s.GPU.CopySlowdown), "use 0 to 0.9")
	c.require(s.GPU.CopyRate >= 0 && s.GPU.CopyRate <= maxCopyRate, "gpu.copy_rate", fmt.Sprintf("gpu.copy_rate %d is out of range", s.GPU.CopyRate), "use bytes per second, up to 10000000000000")
	c.require(s.GPU.CopySlice == nil || s.GPU.CopySlice.D() >= time.Microsecond, "gpu.copy_slice", "gpu.copy_slice is too short", "use at least 1us")
	c.require(s.GPU.Memory >= 0, "gpu.memory", "gpu.memory is negative", "use a size such as 141GiB")
	c.require(s.GPU.MoveRate >= 0 && s.GPU.MoveRate <= maxCopyRate, "gpu.move_rate", fmt.Sprintf("gpu.move_rate %d is out of range", s.GPU.MoveRate), "use bytes per second, up to 10000000000000")
	if s.Host.Dispatch != nil {
		c.dist("host.dispatch", s.Host.Dispatch, 0)
	}
	if _, err := engine.New(s.engineConfig(s.Policy, s.Mode)); err != nil {
		field := "policy"
		if strings.Contains(err.Error(), "mode") {
			field = "mode"
		}
		c.require(false, field, err.Error(), "see `xsched sim --help`")
	}
	total, names := 0, map[string]bool{}
	for i := 0; i < len(s.Tenants) && c.err == nil; i++ {
		t := &s.Tenants[i]
		c.at, c.name = fmt.Sprintf("tenants.%d.", i), "tenant "+cmp.Or(t.Name, strconv.Itoa(i+1))+": "
		t.check(s, c)
		c.require(!names[t.Name], "name", "duplicate name", "use count for identical tenants")
		names[t.Name] = true
		total += t.Count * t.Ranks
		c.require(total <= maxInstances, "count", fmt.Sprintf("more than %d programs in total", maxInstances), "lower a count")
	}
	s.checkCases(c)
	return c.err
}

func (t *Tenant) check(s *Scenario, c *checker) {
	usable := t.Name != "" && len(t.Name) <= 64 && !strings.ContainsFunc(t.Name, func(r rune) bool { return r < ' ' })
	c.require(usable, "name", "no valid name", "set `name:`, up to 64 characters")
	c.within("count", t.Count, 1, maxInstances)
	c.require(t.Memory >= 0 && t.Memory <= s.GPU.Memory, "memory", fmt.Sprintf("memory %v does not fit into gpu.memory %v", model.Bytes(t.Memory), model.Bytes(s.GPU.Memory)), "set gpu.memory, or a smaller size")
	c.within("ranks", t.Ranks, 1, s.Devices)
	c.require(t.Stop == 0 || t.Stop > t.Start, "stop", "stop is not later than start", "")
	for i, d := range t.On {
		c.require(d >= 0 && d < s.Devices, fmt.Sprintf("on.%d", i), fmt.Sprintf("there is no device %d", d), fmt.Sprintf("use 0 to %d", s.Devices-1))
	}
	if c.err == nil && len(t.On) > 0 && t.Ranks > 1 {
		different := slices.Compact(slices.Sorted(slices.Values(t.On)))
		c.require(len(t.On)%t.Ranks == 0 && len(different) == len(t.On), "on", "the ranks do not fit on the devices", "list a multiple of ranks different devices")
	}
	t.checkWork(c)
	hint := t.Hint.model()
	if top := t.MaxPriority; top != nil {
		c.require(*top >= int(model.PriorityMin) && *top <= int(model.PriorityMax), "max_priority", fmt.Sprintf("max_priority %d is out of range", *top), fmt.Sprintf("use %d to %d", model.PriorityMin, model.PriorityMax))
	}
	if err := hint.Check(); err != nil {
		c.require(false, "hint", err.Error(), "see the hints in docs/simulator.md")
	}
	c.require(int(t.Hint.Level) <= s.GPU.Level, "hint.level", fmt.Sprintf("level %d is above gpu.level %d", t.Hint.Level, s.GPU.Level), "")
	t.Arrivals.check(c)
}

// checkWork validates what a request consists of.
func (t *Tenant) checkWork(c *checker) {
	known := t.Arrivals.Trace != nil && !slices.ContainsFunc(t.Arrivals.Trace, func(r Request) bool { return r.Work == 0 })
	parts := t.parts()
	for i := range parts {
		path := ""
		if len(t.Segments) > 0 {
			path = fmt.Sprintf("segments.%d.", i)
		}
		if !known && !parts[i].copies() {
			c.dist(path+"kernel", &parts[i].Kernel, 1)
		}
		parts[i].complete()
		parts[i].check(c, path)
	}
	if len(t.Segments) > 0 {
		one := Segment{Kernel: t.Kernel, Launch: t.Launch, Copy: t.Copy}
		c.require(one == Segment{} && t.Kernels == Exactly(1), "segments", "both segments and kernel, kernels, launch or copy", "describe the whole request in segments")
		c.require(len(t.Segments) <= maxSegments, "segments", fmt.Sprintf("%d segments", len(t.Segments)), fmt.Sprintf("use up to %d, and repeat", maxSegments))
	}
	c.require(t.Vary >= 0 && t.Vary <= 2, "vary", fmt.Sprintf("vary %v is out of range", t.Vary), "use 0 to 2")
	c.require(t.Stall.Chance >= 0 && t.Stall.Chance <= 1, "stall.chance", fmt.Sprintf("stall.chance %v is out of range", t.Stall.Chance), "use 0 to 1, per launch")
	c.dist("stall.time", &t.Stall.Time, 0)
}

func (a *Arrivals) check(c *checker) {
	const maxRate = 1e6
	rate := func(path string, v float64) {
		c.require(v > 0 && v <= maxRate, path, fmt.Sprintf("rate %v is out of range", v), "use up to 1000000 requests per second")
	}
	c.require(a.Jitter >= 0 && a.Jitter <= 1, "arrivals.jitter", fmt.Sprintf("jitter %v is out of range", a.Jitter), "use 0 to 1")
	kinds := 0
	if a.Poisson != 0 {
		kinds++
		rate("arrivals.poisson", a.Poisson)
	}
	if a.Rate != 0 {
		kinds++
		rate("arrivals.rate", a.Rate)
	}
	if a.OnOff != nil {
		kinds++
		c.dist("arrivals.onoff.on", &a.OnOff.On, 1)
		c.dist("arrivals.onoff.off", &a.OnOff.Off, 0)
		rate("arrivals.onoff.rate", a.OnOff.Rate)
	}
	if a.Closed != nil {
		kinds++
		c.within("arrivals.closed.depth", a.Closed.Depth, 1, 1024)
		c.dist("arrivals.closed.think", &a.Closed.Think, 0)
	}
	if a.TraceFile != "" || a.Trace != nil && a.Closed == nil {
		kinds++
	}
	c.require(kinds == 1, "arrivals", fmt.Sprintf("%d kinds of arrivals", kinds), arrivalsRemedy)
}

// Bounds of a trace.
const (
	maxTraceLine = 256
	maxTrace     = 10_000_000
)

// readTraces reads the trace files that tenants name.
func (s *Scenario) readTraces(root *yaml.Node, open func(string) (io.ReadCloser, error)) error {
	for i := range s.Tenants {
		a := &s.Tenants[i].Arrivals
		if a.TraceFile == "" {
			continue
		}
		err := errors.New("not available here")
		var f io.ReadCloser
		if open != nil {
			f, err = open(a.TraceFile)
		}
		if err != nil {
			return &Error{Line: locate(root, fmt.Sprintf("tenants.%d.arrivals.trace", i)), Cause: fmt.Sprintf("open trace: %v", err)}
		}
		a.Trace, err = ReadTrace(a.TraceFile, f)
		_ = f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// ReadTrace reads lines "seconds[,kernel microseconds[,kernels]]" in order of time; # starts a
// comment.
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

// variants parses the names to compare: POLICY, POLICY:MODE, native.
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
