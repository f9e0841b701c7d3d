// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"xsched/internal/model"
	"xsched/internal/report"
	gpumodel "xsched/internal/virtual/model"
)

type costsOf = gpumodel.Costs

// ReplayResult is what another policy would have done with what a recording shows.
type ReplayResult struct {
	Program   string        `json:"program"`
	Seconds   float64       `json:"seconds"`
	Gaps      int           `json:"gaps"`
	Lost      uint64        `json:"lost_records"`
	Truncated bool          `json:"truncated"`
	Decisions int           `json:"decisions"`
	Checked   int           `json:"decisions_checked"`
	Same      int           `json:"decisions_same"`
	Recorded  string        `json:"recorded_policy"`
	Policy    string        `json:"policy"`
	Queues    []ReplayQueue `json:"queues"`
	// Estimated says what is not from the recording.
	Estimated []string `json:"estimated"`
	FirstDiff string   `json:"first_difference,omitempty"`
}

// ReplayQueue is one queue: as it was, as the model has it under the recorded
// policy, and under the other one.
type ReplayQueue struct {
	Name     string  `json:"name"`
	PID      int     `json:"pid"`
	Device   string  `json:"device"`
	Priority int     `json:"priority"`
	Demand   string  `json:"demand"`  // open: requests come when they came; closed: after the one before
	Service  string  `json:"service"` // where the GPU time of its requests is from
	Recorded Outcome `json:"recorded"`
	Model    Outcome `json:"model_recorded_policy"`
	Other    Outcome `json:"model_policy"`
}

// Outcome is how a queue fared.
type Outcome struct {
	// Latency is of its busy periods: from submission till nothing is left to do.
	Latency *report.Latency `json:"latency,omitempty"`
	Done    uint64          `json:"done"`
	GPU     float64         `json:"gpu"` // part of a device
}

// What Service says.
const (
	serviceAlone  = "periods alone on the device"
	serviceShared = "shared out by slices"
	serviceFitted = "fitted to the recorded median"
)

// estimates is what a reader must know before believing a replay.
func estimates() []string {
	return []string{
		"the GPU time of a request is not in a recording: it is taken from busy periods without a competitor, shared out by slices for long ones, or, for short ones, from the shortest and fitted so that the model has the recorded median; the recorded GPU time is that estimate",
		"CPU time between launches counts as GPU time of the busy period it is in",
		"a queue that is hardly ever idle sends its next request after the one before (closed), others when they did (open)",
		"each queue has its last hint all the time, and the policy and mode that were in force longest stand for the recorded ones",
		"the GPU is a model with the costs of an H200",
	}
}

const (
	aloneEnough = 20                   // periods alone that make a distribution
	longService = 4 * time.Millisecond // two slices: sharing out is accurate enough
	closedGap   = 2 * time.Millisecond // median gap of a program that is hardly ever idle
	closedBusy  = 0.9                  // or the part of its life that it is busy
	endless     = 2 * maxDuration      // work that does not end with the recording
	fitRounds   = 6
	fitClose    = 0.05
)

// Replay simulates what the queues of a recording wanted, under the recorded policy and another one
// (POLICY or POLICY:MODE).
func Replay(ctx context.Context, r *Recording, policy string) (*ReplayResult, error) {
	res := &ReplayResult{
		Program: r.Header.Program, Seconds: r.To.Sub(r.From).Seconds(), Gaps: r.Gaps, Lost: r.Lost, Truncated: r.Truncated,
		Decisions: r.Decisions, Checked: r.Checked, Same: r.Same, FirstDiff: r.FirstOther, Estimated: estimates(),
	}
	s, demands := r.scenario()
	if len(s.Tenants) == 0 {
		return nil, errors.New("replay: no queue of the recording was ever busy; record while programs use the GPU")
	}
	if s.Mode == model.ModeOff {
		s.Mode = model.ModeLive // of a policy that is tried; off would be none at all
	}
	variants, err := s.variants([]string{r.Policy + ":" + string(r.Mode), policy})
	if err != nil {
		return nil, err
	}
	res.Recorded, res.Policy = variants[0].name, variants[1].name
	now, err := fit(ctx, s, demands, variants[0])
	if err != nil {
		return nil, err
	}
	other, err := simulate(ctx, newPlan(s, variants[1].policy, variants[1].mode, 1), s.cells(), 1, &progress{})
	if err != nil {
		return nil, err
	}
	for i, d := range demands {
		q := &d.usage.queue
		res.Queues = append(res.Queues, ReplayQueue{
			Name: d.usage.name, PID: q.PID, Device: q.Device.String(), Priority: int(q.Hint.Priority), Demand: d.kind(), Service: d.service,
			Recorded: d.recorded(r), Model: outcome(&now.Classes[i]), Other: outcome(&other.Classes[i]),
		})
	}
	return res, nil
}

func outcome(c *Class) Outcome { return Outcome{Latency: c.Latency, Done: c.Done, GPU: c.GPU} }

// demand is what one queue wanted.
type demand struct {
	usage   *usage
	closed  bool
	service string
	fitted  time.Duration
	median  time.Duration // recorded
}

func (d *demand) kind() string {
	if d.closed {
		return "closed"
	}
	return "open"
}

// recorded is how the queue really fared.
func (d *demand) recorded(r *Recording) Outcome {
	var h report.Histogram
	var gpu time.Duration
	for i, q := range d.requests(d.usage.from) {
		p := d.usage.periods[i]
		if p.open {
			gpu += p.service
			continue
		}
		gpu += min(q.Work, p.to.Sub(p.from))
		h.Add(uint64(max(p.to.Sub(p.from), 0)))
	}
	o := Outcome{Latency: h.Latency(), Done: h.N()}
	if span := r.To.Sub(r.From); span > 0 {
		o.GPU = float64(gpu) / float64(span)
	}
	return o
}

// scenario makes tenants of the queues that were ever busy.
func (r *Recording) scenario() (*Scenario, []*demand) {
	none := Duration(0)
	cfg := &r.Config
	d := func(v time.Duration) *Duration { x := Duration(v); return &x }
	s := &Scenario{
		Name: "recording", Duration: Duration(max(r.To.Sub(r.From), time.Millisecond)), Warmup: &none, Policy: r.Policy, Mode: r.Mode, Level: int(r.Level),
		Engine: Knobs{
			Quantum: d(cfg.Quantum), StarvationBound: d(cfg.StarvationBound), Hold: d(cfg.Hold), HighSlice: d(cfg.HighSlice),
			LowSlice: d(cfg.LowSlice), PeerSlice: d(cfg.PeerSlice), GrantSlice: d(cfg.GrantSlice), InFlight: cfg.InFlight, Batch: cfg.Batch,
		},
	}
	devices := map[model.DeviceID]int{}
	var demands []*demand
	for _, u := range r.ordered {
		if len(u.periods) == 0 {
			continue
		}
		if _, ok := devices[u.queue.Device]; !ok {
			devices[u.queue.Device] = len(devices)
		}
		dem := newDemand(u)
		t := Tenant{
			Name: u.name + "#" + strconv.Itoa(len(demands)), Count: 1, Ranks: 1, Kernels: 1, On: []int{devices[u.queue.Device]},
			Hint: hintOf(&u.queue), Start: Duration(max(0, u.from.Sub(r.From))), pid: u.queue.PID,
		}
		if u.gone {
			t.Stop = Duration(max(u.to.Sub(r.From), t.Start.D()+1))
		}
		if dem.closed {
			t.Arrivals.Closed = &Closed{Depth: 1}
		}
		t.Arrivals.Trace = dem.requests(u.from)
		s.Tenants = append(s.Tenants, t)
		demands = append(demands, dem)
	}
	s.Devices = max(1, len(devices))
	s.complete()
	return s, demands
}

// hintOf returns the hint of a queue with its effective level.
func hintOf(q *model.Queue) Hint {
	h := Hint(q.Hint)
	h.Level = q.Level
	return h
}

// newDemand finds out how a queue's requests came and where their GPU time can be known from.
func newDemand(u *usage) *demand {
	d := &demand{usage: u, service: serviceFitted}
	var gaps, lengths, services []time.Duration
	var busy time.Duration
	alone := 0
	for i, p := range u.periods {
		busy += p.to.Sub(p.from)
		if i > 0 {
			gaps = append(gaps, p.from.Sub(u.periods[i-1].to))
		}
		services = append(services, p.service)
		if !p.open {
			lengths = append(lengths, p.to.Sub(p.from))
		}
		if p.alone {
			alone++
		}
	}
	life := u.periods[len(u.periods)-1].to.Sub(u.periods[0].from)
	d.closed = len(gaps) == 0 || median(gaps) < closedGap || float64(busy) > closedBusy*float64(life)
	d.median = median(lengths)
	switch {
	case alone >= aloneEnough || alone == len(u.periods):
		d.service = serviceAlone
	case median(services) >= longService || len(lengths) == 0:
		d.service = serviceShared
	default:
		// The luckiest request found the end of a slice: it paid a switch and its own work.
		least := slices.Min(lengths)
		d.fitted = max(1, least-u.gpu.cost, least/8)
	}
	return d
}

func median(v []time.Duration) time.Duration {
	if len(v) == 0 {
		return 0
	}
	v = slices.Clone(v)
	slices.Sort(v)
	return v[len(v)/2]
}

// requests are the queue's, with the GPU time as it is known now.
func (d *demand) requests(start model.Time) []Request {
	u := d.usage
	out := make([]Request, len(u.periods))
	var alone []time.Duration
	if d.service == serviceAlone {
		for _, p := range u.periods {
			if p.alone {
				alone = append(alone, p.service)
			}
		}
	}
	for i, p := range u.periods {
		at := p.from.Sub(start)
		if d.closed && i > 0 {
			at = p.from.Sub(u.periods[i-1].to)
		}
		q := Request{At: max(0, at), Work: max(1, p.service)}
		switch {
		case p.open:
			q.Work = endless
		case d.service == serviceFitted:
			q.Work = d.fitted
		case d.service == serviceAlone && !p.alone && len(alone) > 0:
			q.Work = max(1, alone[i*7919%len(alone)]) // one of them, always the same
		}
		out[i] = q
	}
	return out
}

// fit finds the GPU times that can only be fitted, and returns the model under the recorded policy.
func fit(ctx context.Context, s *Scenario, demands []*demand, v variant) (*RunResult, error) {
	type bracket struct{ lo, hi time.Duration }
	brackets := map[int]*bracket{}
	for i, d := range demands {
		if d.service == serviceFitted {
			brackets[i] = &bracket{0, d.median}
		}
	}
	cells := s.cells()
	for round := 0; ; round++ {
		run, err := simulate(ctx, newPlan(s, v.policy, v.mode, 1), cells, 1, &progress{})
		if err != nil {
			return nil, fmt.Errorf("simulate %s: %w", v.name, err)
		}
		if round == fitRounds {
			return run, nil
		}
		done := true
		for i, b := range brackets {
			l := run.Classes[i].Latency
			d := demands[i]
			if l == nil || math.Abs(l.P50/report.MS(d.median)-1) < fitClose {
				continue
			}
			done = false
			if l.P50 > report.MS(d.median) {
				b.hi = d.fitted
			} else {
				b.lo = d.fitted
			}
			// Latency grows by what the work grows by, once per share of the device.
			next := d.fitted + time.Duration((report.MS(d.median)-l.P50)*1e6)
			if next <= b.lo || next >= b.hi {
				next = (b.lo + b.hi) / 2
			}
			d.fitted = max(1, next)
			s.Tenants[i].Arrivals.Trace = d.requests(d.usage.from)
		}
		if done {
			return run, nil
		}
	}
}
