// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"slices"
	"time"

	"xsched/internal/model"
)

// tenant is a program: bursts of work, with gaps between them.
type tenant struct {
	q     model.Queue
	burst []time.Duration // GPU time of the bursts, in turn
	gap   []time.Duration

	n       int           // bursts begun
	left    time.Duration // of the burst
	next    model.Time    // when the next burst is submitted
	since   model.Time    // when the burst was submitted
	want    model.Desired
	ran     time.Duration // GPU time in all
	latency []time.Duration

	dry, worst time.Duration // ready time since the last real progress, and the longest
	recent     time.Duration // progress that is not real yet
	dryAt      time.Duration // progress at which a wait ends
}

func (p *tenant) busy() bool     { return p.left > 0 }
func (p *tenant) runnable() bool { return p.busy() && p.want.Suspend == 0 }

// gpu models a device as measured: round robin over the runnable tenants, one slice
// each, and a cost for every switch away from unfinished work. A suspend or a resume
// takes effect after delay.
type gpu struct {
	t       fataler
	e       *Engine
	tenants []*tenant
	now     model.Time
	wake    model.Time
	cur     int // holder of the chip, -1: nobody
	last    int // last holder: round robin continues after it
	slice   time.Duration
	cost    time.Duration // switching to go before cur works
	switchT time.Duration
	delay   time.Duration
	kernel  time.Duration // at Lv1 the launches in flight complete; 0: at once
	pending []late

	inverted, worstInversion time.Duration
}

// fataler is what testing.T and rapid.T have in common.
type fataler interface {
	Fatal(...any)
	Fatalf(string, ...any)
}

type late struct {
	at   model.Time
	want model.Desired
}

const simStart = model.Time(time.Hour)

func newGPU(t fataler, cfg Config, tenants ...*tenant) *gpu {
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	g := &gpu{t: t, e: e, tenants: tenants, now: simStart, cur: -1, last: len(tenants) - 1, switchT: 200 * time.Microsecond}
	for i, p := range tenants {
		p.q.ID = model.QueueID{Session: model.SessionID(i + 1)}
		p.q.PID = i + 1
		p.dryAt = 500 * time.Microsecond
		p.next = simStart
		p.want = model.Desired{Queue: p.q.ID}
		e.AddQueue(g.now, p.q)
	}
	g.decide()
	return g
}

func (g *gpu) decide() {
	changes, wake := g.e.Decide(g.now)
	if wake <= g.now {
		g.t.Fatalf("wake %v is not after now", wake.Sub(g.now))
	}
	g.wake = wake
	for _, c := range changes {
		g.pending = append(g.pending, late{g.now.Add(g.delay + g.drain(c)), c})
	}
	g.settle()
}

// drain is how long a suspension at Lv1 waits for the launches in flight. A newer
// desired state replaces the older one.
func (g *gpu) drain(c model.Desired) time.Duration {
	if g.kernel == 0 {
		return 0
	}
	g.pending = slices.DeleteFunc(g.pending, func(l late) bool { return l.want.Queue == c.Queue })
	if p := g.tenants[c.Queue.Session-1]; c.Suspend == model.LevelBlock && p.busy() {
		return g.kernel * time.Duration(cmp.Or(p.want.InFlight, 16))
	}
	return 0
}

func (g *gpu) settle() {
	slices.SortStableFunc(g.pending, func(a, b late) int { return cmp.Compare(a.at, b.at) })
	for len(g.pending) > 0 && g.pending[0].at <= g.now {
		w := g.pending[0].want
		i := int(w.Queue.Session) - 1
		g.tenants[i].want = w
		if i == g.cur {
			g.slice = min(g.slice, g.sliceOf(i)) // takes effect at once
		}
		g.pending = g.pending[1:]
	}
}

func (g *gpu) sliceOf(i int) time.Duration {
	if s := g.tenants[i].want.Slice; s != 0 {
		return s
	}
	return 2 * time.Millisecond
}

// choose gives the chip to the next runnable tenant.
func (g *gpu) choose() {
	n := len(g.tenants)
	if g.cur >= 0 && g.tenants[g.cur].runnable() && g.slice > 0 {
		return
	}
	if g.cur >= 0 {
		g.last = g.cur
	}
	old := g.cur
	g.cur = -1
	for k := 1; k <= n; k++ {
		if i := (g.last + k) % n; g.tenants[i].runnable() {
			g.cur = i
			break
		}
	}
	if g.cur < 0 {
		return
	}
	g.slice = g.sliceOf(g.cur)
	g.cost = 0
	if old >= 0 && old != g.cur && g.tenants[old].busy() {
		g.cost = g.switchT
	}
}

// run lets simulated time pass until the end.
func (g *gpu) run(d time.Duration) {
	for end := g.now.Add(d); g.now < end; {
		g.submit()
		g.settle()
		if g.now >= g.wake {
			g.decide()
		}
		g.choose()
		g.pass(min(end, g.horizon()).Sub(g.now))
	}
}

// submit begins the bursts that are due.
func (g *gpu) submit() {
	for _, p := range g.tenants {
		if !p.busy() && p.next <= g.now && len(p.burst) > 0 {
			p.left = p.burst[p.n%len(p.burst)]
			p.since = g.now
			g.e.SetBusy(g.now, p.q.ID, true)
			g.decide()
		}
	}
}

// horizon is when something happens next.
func (g *gpu) horizon() model.Time {
	at := g.wake
	if len(g.pending) > 0 {
		at = min(at, g.pending[0].at)
	}
	for i, p := range g.tenants {
		switch {
		case i == g.cur:
			work := p.left
			if !g.alone() {
				work = min(work, g.slice)
			}
			at = min(at, g.now.Add(g.cost+work))
		case !p.busy() && len(p.burst) > 0:
			at = min(at, p.next)
		}
	}
	return at
}

// pass advances the time.
func (g *gpu) pass(d time.Duration) {
	d = max(d, 1)
	work := max(0, d-g.cost)
	toProgress := g.cost // until the running tenant has made real progress
	g.cost = max(0, g.cost-d)
	g.now = g.now.Add(d)
	for i, p := range g.tenants {
		if !p.q.Held && p.busy() {
			dry := d
			if i == g.cur {
				dry = min(d, toProgress+p.dryAt-p.recent)
			}
			p.dry += dry
			p.worst = max(p.worst, p.dry)
		}
		if i == g.cur {
			p.left -= work
			p.ran += work
			p.recent += work
			if p.recent >= p.dryAt || p.left <= 0 {
				p.dry, p.recent = 0, 0
			}
			g.slice -= work
		}
	}
	g.watch(d)
	if g.cur < 0 {
		return
	}
	p := g.tenants[g.cur]
	if p.left <= 0 {
		p.latency = append(p.latency, g.now.Sub(p.since))
		p.next = g.now.Add(p.gap[p.n%len(p.gap)])
		p.n++
		p.left = 0
		p.dry = 0
		g.e.SetBusy(g.now, p.q.ID, false)
		g.decide()
	} else if g.slice <= 0 && g.alone() {
		g.slice = g.sliceOf(g.cur)
	}
}

func (g *gpu) alone() bool {
	for i, p := range g.tenants {
		if i != g.cur && p.runnable() {
			return false
		}
	}
	return true
}

// watch measures how long a lower tenant runs without a break while a higher one is
// ready.
func (g *gpu) watch(d time.Duration) {
	inverted := false
	if g.cur >= 0 {
		for _, p := range g.tenants {
			inverted = inverted || p.busy() && p.q.Hint.Priority > g.tenants[g.cur].q.Hint.Priority
		}
	}
	if !inverted {
		g.inverted = 0
		return
	}
	g.inverted += d
	g.worstInversion = max(g.worstInversion, g.inverted)
}
