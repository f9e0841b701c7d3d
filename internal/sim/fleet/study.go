// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"math"
	"time"
)

// Study is a comparison of ways of sharing on one load.
type Study struct {
	Source string  `json:"source"` // a mix or a trace
	About  string  `json:"about,omitempty"`
	Seed   uint64  `json:"seed,omitempty"`
	Pods   int     `json:"pods"`
	Hours  float64 `json:"hours"`
	Nodes  int     `json:"nodes"` // the largest fleet
	PerGPU int     `json:"gpus_per_node"`
	Memory int     `json:"memory_gib"`
	Kinds  string  `json:"kinds,omitempty"` // nodes of several kinds
	GPUs   int     `json:"gpus"`            // of the largest fleet
	Score  Score   `json:"score"`
	Cost   float64 `json:"cost"`
	Needs  []Need  `json:"needs"`
	Sweep  []Point `json:"sweep,omitempty"`
}

// Point is the need at another load.
type Point struct {
	Load float64         `json:"load"` // relative to the study's
	GPUs map[Sharing]int `json:"gpus"`
}

// Options of Compare.
type Options struct {
	Config   Config // without sharing, rule and progress
	Sharings []Sharing
	Mix      *Mix // nil: Pods
	Load     float64
	Seed     uint64
	Pods     []Pod
	Source   string
	// Loads are further loads to search, relative to Load. They need a Mix.
	Loads []float64
	// Fixed simulates the fleet as it is, under the best rule, instead of the search.
	Fixed bool
	// Progress, if not nil, receives the completed fraction, as estimated.
	Progress func(float64)
}

// size returns the GPUs of a mix.
func (o *Options) size(factor float64) float64 {
	return float64(o.Config.gpus(o.Config.Nodes)) * o.Load * factor
}

// Generate returns the pods of the options' mix or trace.
func (o *Options) Generate() ([]Pod, error) {
	if o.Mix == nil {
		return o.Pods, nil
	}
	if !(o.Load > 0 && o.Load <= 10) {
		return nil, fmt.Errorf("load %g is out of range; use 0.01 to 10", o.Load)
	}
	if n := o.size(1); n > maxSize {
		return nil, fmt.Errorf("a mix of %.0f GPUs is out of range; use up to %d", n, maxSize)
	}
	return o.Mix.Generate(o.size(1), o.Seed), nil
}

// maxSize bounds a mix, in GPUs.
const maxSize = 100_000

// Compare finds the need under each way of sharing.
func Compare(ctx context.Context, o Options) (*Study, error) {
	if o.Config.Memory == 0 {
		o.Config.Memory = DefaultMemory
	}
	if o.Config.Length == 0 {
		o.Config.Length = 24 * time.Hour
	}
	if o.Config.Score == "" {
		o.Config.Score = MostAllocated
	}
	c := &o.Config
	out := &Study{
		Source: o.Source, Hours: c.Length.Hours(), Nodes: c.Nodes, PerGPU: c.GPUs, Memory: c.Memory, Score: c.Score, Cost: c.Cost,
		GPUs: c.gpus(c.Nodes),
	}
	if c.List != nil {
		out.PerGPU, out.Memory, out.Kinds = 0, 0, kinds(c.nodes(c.Nodes))
	}
	if o.Mix != nil {
		out.Source, out.About, out.Seed = "mix "+o.Mix.Name, o.Mix.About, o.Seed
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	pods, err := o.Generate()
	if err != nil {
		return nil, err
	}
	out.Pods = len(pods)
	tick := o.estimate()
	for _, how := range o.Sharings {
		need, err := o.need(ctx, pods, how, tick)
		if err != nil {
			return nil, err
		}
		out.Needs = append(out.Needs, *need)
	}
	for _, load := range o.Loads {
		p := Point{Load: load, GPUs: map[Sharing]int{}}
		some := o.Mix.Generate(o.size(load), o.Seed)
		for i, how := range o.Sharings {
			if load == 1 {
				p.GPUs[how] = out.Needs[i].GPUs
				continue
			}
			need, err := o.need(ctx, some, how, tick)
			if err != nil {
				return nil, err
			}
			p.GPUs[how] = need.GPUs
		}
		out.Sweep = append(out.Sweep, p)
	}
	if o.Progress != nil {
		o.Progress(1)
	}
	return out, nil
}

// estimate returns a function that counts simulations for the progress.
func (o *Options) estimate() func() {
	done, all := 0.0, 1.0
	for _, how := range o.Sharings {
		n := float64(len(Rules(how)))
		if !o.Fixed {
			n += 1 + 2*math.Log2(float64(o.Config.Nodes+1))
		}
		all += n * float64(1+len(o.Loads))
	}
	return func() {
		if done++; o.Progress != nil {
			o.Progress(done / max(all, done+1))
		}
	}
}

func (o *Options) need(ctx context.Context, pods []Pod, how Sharing, tick func()) (*Need, error) {
	c := o.Config
	c.Sharing = how
	if !o.Fixed {
		return FindNeed(ctx, pods, c, Rules(how), tick)
	}
	var best *Result
	for _, c.Rule = range Rules(how) {
		r, err := Run(ctx, pods, c)
		if err != nil {
			return nil, err
		}
		tick()
		if best == nil || r.better(best) {
			best = r
		}
	}
	return &Need{Sharing: how, Rule: best.Rule, Nodes: best.Nodes, GPUs: best.GPUs, Result: best}, nil
}

// better prefers results that keep their promises: to services first, then to jobs.
func (r *Result) better(than *Result) bool {
	switch {
	case r.Kept() != than.Kept():
		return r.Kept()
	case r.LateHours != than.LateHours:
		return r.LateHours < than.LateHours
	case r.ServicesWaited != than.ServicesWaited:
		return r.ServicesWaited < than.ServicesWaited
	}
	return r.Overdue < than.Overdue
}
