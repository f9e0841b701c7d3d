// SPDX-License-Identifier: Apache-2.0

// Package traces reads public traces of GPU clusters for the fleet simulator. They record requests and times,
// but neither what a program did on its GPU nor how much memory it used. Assumptions has what they lack; the
// table of docs/kubernetes/traces.md has the origin of every field.
package traces

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"xsched/internal/sim/fleet"
)

// Assumptions are what no public trace records.
type Assumptions struct {
	// Start and Length select a part of the trace. Start counts from its first arrival.
	Start, Length time.Duration
	// Memory is what a pod uses for each GPU that it requests, in GiB. A pod with a part of a GPU uses that part.
	Memory float64
	// Load is the part of its requested GPU time that a service uses at its peak.
	Load float64
	// Request and P99 are those of all services.
	Request, P99 time.Duration
	// Kernel is that of all batch jobs.
	Kernel time.Duration
}

// Defaults returns the assumptions of the documentation.
func Defaults() Assumptions {
	return Assumptions{
		Length: 24 * time.Hour, Memory: 8, Load: 0.3, Request: 3 * time.Millisecond, P99: 25 * time.Millisecond, Kernel: time.Millisecond,
	}
}

func (a *Assumptions) check() error {
	switch {
	case a.Start < 0 || a.Length <= 0:
		return errors.New("the part of the trace is empty; set start and duration")
	case !(a.Memory >= 0 && a.Memory <= 1024):
		return fmt.Errorf("%g GiB per requested GPU are out of range; use 0 to 1024", a.Memory)
	case !(a.Load > 0 && a.Load <= 1):
		return fmt.Errorf("a load of %g is out of range; use 0.01 to 1", a.Load)
	}
	return nil
}

// record is a line of a trace.
type record struct {
	name               string
	service            bool
	submit, start, end time.Duration
	gpus               int
	part               float64 // requested of each GPU, 0 to 1
	models             string
}

// Trace is a part of a public trace, ready for the simulator.
type Trace struct {
	Pods []fleet.Pod
	// Rows counts the lines that were read, and Left those that were left out, by reason.
	Rows int
	Left map[string]int
}

// format is a kind of trace.
type format struct {
	name, about string
	read        func(io.Reader, func(record, string)) error
}

var formats = []format{
	{"alibaba-2023", "openb_pod_list_*.csv", readAlibaba2023},
	{"alibaba-2020", "pai_task_table.csv", readAlibaba2020},
	{"philly", "cluster_job_log", readPhilly},
	{"helios", "cluster_log.csv", readHelios},
}

// Formats lists the formats, for people.
func Formats() string {
	var names []string
	for _, f := range formats {
		names = append(names, f.name+" ("+f.about+")")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// maxRows bounds a trace: the largest public one has 7.5 million lines.
const maxRows = 10_000_000

// Read reads a part of a trace.
func Read(name string, r io.Reader, a Assumptions) (*Trace, error) {
	i := slices.IndexFunc(formats, func(f format) bool { return f.name == name })
	if i < 0 {
		return nil, fmt.Errorf("unknown format %q; use %s", name, Formats())
	}
	if err := a.check(); err != nil {
		return nil, err
	}
	out := &Trace{Left: map[string]int{}}
	var all []record
	err := formats[i].read(r, func(one record, left string) {
		out.Rows++
		switch {
		case left != "":
		case one.gpus == 0:
			left = "no GPU"
		case one.end <= one.start || one.start < one.submit:
			left = "never ran"
		}
		if left != "" {
			out.Left[left]++
			return
		}
		all = append(all, one)
	})
	if err == nil && out.Rows > maxRows {
		err = fmt.Errorf("more than %d lines; split the trace", maxRows)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s trace: %w", name, err)
	}
	out.cut(all, &a)
	if len(out.Pods) == 0 {
		return nil, fmt.Errorf("no pod of the %d lines runs in this part of the trace; choose another start", out.Rows)
	}
	return out, fleet.Complete(out.Pods)
}

// cut takes the pods of a part of the trace. What runs when it begins arrives at once, with what it has left.
func (t *Trace) cut(all []record, a *Assumptions) {
	first := time.Duration(math.MaxInt64)
	for i := range all {
		first = min(first, all[i].submit)
	}
	for i := range all {
		one := &all[i]
		one.submit, one.start, one.end = one.submit-first-a.Start, one.start-first-a.Start, one.end-first-a.Start
		switch {
		case one.end <= 0:
			t.Left["ended before"]++
		case one.submit >= a.Length:
			t.Left["arrived after"]++
		default:
			t.Pods = append(t.Pods, one.pods(a)...)
		}
	}
}

// The largest load of a service that the simulator has outcomes for.
const mostLoad = 0.7

// pods returns the pods of a record: one, or one service for each GPU.
func (r *record) pods(a *Assumptions) []fleet.Pod {
	p := fleet.Pod{
		Name: r.name, Service: r.service, Arrive: max(r.submit, 0), Duration: r.end - max(r.start, 0), GPUs: r.gpus,
		Memory: int(math.Ceil(a.Memory * r.part)), Models: r.models,
	}
	if !r.service {
		// It got a part of a GPU. Alone it needs that part of its time.
		p.Duration = max(time.Duration(float64(p.Duration)*r.part), time.Second).Round(time.Second)
		p.Kernel = a.Kernel
		return []fleet.Pod{p}
	}
	p.GPUs, p.Priority, p.Request, p.P99 = 1, 1000, a.Request, a.P99
	p.Rate = math.Round(min(a.Load*r.part, mostLoad)/a.Request.Seconds()*10) / 10
	return slices.Repeat([]fleet.Pod{p}, r.gpus)
}

// Summary says in one line what was read and what was left out.
func (t *Trace) Summary() string {
	services := 0
	for i := range t.Pods {
		if t.Pods[i].Service {
			services++
		}
	}
	text := fmt.Sprintf("%d lines: %d services, %d jobs", t.Rows, services, len(t.Pods)-services)
	var reasons []string
	for reason, n := range t.Left {
		reasons = append(reasons, fmt.Sprintf("%d %s", n, reason))
	}
	if slices.Sort(reasons); len(reasons) > 0 {
		text += "; left out: " + strings.Join(reasons, ", ")
	}
	return text
}
