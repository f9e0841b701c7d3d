// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"xsched/internal/strict"
)

// Segment is a part of a request: the program submits kernels and copies, and waits for them.
type Segment struct {
	Kernel  Dist   `yaml:"kernel"`  // duration of a kernel; 0: only copies
	Kernels Number `yaml:"kernels"` // default 1
	Launch  Dist   `yaml:"launch"`  // CPU time between two launches
	Copy    int64  `yaml:"copy"`    // bytes copied after the kernels, by a copy engine
	Wait    Wait   `yaml:"wait"`    // how the program waits for the segment
	CPU     Dist   `yaml:"cpu"`     // CPU time between the wait and the next segment or request
	Repeat  Number `yaml:"repeat"`  // times in a row; default 1
	Token   bool   `yaml:"token"`   // its end delivers a token
}

// Wait is how a program waits for a segment, which decides what the daemon learns about it.
type Wait string

// The ways to wait.
const (
	WaitSync   Wait = "sync"   // a synchronisation, or a copy that blocks: recognised as a wait
	WaitUnseen Wait = "unseen" // in a call that counts as submission: the request looks launch-bound
	WaitNone   Wait = "none"   // not at all; the last segment of a request is always waited for
)

// Stall is an occasional delay of the submitting thread.
type Stall struct {
	Chance float64 `yaml:"chance"` // per launch
	Time   Dist    `yaml:"time"`
}

// Number is a distribution of whole numbers of at least 1. Its durations count in nanoseconds.
type Number Dist

// Exactly is always n.
func Exactly(n int) Number { return Number(Fixed(time.Duration(n))) }

// Around is lognormal with this median; sigma is the standard deviation of its logarithm.
func Around(n int, sigma float64) Number { return Number(LogNormal(time.Duration(n), sigma)) }

func (n *Number) draw(r *rand.Rand) int32 {
	return int32(min(max((*Dist)(n).draw(r), 1), maxKernels))
}

func (n *Number) orOne() {
	if *n == (Number{}) {
		*n = Exactly(1)
	}
}

const numberRemedy = "write 600, {uniform: [400, 800]}, {exponential: 600} or {lognormal: {median: 600, sigma: 0.1}}"

// UnmarshalYAML implements yaml.Unmarshaler.
func (n *Number) UnmarshalYAML(node *yaml.Node) error {
	var v struct {
		Uniform     []int64 `yaml:"uniform"`
		Exponential int64   `yaml:"exponential"`
		LogNormal   struct {
			Median int64   `yaml:"median"`
			Sigma  float64 `yaml:"sigma"`
		} `yaml:"lognormal"`
	}
	bad := &Error{Line: node.Line, Cause: "not a whole number or a distribution", Remedy: numberRemedy}
	if node.Kind == yaml.ScalarNode {
		fixed, err := strconv.ParseInt(node.Value, 10, 64)
		if err != nil {
			return &Error{Line: node.Line, Cause: fmt.Sprintf("%q is not a whole number", node.Value), Remedy: numberRemedy}
		}
		*n = Number(Fixed(time.Duration(fixed)))
		return nil
	}
	if node.Kind != yaml.MappingNode || len(node.Content) != 2 {
		return bad
	}
	if err := strict.Decode(node, &v); err != nil {
		return err
	}
	switch node.Content[0].Value {
	case "exponential":
		*n = Number(Exponential(time.Duration(v.Exponential)))
	case "lognormal":
		*n = Number(LogNormal(time.Duration(v.LogNormal.Median), v.LogNormal.Sigma))
	case "uniform":
		if len(v.Uniform) != 2 {
			return bad
		}
		*n = Number(Uniform(time.Duration(v.Uniform[0]), time.Duration(v.Uniform[1])))
	}
	return nil
}

// parts returns the segments of a request.
func (t *Tenant) parts() []Segment {
	if len(t.Segments) > 0 {
		return t.Segments
	}
	return []Segment{{Kernel: t.Kernel, Kernels: t.Kernels, Launch: t.Launch, Copy: t.Copy, Wait: t.Wait}}
}

func (s *Segment) complete() {
	s.Kernels.orOne()
	s.Repeat.orOne()
	if s.Wait == "" {
		s.Wait = WaitSync
	}
}

// paced reports whether CPU time passes between two launches: then a watcher looks for idle queues.
func (s *Segment) paced() bool { return s.Launch != (Dist{}) || s.CPU != (Dist{}) }

// copies reports whether the segment has only copies.
func (s *Segment) copies() bool { return s.Kernel == (Dist{}) && s.Copy > 0 }

// Limits of a request.
const (
	maxCopy     = 1 << 40
	maxCopyRate = 10_000_000_000_000
	maxRepeat   = 10_000
	maxSegments = 64
)

func (s *Segment) check(c *checker, path string) {
	number := func(name string, n *Number, most int) {
		why := (*Dist)(n).check(1)
		c.require(why == "", path+name, path+name+" "+why, numberRemedy)
		top := max(n.a, n.b)
		c.require(top <= time.Duration(most), path+name, fmt.Sprintf("%s %d is out of range", path+name, int64(top)), fmt.Sprintf("use 1 to %d", most))
	}
	number("kernels", &s.Kernels, maxKernels)
	number("repeat", &s.Repeat, maxRepeat)
	c.dist(path+"launch", &s.Launch, 0)
	c.dist(path+"cpu", &s.CPU, 0)
	c.require(s.Copy >= 0 && s.Copy <= maxCopy, path+"copy", fmt.Sprintf("%scopy %d is out of range", path, s.Copy), "use bytes, up to 1 TiB")
	switch s.Wait {
	case WaitSync, WaitUnseen, WaitNone:
	default:
		c.require(false, path+"wait", fmt.Sprintf("unknown wait %q", s.Wait), "use sync, unseen or none")
	}
}
