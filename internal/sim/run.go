// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"xsched/internal/engine"
	"xsched/internal/model"
	"xsched/internal/policy"
	"xsched/internal/record"
	gpumodel "xsched/internal/virtual/model"
)

// Options of Run.
type Options struct {
	// Policies to compare; empty: the scenario's. A name can have a mode, "HPF:suspend"; "native" is
	// mode off.
	Policies []string
	Seed     uint64 // 0: the scenario's
	Workers  int    // goroutines; 0: one per core
	// Draw is the length of the first device's timeline that charts show.
	Draw time.Duration
	// Record, if not nil, records the engine as a daemon would. The scenario must be one cell
	// under one policy.
	Record record.Recorder
	// Progress, if not nil, receives the completed fraction, 0 to 1. Calls do not overlap.
	Progress func(part float64)
}

// Policies returns the names of the policies.
func Policies() []string { return policy.Names() }

// plan is shared by all cells of one run and immutable.
type plan struct {
	scenario         *Scenario
	engine           engine.Config
	costs            gpumodel.Costs
	seed             uint64
	duration, warmup time.Duration
	reaction, ret    time.Duration
	dispatch         Dist
	draw             time.Duration
	slices           bool
	record           record.Recorder
}

// instance is one program: its class, its number in the scenario, its devices.
type instance struct {
	class, number int
	devices       []int
}

// cellPlan is one cell: its devices and their instances.
type cellPlan struct {
	devices   []int
	instances []instance
	drawn     bool
}

func newPlan(s *Scenario, policy string, mode model.Mode, seed uint64) *plan {
	p := &plan{
		scenario: s, engine: s.engineConfig(policy, mode), costs: s.GPU.costs(), seed: seed,
		duration: s.Duration.D(), warmup: s.Warmup.D(),
		reaction: orElse(s.Host.Reaction, defaultReaction), ret: orElse(s.Host.Return, 0),
		slices: s.GPU.Slices == nil || *s.GPU.Slices,
	}
	if p.dispatch = Uniform(0, defaultDispatch); s.Host.Dispatch != nil {
		p.dispatch = *s.Host.Dispatch
	}
	p.engine.NativeSlice = p.costs.ComputeSlice
	return p
}

// instances returns all programs of a scenario.
func (s *Scenario) instances() []instance {
	var out []instance
	next := 0 // next device for tenants without `on`
	for class := range s.Tenants {
		t := &s.Tenants[class]
		for i := range t.Count {
			in := instance{class: class, number: s.firstNumber + len(out)}
			for k := range t.Ranks {
				at := i*t.Ranks + k
				switch {
				case len(t.On) > 0:
					in.devices = append(in.devices, t.On[at%len(t.On)])
				default:
					in.devices = append(in.devices, (next+at)%s.Devices)
				}
			}
			out = append(out, in)
		}
		if len(t.On) == 0 {
			next += t.Count * t.Ranks
		}
	}
	return out
}

// cells splits a scenario into independent parts. Devices of one program or one gang belong
// together.
func (s *Scenario) cells() []cellPlan {
	parent := make([]int, s.Devices)
	for i := range parent {
		parent[i] = i
	}
	find := func(i int) int {
		for parent[i] != i {
			parent[i] = parent[parent[i]]
			i = parent[i]
		}
		return i
	}
	join := func(a, b int) {
		if a, b = find(a), find(b); a != b {
			parent[max(a, b)] = min(a, b)
		}
	}
	all := s.instances()
	gangs := map[string]int{}
	for _, in := range all {
		for _, d := range in.devices[1:] {
			join(in.devices[0], d)
		}
		if gang := s.Tenants[in.class].Hint.Gang; gang != "" {
			if d, ok := gangs[gang]; ok {
				join(d, in.devices[0])
			}
			gangs[gang] = in.devices[0]
		}
	}
	at := map[int]int{}
	var out []cellPlan
	for d := range s.Devices {
		root := find(d)
		i, ok := at[root]
		if !ok {
			i = len(out)
			at[root] = i
			out = append(out, cellPlan{})
		}
		out[i].devices = append(out[i].devices, d)
	}
	for _, in := range all {
		i := at[find(in.devices[0])]
		out[i].instances = append(out[i].instances, in)
	}
	out[at[find(0)]].drawn = true
	return out
}

// Run simulates a scenario under each requested policy, and each tenant alone as a reference.
func Run(ctx context.Context, s *Scenario, o Options) (*Result, error) {
	if len(o.Policies) == 0 {
		o.Policies = []string{s.Policy}
	}
	variants, err := s.variants(o.Policies)
	if err != nil {
		return nil, err
	}
	if o.Seed == 0 {
		o.Seed = s.Seed
	}
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	cells := s.cells()
	if o.Record != nil && (len(cells) > 1 || len(variants) > 1) {
		return nil, errors.New("record a simulation: it must be of one policy, and of one GPU or GPUs that depend on each other")
	}
	alone := aloneScenarios(s)
	count := 0
	for _, c := range cells {
		count += len(c.instances)
	}
	res := &Result{
		Scenario: s.Name, About: s.About, Seed: o.Seed, DurationS: s.Duration.D().Seconds(), WarmupS: s.Warmup.D().Seconds(),
		Devices: s.Devices, Tenants: count,
	}
	steps := len(variants)*len(cells) + len(alone)
	meter := progress{call: o.Progress, total: steps}
	references := make([]*Class, len(alone))
	err = each(ctx, o.Workers, len(alone), func(ctx context.Context, i int) error {
		p := newPlan(alone[i], s.Policy, model.ModeOff, o.Seed)
		run, err := simulate(ctx, p, alone[i].cells(), 1, &meter)
		if err == nil {
			references[i] = &run.Classes[0]
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, v := range variants {
		p := newPlan(s, v.policy, v.mode, o.Seed)
		p.draw, p.record = o.Draw, o.Record
		run, err := simulate(ctx, p, cells, o.Workers, &meter)
		if err != nil {
			return nil, fmt.Errorf("simulate %s: %w", v.name, err)
		}
		run.Name, run.Policy, run.Mode = v.name, v.policy, v.mode
		for i := range run.Classes {
			run.Classes[i].compare(references[i])
		}
		run.Lows = run.lows(s, references)
		res.Runs = append(res.Runs, *run)
		res.Events += run.Events
	}
	return res, nil
}

// RecordHeader returns the header for a recording of this scenario.
func (s *Scenario) RecordHeader(program string, o Options) record.Header {
	h := record.Header{Program: program, Device: "simulated GPU", Base: epoch}
	v := variant{policy: s.Policy, mode: s.Mode}
	if all, err := s.variants(o.Policies); err == nil && len(all) > 0 {
		v = all[0]
	}
	h.Config = newPlan(s, v.policy, v.mode, s.Seed).engine
	return h
}

// aloneLength bounds the reference runs of one tenant alone.
const aloneLength = 2 * time.Minute

// aloneScenarios returns one scenario per tenant with a single instance of it.
func aloneScenarios(s *Scenario) []*Scenario {
	out := make([]*Scenario, len(s.Tenants))
	number := 0
	for i, t := range s.Tenants {
		one := *s
		one.firstNumber = number // the same requests as in the shared run
		number += t.Count
		t.Count, t.On, t.Start, t.Stop, t.Hint.Gang = 1, nil, 0, 0, ""
		one.Devices = t.Ranks
		one.Tenants = []Tenant{t}
		one.Mode = model.ModeOff
		if t.Arrivals.Trace == nil {
			one.Duration = min(one.Duration, Duration(aloneLength))
		}
		w := min(*s.Warmup, one.Duration/4)
		one.Warmup = &w
		out[i] = &one
	}
	return out
}

// simulate runs the cells of a plan on several goroutines. It adds results in cell order, so that
// they do not depend on scheduling.
func simulate(ctx context.Context, p *plan, cells []cellPlan, workers int, meter *progress) (*RunResult, error) {
	sum := newSum(p)
	var mu sync.Mutex
	finished := make(map[int]*cell) // completed out of order
	next := 0
	err := each(ctx, workers, len(cells), func(ctx context.Context, i int) error {
		c, err := newCell(p, cells[i])
		if err != nil {
			return err
		}
		if err := c.run(ctx); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		finished[i] = c
		for ; finished[next] != nil; next++ {
			sum.add(finished[next])
			delete(finished, next)
		}
		meter.step()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return sum.result(), nil
}

// each calls f for 0..n-1 on several goroutines and stops at the first error.
func each(ctx context.Context, workers, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	next := 0
	for range min(workers, n) {
		wg.Go(func() {
			for ctx.Err() == nil {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= n {
					return
				}
				if err := f(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// progress reports the completed fraction of a run.
type progress struct {
	mu    sync.Mutex
	call  func(float64)
	total int
	done  int
}

func (p *progress) step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	if p.call != nil {
		p.call(min(1, float64(p.done)/float64(p.total)))
	}
}
