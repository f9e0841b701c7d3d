// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"xsched/internal/report"
	"xsched/internal/sim"
)

// This file compares the strategies for launch-bound requests and writes docs/strategies.md. The
// comparison is dated, because strategies change.

// contenders are the compared strategies, in the words of the table and of --compare.
var contenders = []struct{ name, compare, class string }{
	{"native", "native", "c1"},
	{"tiny slices", "HPF/tiny", "c5"},
	{"medium slices", "HPF/medium", "c4"},
	{"whole request", "HPF/whole", "c6"},
	{"at the wait", "HPF/wait", "c3"},
	{"just in time", "HPF/in-time", "c0"},
	{"batches", "HPF", "c2"},
}

// contest is one kind of requests.
type contest struct {
	length time.Duration // CPU time of a request
	load   float64       // part of the time in which the program submits
	pace   float64       // variation of the CPU time per launch from request to request
	count  float64       // variation of the number of kernels
	stalls float64       // stalls of the thread per request, beside a pace that varies
}

const (
	contestLaunch   = 42 * time.Microsecond
	contestKernel   = 5 * time.Microsecond
	contestRequests = 300
)

func (c *contest) hz() float64 { return c.load / c.length.Seconds() }

func (c *contest) varies() string {
	switch {
	case c.stalls > 0:
		return fmt.Sprintf("stalls, %.0f %%", 100*c.stalls)
	case c.count > 0:
		return fmt.Sprintf("kernels, %.0f %%", 100*c.count)
	case c.pace > 0:
		return fmt.Sprintf("CPU, %.0f %%", 100*c.pace)
	}
	return "-"
}

// grid returns the compared kinds of requests.
func grid() []contest {
	var out []contest
	for _, ms := range []time.Duration{3, 9, 26, 60} {
		base := contest{length: ms * time.Millisecond, load: 0.4}
		for _, v := range []struct{ pace, count, stalls float64 }{{}, {pace: 0.1}, {pace: 0.3}, {pace: 0.1, stalls: 0.25}, {count: 0.1}, {count: 0.3}} {
			c := base
			c.pace, c.count, c.stalls = v.pace, v.count, v.stalls
			out = append(out, c)
		}
		base.load, base.pace = 0.7, 0.1
		out = append(out, base)
	}
	return out
}

// scenario describes a contest with so many requests after the warm-up.
func (c *contest) scenario(requests int) (*sim.Scenario, error) {
	n := int(c.length / contestLaunch)
	kernels, launch := sim.Exactly(n), sim.Fixed(contestLaunch)
	if c.count > 0 {
		kernels = sim.Around(n, c.count)
	}
	if c.pace > 0 || c.count > 0 {
		launch = sim.LogNormal(contestLaunch*956/1000, 0.3) // the same mean
	}
	length := time.Duration(float64(requests) / c.hz() * float64(time.Second))
	warm := sim.Duration(max(length/10, 20*time.Duration(float64(time.Second)/c.hz())))
	ret := sim.Duration(20 * time.Microsecond)
	// A latency target keeps the engine from dropping a protection that gains little: it has no other
	// effect under HPF.
	hint := sim.Hint{Priority: 10}
	hint.SLO.Latency = time.Minute
	s := &sim.Scenario{
		Name: "strategies", Duration: sim.Duration(length) + warm, Warmup: &warm, Host: sim.Host{Return: &ret},
		Tenants: []sim.Tenant{{
			Name: "high", Hint: hint, Arrivals: sim.Arrivals{Rate: c.hz(), Jitter: 0.2},
			Kernel: sim.Fixed(contestKernel), Kernels: kernels, Launch: launch, Vary: c.pace, Copy: 4096,
			Stall: sim.Stall{Chance: c.stalls / float64(n), Time: sim.LogNormal(800*time.Microsecond, 0.8)},
		}, {
			Name: "low", Kernel: sim.Fixed(time.Millisecond), Arrivals: sim.Arrivals{Closed: &sim.Closed{Depth: 2}},
		}},
	}
	return s, s.Check()
}

// score is the result of one strategy in one contest.
type score struct{ p99, kept float64 }

// compete runs all contests and returns the scores by contest and strategy.
func compete(contests []contest, requests int) ([][]score, error) {
	var names []string
	for _, c := range contenders {
		names = append(names, c.compare)
	}
	out, errs := make([][]score, len(contests)), make([]error, len(contests))
	var wg sync.WaitGroup
	free := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range contests {
		wg.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			s, err := contests[i].scenario(requests)
			if err != nil {
				errs[i] = err
				return
			}
			res, err := sim.Run(context.Background(), s, sim.Options{Policies: names, Workers: 1})
			if err != nil {
				errs[i] = err
				return
			}
			for k := range res.Runs {
				high := &res.Runs[k].Classes[0]
				out[i] = append(out[i], score{high.Latency.P99 / high.Alone.P99, res.Runs[k].Lows.OfIdeal})
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("compare strategies: %w", err)
		}
	}
	return out, nil
}

// farthest is where points beyond it are drawn, so that one outlier does not squeeze the others.
const farthest = 2

const strategiesPage, strategiesPicture = "docs/strategies.md", "docs/strategies.svg"

// strategies runs the comparison and returns the page and its picture.
func strategies(root, date string) (map[string][]byte, error) {
	contests := grid()
	scores, err := compete(contests, contestRequests)
	if err != nil {
		return nil, err
	}
	var table strings.Builder
	table.WriteString("| requests | per second | varies |")
	for _, c := range contenders {
		table.WriteString(" " + c.name + " |")
	}
	table.WriteString("\n|---|---|---|" + strings.Repeat("---|", len(contenders)) + "\n")
	series := make([]report.Series, len(contenders))
	for k, c := range contenders {
		series[k] = report.Series{Name: c.name, Class: c.class}
	}
	for i := range contests {
		c := &contests[i]
		fmt.Fprintf(&table, "| %d ms | %.0f | %s |", c.length.Milliseconds(), c.hz(), c.varies())
		for k, s := range scores[i] {
			fmt.Fprintf(&table, " %.2fx, %.1f %% |", s.p99, 100*s.kept)
			series[k].Points = append(series[k].Points, report.Point{
				X: min(max(1, s.p99), farthest), Y: s.kept, Name: fmt.Sprintf("%d ms at %.0f/s, %s, %.2fx", c.length.Milliseconds(), c.hz(), c.varies(), s.p99),
			})
		}
		table.WriteByte('\n')
	}
	fmt.Fprintf(&table, "\nSimulated %s by `make strategies`, %d requests each.\n", date, contestRequests)
	page, err := os.ReadFile(filepath.Join(root, strategiesPage))
	if err != nil {
		return nil, fmt.Errorf("read page: %w", err)
	}
	if page, err = replaceBlock(strategiesPage, page, "strategies", table.String()); err != nil {
		return nil, err
	}
	var picture bytes.Buffer
	chart := report.Scatter("Launch-bound requests: P99 against throughput", "P99 of the service / alone (log)", "", report.WholePercent, series)
	if err := report.WriteSVG(&picture, "Launch-bound requests beside a job: upper left is better", "simulated; what the job keeps of the ideal against the P99 of the service; small: one kind of requests, large: mean of all", chart); err != nil {
		return nil, err
	}
	return map[string][]byte{strategiesPage: page, strategiesPicture: picture.Bytes()}, nil
}
