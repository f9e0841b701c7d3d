// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"xsched/internal/model"
	"xsched/internal/sim"
	gpumodel "xsched/internal/virtual/model"
)

// This file makes the table of node outcomes: it runs the engine and its policy in internal/sim on
// every mix of the grid.

// shape is a tabulated length of a service's request.
type shape struct {
	kernel  time.Duration
	kernels int
}

func (s shape) length() time.Duration { return s.kernel * time.Duration(s.kernels) }

// The grid. Requests and batch kernels of other lengths, and other numbers of batch jobs, use the next
// larger entry; more batch jobs use the largest.
var (
	requestShapes = []shape{{100 * time.Microsecond, 1}, {120 * time.Microsecond, 25}, {200 * time.Microsecond, 50}}
	batchKernels  = []time.Duration{time.Millisecond, 20 * time.Millisecond}
	ownLoads      = []float64{0, 0.02, 0.1, 0.3, 0.5, 0.7}
	batchCounts   = []int{1, 3}
	otherLoads    = []float64{0, 0.25, 0.5}
)

// saturated is the load from which a mix is not simulated: its queue has no steady state in a
// simulation of this length.
const saturated = 0.95

// mix is one point of the grid.
type mix struct {
	how       Sharing
	cost      float64 // factor on switch, suspend, resume and timeslice costs
	own       int     // shape of the observed service
	ownLoad   float64 // part of the GPU's time
	other     int     // shape of the services next to it
	otherLoad float64
	kernel    int // of batch jobs
	batch     int // number of batch jobs
}

// outcome is what a mix gives.
type outcome struct {
	p99  float64 // of the observed service in ms; +Inf if saturated
	kept float64 // of the batch jobs together, in GPUs
}

// The length of one simulation, in requests and time.
const (
	mixRequests = 1000
	mixShortest = 4 * time.Second
	mixLongest  = 120 * time.Second
	mixSeed     = 1 // of all modes: common random numbers
)

// priorityOf returns the priority of a service by its device class: shorter requests come first.
func priorityOf(shape int) model.Priority { return model.Priority(10 * (len(requestShapes) - shape)) }

// scenario describes the mix for internal/sim.
func (m *mix) scenario() (*sim.Scenario, error) {
	rate := func(shape int, load float64) float64 { return load / requestShapes[shape].length().Seconds() }
	length := mixShortest
	if m.ownLoad > 0 {
		length = time.Duration(mixRequests / rate(m.own, m.ownLoad) * float64(time.Second))
	}
	length = min(max(length, mixShortest), mixLongest)
	s := &sim.Scenario{Name: "mix", Duration: sim.Duration(length), Seed: mixSeed}
	service := func(name string, shape int, load float64) {
		if load > 0 {
			s.Tenants = append(s.Tenants, sim.Tenant{
				Name: name, Hint: sim.Hint{Priority: priorityOf(shape)}, Arrivals: sim.Arrivals{Poisson: rate(shape, load)},
				Kernel: sim.Fixed(requestShapes[shape].kernel), Kernels: sim.Exactly(requestShapes[shape].kernels),
			})
		}
	}
	service("own", m.own, m.ownLoad)
	service("other", m.other, m.otherLoad)
	if m.batch > 0 {
		s.Tenants = append(s.Tenants, sim.Tenant{
			Name: "batch", Count: m.batch, Kernel: sim.Fixed(batchKernels[m.kernel]), Arrivals: sim.Arrivals{Closed: &sim.Closed{}},
		})
	}
	scaleCosts(s, m.cost)
	return s, s.Check()
}

// scaleCosts multiplies all costs of sharing: context switches, calls of the driver, and the
// daemon's reaction.
func scaleCosts(s *sim.Scenario, factor float64) {
	if factor == 1 {
		return
	}
	times := func(d time.Duration) *sim.Duration {
		v := sim.Duration(float64(d) * factor)
		return &v
	}
	const channels = 8
	c := gpumodel.RemoteCosts()
	call := func(r gpumodel.RPC) sim.RPC {
		return sim.RPC{Reply: times(r.Reply + channels*r.ReplyPerChannel + r.ReplyPreempt), Effect: times(r.Effect + channels*r.EffectPerChannel)}
	}
	s.GPU.MidSwitch, s.GPU.Switch = times(c.MidSwitch), times(c.Switch)
	s.GPU.Suspend, s.GPU.Resume, s.GPU.SetSlice = call(c.Suspend), call(c.Resume), call(c.SetSlice)
	s.GPU.Also = times(channels * c.Suspend.ReplyPerChannel)
	s.Host.Reaction = times(40 * time.Microsecond)
	dispatch := sim.Uniform(0, times(40*time.Microsecond).D())
	s.Host.Dispatch = &dispatch
}

// simulate returns the outcome of a mix.
func (m *mix) simulate(ctx context.Context) (outcome, error) {
	switch {
	case m.ownLoad+m.otherLoad >= saturated:
		return outcome{p99: math.Inf(1)}, nil
	case m.ownLoad+m.otherLoad == 0 && m.batch == 0:
		return outcome{}, nil
	case m.how == MPS:
		return m.mps(), nil
	}
	s, err := m.scenario()
	if err != nil {
		return outcome{}, fmt.Errorf("describe mix: %w", err)
	}
	res, err := sim.Run(ctx, s, sim.Options{Policies: []string{m.how.policy()}, Workers: 1})
	if err != nil {
		return outcome{}, fmt.Errorf("simulate mix: %w", err)
	}
	var out outcome
	for i := range res.Runs[0].Classes {
		switch c := &res.Runs[0].Classes[i]; c.Name {
		case "own":
			if out.p99 = math.Inf(1); c.Latency != nil {
				out.p99 = c.Latency.P99
			}
		case "batch":
			out.kept = c.Kept * float64(c.Count)
		}
	}
	return out, nil
}

// tabulated lists the tables: a way of sharing, and factors on its costs.
var tabulated = []struct {
	how   Sharing
	costs []float64
}{
	{TimeSlicing, []float64{1}},
	{MPS, []float64{1}},
	{XSched, []float64{0, 0.5, 1, 1.5}},
}

// grid lists all mixes, those of one line of the table in a row.
func grid() []mix {
	var out []mix
	for _, t := range tabulated {
		for _, cost := range t.costs {
			lines(func(own, other, kernel, batch int, otherLoad float64) {
				for _, load := range ownLoads {
					out = append(out, mix{
						how: t.how, cost: cost, own: own, ownLoad: load, other: other, otherLoad: otherLoad, kernel: kernel, batch: batch,
					})
				}
			})
		}
	}
	return out
}

// lines calls f for every line of one table, in the order of the file. Without other services the
// shape of other is 0; the shortest requests next to a service count as the second shortest. Without
// batch jobs the shape of their kernels is 0.
func lines(f func(own, other, kernel, batch int, otherLoad float64)) {
	for own := range requestShapes {
		for _, load := range otherLoads {
			for other := range requestShapes {
				if (load == 0) != (other == 0) {
					continue
				}
				f(own, other, 0, 0, load)
				for kernel := range batchKernels {
					for _, n := range batchCounts {
						f(own, other, kernel, n, load)
					}
				}
			}
		}
	}
}

// Tabulate simulates the whole grid and returns the file of the table. progress, if not nil,
// receives the completed fraction; its calls do not overlap.
func Tabulate(ctx context.Context, progress func(float64)) ([]byte, error) {
	mixes := grid()
	results, errs := make([]outcome, len(mixes)), make([]error, len(mixes))
	var wg sync.WaitGroup
	var mu sync.Mutex
	next, done := 0, 0
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= len(mixes) || ctx.Err() != nil {
					return
				}
				results[i], errs[i] = mixes[i].simulate(ctx)
				mu.Lock()
				done++
				if progress != nil {
					progress(float64(done) / float64(len(mixes)))
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return formatTable(mixes, results), nil
}
