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

// ReplayResult compares the recorded policy with another one on the recorded demand.
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
	// Estimated lists what the recording does not contain.
	Estimated []string `json:"estimated"`
	FirstDiff string   `json:"first_difference,omitempty"`
}

// ReplayQueue is one queue: recorded, modeled under the recorded policy, and under the other one.
type ReplayQueue struct {
	Name     string  `json:"name"`
	PID      int     `json:"pid"`
	Device   string  `json:"device"`
	Priority int     `json:"priority"`
	Demand   string  `json:"demand"`  // open: recorded arrival times; closed: after the previous request
	Service  string  `json:"service"` // source of the GPU time of its requests
	Recorded Outcome `json:"recorded"`
	Model    Outcome `json:"model_recorded_policy"`
	Other    Outcome `json:"model_policy"`
}

// Outcome is the service a queue received.
type Outcome struct {
	// Latency is the distribution of busy periods.
	Latency *report.Latency `json:"latency,omitempty"`
	Done    uint64          `json:"done"`
	GPU     float64         `json:"gpu"` // fraction of a device
}

// Values of Service.
const (
	serviceAlone  = "periods alone on the device"
	serviceShared = "shared out by slices"
	serviceFitted = "fitted to the recorded median"
)

// estimates lists the assumptions behind a replay.
func estimates() []string {
	return []string{
		"the GPU time of a request is not in a recording: it is taken from busy periods without a competitor, shared out by slices for long ones, or, for short ones, from the shortest and fitted so that the model has the recorded median; the recorded GPU time is that estimate",
		"CPU time between launches counts as GPU time of the busy period it is in",
		"a queue that is hardly ever idle sends its next request after the one before (closed), others when they did (open)",
		"each queue has its last hint all the time, each device its last policy and mode of its own, and the policy and mode that were in force longest stand for the recorded ones",
		"the GPU is a model with the costs of an H200",
	}
}

const (
	aloneEnough = 20                   // minimum uncontended periods for a distribution
	longService = 4 * time.Millisecond // two slices: the estimate by shares is accurate enough
	closedGap   = 2 * time.Millisecond // a median gap below this is closed demand
	closedBusy  = 0.9                  // so is a busy fraction above this
	endless     = 2 * maxDuration      // work that outlasts the recording
	fitRounds   = 6
	fitClose    = 0.05
)

// Replay simulates the demand of a recording under the recorded policy and under another one,
// POLICY or POLICY:MODE.
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
		s.Mode = model.ModeLive // mode off would disable the policy under test
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
	everywhere := *s
	everywhere.PerDevice = nil // the policy under test applies to every device
	other, err := simulate(ctx, newPlan(&everywhere, variants[1].policy, variants[1].mode, 1), s.cells(), 1, &progress{})
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

// demand is the demand of one queue.
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

// recorded returns the recorded outcome.
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

// scenario turns every queue that was busy into a tenant.
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
			Name: u.name + "#" + strconv.Itoa(len(demands)), Count: 1, Ranks: 1, Kernels: Exactly(1), On: []int{devices[u.queue.Device]},
			Hint: hintOf(&u.queue), Start: Duration(max(0, u.from.Sub(r.From))), pid: u.queue.PID, User: u.queue.User,
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
	for id, set := range r.Devices {
		if i, used := devices[id]; used {
			s.PerDevice = append(s.PerDevice, DeviceSetting{Device: i, Policy: set.Policy, Mode: set.Mode, Level: int(set.ForceLevel)})
		}
	}
	s.complete()
	return s, demands
}

// hintOf returns the hint of a queue with its effective level.
func hintOf(q *model.Queue) Hint {
	h := Hint(q.Hint)
	h.Level = q.Level
	return h
}

// newDemand classifies a queue's arrivals and selects the source of its GPU time.
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
		// The shortest request arrived at the end of a slice: it cost one switch and its own work.
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

// requests returns the queue's requests with the current estimate of GPU time.
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
			q.Work = max(1, alone[i*7919%len(alone)]) // a deterministic sample
		}
		out[i] = q
	}
	return out
}

// fit adjusts GPU times until the model reproduces the recorded medians. It returns the model's run
// under the recorded policy.
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
			// First guess: latency grows as much as the work does.
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
