// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"time"

	"xsched/internal/engine"
	"xsched/internal/model"
	"xsched/internal/policy"
	"xsched/internal/report"
	gpumodel "xsched/internal/virtual/model"
)

// Result is the result of a simulation. The same scenario, policies and seed
// give the same Result, byte by byte.
type Result struct {
	Scenario  string      `json:"scenario"`
	About     string      `json:"about,omitempty"`
	Seed      uint64      `json:"seed"`
	DurationS float64     `json:"duration_s"`
	WarmupS   float64     `json:"warmup_s"`
	Devices   int         `json:"devices"`
	Tenants   int         `json:"tenants"`
	Runs      []RunResult `json:"runs"`
	// Events counts the simulated events of all runs: device events, arrivals, driver replies,
	// queue scans and decisions.
	Events uint64 `json:"events"`
}

// RunResult is the result under one policy.
type RunResult struct {
	Name    string     `json:"name"`
	Policy  string     `json:"policy"`
	Mode    model.Mode `json:"mode"`
	Classes []Class    `json:"tenants"`
	GPU     Split      `json:"gpu"`
	Engine  Decisions  `json:"engine"`
	Events  uint64     `json:"events"`
	// Lows compares all closed tenants with kernels together with ideal time-slicing; nil unless one
	// GPU has an open tenant of a higher priority.
	Lows *Lows `json:"lows,omitempty"`

	// Protections is what protection gains and costs, by the daemon's own account.
	Protections []policy.ProtectionStatus `json:"-"`

	draw   time.Duration
	tracks []report.Lane
}

// Lows is the throughput of all low tenants together.
type Lows struct {
	Kept float64 `json:"kept"`
	// Ideal is the throughput that ideal time-slicing leaves to the lows: one request and two
	// context switches each time.
	Ideal   float64 `json:"ideal"`
	OfIdeal float64 `json:"kept_of_ideal"`
}

// idealSwitches is the time of two context switches, as in test/gpu/stats.py.
const idealSwitches = 400 * time.Microsecond

// lows returns the lows' throughput and its ideal, 1 - rate x (kernel time + 0.4 ms).
func (r *RunResult) lows(s *Scenario, references []*Class) *Lows {
	top, low := math.MinInt, math.MinInt
	out := &Lows{Ideal: 1}
	for i := range r.Classes {
		c := &r.Classes[i]
		switch {
		case !c.open && references[i].perSecond > 0: // copies do not compete for time
			low = max(low, c.Priority)
			out.Kept += c.Kept * float64(c.Count)
		case c.open && references[i].Done > 0:
			top = max(top, c.Priority)
			hz := float64(c.Offered) / (s.Duration - *s.Warmup).D().Seconds()
			kernels := references[i].GPU / references[i].Rate // seconds a request
			out.Ideal -= hz * (kernels + idealSwitches.Seconds())
		}
	}
	if s.Devices > 1 || low == math.MinInt || top <= low {
		return nil
	}
	if out.Ideal = max(0, out.Ideal); out.Ideal > 0 {
		out.OfIdeal = out.Kept / out.Ideal
	}
	return out
}

// Class sums up all programs of one tenant entry.
type Class struct {
	Name     string          `json:"name"`
	Count    int             `json:"count"`
	Priority int             `json:"priority"`
	Latency  *report.Latency `json:"latency,omitempty"`
	// Wait is the time from a kernel's submission to its start on the device.
	Wait *report.Latency `json:"gpu_wait,omitempty"`
	// FirstToken is the time from a request's arrival to its first token, PerToken that from one
	// token to the next.
	FirstToken *report.Latency `json:"first_token,omitempty"`
	PerToken   *report.Latency `json:"per_token,omitempty"`
	Offered    uint64          `json:"offered"`
	Done       uint64          `json:"done"`
	Unfinished uint64          `json:"unfinished"` // in progress or waiting at the end
	Rate       float64         `json:"rate_hz"`
	// Periods is the number of busy periods per request that the daemon sees.
	Periods float64 `json:"busy_periods"`
	// Late is the fraction of requests over their deadline, or over the SLO's latency.
	Late *float64 `json:"late,omitempty"`
	// GPU is their total GPU time, in devices.
	GPU float64 `json:"gpu_devices"`
	// Kept is the relative throughput: for a closed tenant GPU time, or copied bytes without
	// kernels, over its own alone; for an open one completed over offered requests.
	Kept float64 `json:"kept"`
	// Least and Most are the extreme GPU times of single programs, as fractions of a device.
	Least float64 `json:"least"`
	Most  float64 `json:"most"`
	// Alone, AloneFirst and AlonePer are the result of one program alone on a device.
	Alone       *report.Latency `json:"alone,omitempty"`
	AloneFirst  *report.Latency `json:"alone_first_token,omitempty"`
	AlonePer    *report.Latency `json:"alone_per_token,omitempty"`
	Preemptions uint64          `json:"preemptions"` // in the middle of a kernel
	// Memory is what moving its memory cost; nil: it has none that moves.
	Memory *Moves `json:"memory,omitempty"`

	open      bool
	perSecond float64 // of each, GPU time
	copied    float64 // of each, bytes per second
	latency   *report.Histogram
	wait      *report.Histogram
}

// Moves are those of the memory of all programs of one tenant entry, warm-up included.
type Moves struct {
	Out     uint64  `json:"out"`
	Back    uint64  `json:"back"`
	GiB     float64 `json:"gib"`      // of both
	WaitedS float64 `json:"waited_s"` // work waited for memory
	Failed  uint64  `json:"failed"`   // programs that got none
}

// Split divides the devices' time; the parts add up to 1.
type Split struct {
	Run      float64 `json:"run"`
	Switch   float64 `json:"switch"`
	Idle     float64 `json:"idle"`
	Switches uint64  `json:"switches"`
}

// Decisions are the engine's counts, warm-up included.
type Decisions struct {
	Decisions   uint64 `json:"decisions"`
	Preemptions uint64 `json:"preemptions"`
	Yields      uint64 `json:"yields"`
	Grants      uint64 `json:"grants"`
}

func (d *Decisions) add(s engine.Stats) {
	d.Decisions += s.Decisions
	for _, n := range s.Preemptions {
		d.Preemptions += n
	}
	d.Yields += s.Yields
	d.Grants += s.Grants
}

// WaitQuantile returns the q-quantile of the kernels' wait in milliseconds.
func (c *Class) WaitQuantile(q float64) float64 { return c.wait.Quantile(q) / 1e6 }

// compare sets the figures relative to one program alone.
func (c *Class) compare(alone *Class) {
	c.Alone, c.AloneFirst, c.AlonePer = alone.Latency, alone.FirstToken, alone.PerToken
	switch {
	case c.open && c.Offered > 0:
		c.Kept = float64(c.Done) / float64(c.Offered)
	case !c.open && alone.perSecond > 0 && c.Count > 0:
		c.Kept = c.GPU / float64(c.Count) / alone.perSecond
	case !c.open && alone.copied > 0:
		c.Kept = c.copied / alone.copied
	}
}

// sum adds up cells, in their order.
type sum struct {
	plan    *plan
	classes []classSum
	gpu     gpumodel.Totals
	run     RunResult
}

func newSum(p *plan) *sum { return &sum{plan: p, classes: make([]classSum, len(p.scenario.Tenants))} }

func (s *sum) add(c *cell) {
	for i := range c.classes {
		from, to := &c.classes[i], &s.classes[i]
		if from.instances == 0 {
			continue
		}
		to.latency.Merge(&from.latency)
		to.wait.Merge(&from.wait)
		to.firstToken.Merge(&from.firstToken)
		to.perToken.Merge(&from.perToken)
		to.copied += from.copied
		to.offered += from.offered
		to.done += from.done
		to.kernels += from.kernels
		to.periods += from.periods
		to.late += from.late
		to.run += from.run
		to.preemptions += from.preemptions
		to.memory.add(&from.memory)
		if to.instances == 0 || from.least < to.least {
			to.least = from.least
		}
		to.most = max(to.most, from.most)
		to.instances += from.instances
	}
	for _, t := range c.devices {
		s.gpu.RunNS += t.RunNS
		s.gpu.SwitchNS += t.SwitchNS
		s.gpu.IdleNS += t.IdleNS
		s.gpu.Switches += t.Switches
	}
	s.run.Engine.add(c.engine.Stats())
	s.run.Protections = append(s.run.Protections, c.engine.Protections(c.now, 0)...)
	s.run.Events += c.events
	if c.tracks != nil {
		s.run.draw, s.run.tracks = s.plan.draw, c.tracks
	}
}

func (s *sum) result() *RunResult {
	window := float64(s.plan.duration - s.plan.warmup)
	for i := range s.classes {
		from, t := &s.classes[i], &s.plan.scenario.Tenants[i]
		c := Class{
			Name: t.Name, Count: from.instances, Priority: int(t.Hint.Priority), Latency: from.latency.Latency(), Wait: from.wait.Latency(),
			Offered: from.offered, Done: from.done, Unfinished: from.offered - from.done, Rate: float64(from.done) / window * 1e9,
			GPU: float64(from.run) / window, Least: float64(from.least) / window, Most: float64(from.most) / window,
			FirstToken: from.firstToken.Latency(), PerToken: from.perToken.Latency(),
			Preemptions: from.preemptions, latency: &from.latency, wait: &from.wait, open: t.Arrivals.Closed == nil,
		}
		if m := from.memory; t.Memory > 0 {
			c.Memory = &Moves{Out: m.out, Back: m.back, GiB: float64(m.bytes) / (1 << 30), WaitedS: m.waited.Seconds(), Failed: m.failed}
		}
		if t.Arrivals.Closed != nil {
			c.Unfinished = 0 // a closed loop always has some
		}
		if (t.Hint.Deadline > 0 || t.Hint.SLO.Latency > 0) && from.done > 0 {
			late := float64(from.late) / float64(from.done)
			c.Late = &late
		}
		if from.done > 0 {
			c.Periods = float64(from.periods) / float64(from.done)
		}
		if from.instances > 0 {
			c.perSecond = c.GPU / float64(from.instances)
			c.copied = float64(from.copied) / window * 1e9 / float64(from.instances)
		}
		s.run.Classes = append(s.run.Classes, c)
	}
	if all := float64(s.gpu.RunNS + s.gpu.SwitchNS + s.gpu.IdleNS); all > 0 {
		s.run.GPU = Split{
			Run: float64(s.gpu.RunNS) / all, Switch: float64(s.gpu.SwitchNS) / all, Idle: float64(s.gpu.IdleNS) / all,
			Switches: s.gpu.Switches,
		}
	}
	return &s.run
}
