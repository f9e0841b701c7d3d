// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// The properties of a cap: no hint of a capped user makes the programs of another
// user wait longer than the same programs without hints do.

// attacks returns hints with every field at its extremes.
// It reads the fields from the table of hints, so that a new one is included.
func attacks() map[string]model.Hint {
	all := map[string]model.Hint{}
	for _, f := range model.HintFields() {
		values := []model.HintValue{{Number: f.Min}, {Number: f.Max}, {Number: max(1, f.Min)}, {Number: f.Max / 2}}
		if f.Kind == model.HintName {
			values = []model.HintValue{{Text: "g"}}
		}
		for _, v := range values {
			var c model.HintChange
			if f.Check(v) != nil || f.Kind != model.HintName && v.Number == 0 {
				continue
			}
			c.Set(f.Name, v)
			all[f.Name+"="+f.Format(v)] = hintOf(c)
		}
	}
	return all
}

func hintOf(c model.HintChange) model.Hint {
	var h model.Hint
	c.Apply(&h)
	return h
}

// victims are programs that each policy prefers, by what it reads.
var victims = map[string]model.Hint{
	"priority":    {Priority: 10},
	"default":     {},
	"deadline":    {Deadline: 10 * ms},
	"laxity":      {Laxity: 5 * ms, CriticalPriority: 20},
	"target":      {SLO: model.SLO{Latency: 8 * ms}},
	"window":      {WindowActive: true},
	"utilization": {Utilization: 80},
}

type outcome struct{ ran, median time.Duration }

// siege is a victim beside two programs of a capped user.
type siege struct {
	cfg    Config
	seed   uint64
	victim model.Hint
	plain  map[uint64]outcome // without hints, by seed
}

func siegeOf(cfg Config, seed uint64, victim model.Hint) *siege {
	return &siege{cfg, seed, victim, map[uint64]outcome{}}
}

// repeat reports whether the victim fares worse with a hint than without. Chance
// must decide against it for several loads in sum.
func (s *siege) repeat(t fataler, h model.Hint, flap bool) (plain, got outcome, worse bool) {
	for n := range 6 {
		seed := s.seed + 3*uint64(n)
		if _, known := s.plain[seed]; !known {
			// A program may also pause, for which it needs no hint.
			all, pausing := s.run(t, seed, model.Hint{}, nil), s.run(t, seed, model.Hint{}, &model.Hint{Priority: model.PriorityNever})
			s.plain[seed] = outcome{min(all.ran, pausing.ran), max(all.median, pausing.median)}
		}
		one := outcome{}
		if flap {
			one = s.run(t, seed, model.Hint{}, &h)
		} else {
			one = s.run(t, seed, h, nil)
		}
		plain, got = plain.plus(s.plain[seed]), got.plus(one)
		if !got.worse(plain) {
			return plain, got, false
		}
	}
	return plain, got, true
}

func (o outcome) plus(p outcome) outcome { return outcome{o.ran + p.ran, o.median + p.median} }

// run returns how the victim fares. With flap, the other programs change their hints
// back and forth. The lengths of work are irregular: regular ones lock in phase.
func (s *siege) run(t fataler, seed uint64, attacker model.Hint, flap *model.Hint) outcome {
	sliced := s.cfg.Mode != model.ModeSuspend
	random := rand.New(rand.NewPCG(seed, 1))
	lengths := func(least, most time.Duration) []time.Duration {
		all := make([]time.Duration, 101)
		for i := range all {
			all[i] = least + time.Duration(random.Int64N(int64(most-least)))
		}
		return all
	}
	p := &tenant{burst: lengths(ms, 4*ms), gap: lengths(2*ms, 20*ms)}
	p.q = model.Queue{User: "root", Hint: s.victim, Level: model.LevelInterrupt, Best: model.LevelInterrupt, Slices: sliced}
	tenants := []*tenant{p}
	longest := []time.Duration{10 * ms, 40 * ms, 200 * ms}[seed%3]
	attacker.Cap = model.Cap{On: true}
	for range 2 {
		a := &tenant{burst: lengths(longest/10, longest), gap: lengths(20*us, longest/4)}
		a.q = model.Queue{User: "user", Hint: attacker, Level: model.LevelInterrupt, Best: model.LevelInterrupt, Slices: sliced}
		if attacker.PerQueue {
			a.q.Level = model.LevelBlock
		} else if attacker.Level != 0 {
			a.q.Level = attacker.Level
		}
		tenants = append(tenants, a)
	}
	g := newGPU(t, s.cfg, tenants...)
	g.kernel = 4 * ms
	for change := range 50 {
		g.run(50 * ms)
		if flap != nil && change%2 == 0 {
			h := *flap
			h.Cap = attacker.Cap
			g.e.SetHint(g.now, 2+change/2%2, h)
		} else if flap != nil {
			g.e.SetHint(g.now, 2+change/2%2, attacker)
		}
	}
	o := outcome{ran: p.ran}
	if n := len(p.latency); n > 0 {
		slices.Sort(p.latency)
		o.median = p.latency[n/2]
	}
	return o
}

// worse reports that a victim gets less than without the hint, or waits longer. Its
// load is a closed loop: what it gets follows from its waits.
func (o outcome) worse(plain outcome) bool {
	return o.ran < plain.ran*9/10-10*ms || o.median > 2*plain.median+5*ms
}

func TestNoHintPassesTheCap(t *testing.T) {
	hints := attacks()
	seeds := int(historyCount()) / 100 // 3 by default
	for _, name := range policy.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range seeds {
				cfg := DefaultConfig()
				cfg.Policy, cfg.Mode = name, []model.Mode{model.ModeLive, model.ModeSuspend, model.ModeTimeslice}[seed%3]
				for k, victim := range slices.Sorted(maps.Keys(victims)) {
					if k%2 != seed%2 && victim != "priority" {
						continue
					}
					said := victims[victim]
					attack := siegeOf(cfg, uint64(seed), said)
					for what, h := range hints {
						for _, flap := range []bool{false, true} {
							if plain, got, worse := attack.repeat(t, h, flap); worse {
								t.Errorf("%s %d, victim %s, %s, now and then %v: %v; without hints %v", cfg.Mode, seed, victim, what, flap, got, plain)
							}
						}
					}
				}
			}
		})
	}
}

// TestGangBesideAnotherUser: a gang that runs on one device takes no turn of another
// user's queue on a second device.
func TestGangBesideAnotherUser(t *testing.T) {
	for _, name := range policy.Names() {
		for _, capped := range []bool{false, true} {
			cfg := DefaultConfig()
			cfg.Policy, cfg.Mode, cfg.StarvationBound = name, model.ModeSuspend, 0
			e, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			add := func(n int, device model.DeviceID, user string, h model.Hint) {
				h.Cap.On = capped && user == "user"
				e.AddQueue(simStart.Add(time.Duration(n)), model.Queue{
					ID: model.QueueID{Session: model.SessionID(n)}, PID: n, User: user, Device: device, Hint: h, Level: model.LevelInterrupt, Busy: true,
				})
			}
			// The gang has device 1 for itself, which leads as the more crowded one.
			add(1, 2, "root", model.Hint{Deadline: 10 * ms, WindowActive: true, SLO: model.SLO{Latency: ms}, Laxity: 1, Utilization: 100})
			for n := 2; n < 5; n++ {
				add(n, 1, "user", model.Hint{Gang: "g"})
			}
			add(5, 2, "user", model.Hint{Gang: "g"})
			running := time.Duration(0)
			for now := simStart.Add(ms); now < simStart.Add(time.Second); now = now.Add(ms) {
				e.Decide(now)
				r := e.queues[model.QueueID{Session: 1}]
				if r.dev.queue(r).Running {
					running += ms
				}
			}
			if capped && running < 400*ms {
				t.Errorf("%s: the other user's queue ran for %v of 1s", name, running)
			}
			if !capped && name == "EDF" && running > 100*ms {
				t.Errorf("%s: without a cap the gang left %v of 1s, so this test shows nothing", name, running)
			}
		}
	}
}

// TestCapKeepsOwnOrder: a claim above the cap counts among the user's own queues.
func TestCapKeepsOwnOrder(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Policy = "AWF"
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for n, q := range []model.Queue{
		{User: "root"},
		{User: "user", Hint: model.Hint{WindowActive: true, Cap: model.Cap{On: true}}},
		{User: "user", Hint: model.Hint{Cap: model.Cap{On: true}}},
		{User: "user", Hint: model.Hint{Priority: -7, Cap: model.Cap{On: true}}},
		{User: "granted", Hint: model.Hint{WindowActive: true, Cap: model.Cap{On: true, Priority: 20}}},
	} {
		q.ID, q.PID = model.QueueID{Session: model.SessionID(n + 1)}, n+1
		e.AddQueue(simStart, q)
	}
	e.Decide(simStart)
	got := map[int]model.Priority{}
	for _, s := range e.Snapshot(simStart) {
		got[s.Queue.PID] = s.Queue.Rank
	}
	if want := map[int]model.Priority{1: 0, 2: 0, 3: -1, 4: -7, 5: 20}; !maps.Equal(got, want) {
		t.Errorf("ranks %v, want %v", got, want)
	}
}
