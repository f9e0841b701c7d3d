// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math/rand/v2"
	"time"

	"xsched/internal/model"
	gpumodel "xsched/internal/virtual/model"
)

// inst is one program. It turns requests into kernels on one or more ranks.
type inst struct {
	cell   *cell
	tenant *Tenant
	class  int
	random *rand.Rand // for arrivals
	works  *rand.Rand // for kernel lengths: independent of the policy
	ranks  []*rank
	limit  time.Duration // latency limit of a request; 0: none

	width   int       // maximum concurrent requests
	trace   []Request // remaining requests of a trace
	ended   bool
	onUntil model.Time // end of the current burst
	nth     int64      // number of the next fixed-rate request

	// Requests are numbered. Those below first are complete, those below next have begun. Ranks
	// serve them in order.
	first, next uint64
	active      []request  // first..next
	backlog     []pending  // arrived, not begun; grows while a policy starves the tenant
	launching   uint64     // number of the request whose kernels are being launched
	fed         model.Time // time of its last launch
	returning   []request  // complete on the device, not yet visible to the program
	waiting     bool       // a launch timer is set
}

// pending is a request that has arrived and not begun.
type pending struct {
	at      model.Time
	work    time.Duration
	kernels int32
}

// request is a request that has begun.
type request struct {
	pending
	launched int32 // kernels
	ranks    int32 // that have not completed it
}

// rank is an instance on one device: a queue of the engine and a channel group of the device.
type rank struct {
	inst    *inst
	id      model.QueueID
	gpu     int // in the cell
	group   *gpumodel.Group
	channel *gpumodel.Channel
	account *gpumodel.Account
	base    gpumodel.Account // at the end of the warm-up
	joined  bool

	seen, rung bool       // the daemon's view of busy, and a pending doorbell
	began      model.Time // start of the busy period
	serving    uint64
	ended      int32           // kernels of that request
	held       []time.Duration // kernels at the gate
	inFlight   int

	gate  gate
	wants hardware // newest desired state
	has   hardware // state set on the device
	doing bool     // an operation is in flight
	steps []bool   // remaining suspends (true) and resumes of the operation

	called bool // the worker is scheduled

	// A suspend waits for the resumes of the same decision.
	resuming bool
	after    int // resumes without a reply yet
	hurry    model.Time
	waiters  []*rank // ranks that wait for this one's reply
}

// gate is the Lv1 gate. It lives in shared memory, so changes are immediate.
type gate struct {
	closed bool
	limit  int
}

// hardware is the state requested from the driver.
type hardware struct {
	suspend model.Level
	slice   time.Duration
}

func (c *cell) addInst(m instance, local map[int]int) {
	t := &c.plan.scenario.Tenants[m.class]
	in := &inst{
		cell: c, tenant: t, class: m.class, width: 1, launching: 1, first: 1, next: 1,
		random: rand.New(rand.NewPCG(c.plan.seed, uint64(m.number)<<1)),
		works:  rand.New(rand.NewPCG(c.plan.seed, uint64(m.number)<<1|1)),
		trace:  t.Arrivals.Trace,
	}
	if t.Arrivals.Closed != nil {
		in.width = t.Arrivals.Closed.Depth
	}
	hint := t.Hint.model()
	if in.limit = hint.Deadline; in.limit == 0 {
		in.limit = hint.SLO.Latency
	}
	for _, device := range m.devices {
		r := &rank{
			inst: in, gpu: local[device], account: &gpumodel.Account{PID: len(c.ranks) + 1}, serving: 1,
			id: model.QueueID{Session: model.SessionID(len(c.ranks) + 1)},
		}
		c.ranks = append(c.ranks, r)
		in.ranks = append(in.ranks, r)
	}
	c.insts = append(c.insts, in)
	c.timers.Push(epoch.Add(t.Start.D()), timer{timerJoin, in})
	if t.Stop > 0 {
		c.timers.Push(epoch.Add(t.Stop.D()), timer{timerLeave, in})
	}
}

// programOf names a tenant for the recording.
func (c *cell) programOf(id model.SessionID) string { return c.ranks[id-1].inst.tenant.Name }

// fire handles an expired timer.
func (c *cell) fire(t timer) {
	in := t.inst
	switch t.kind {
	case timerJoin:
		in.join()
	case timerLeave:
		in.leave()
	case timerArrival:
		in.arrive()
		in.schedule()
	case timerThink:
		in.arrive()
	case timerLaunch:
		in.waiting = false
		in.launch()
	case timerWork, timerHurry:
		for _, r := range in.ranks {
			if t.kind == timerHurry && r.after > 0 && c.now >= r.hurry {
				r.after = 0
				r.called = true
			}
			if r.called && !r.doing && r.after == 0 {
				r.work()
			}
		}
	case timerReturn:
		if len(in.returning) == 0 {
			return // the program ended meanwhile
		}
		r := in.returning[0]
		in.returning = append(in.returning[:0], in.returning[1:]...)
		in.complete(&r)
	}
}

// join starts the program.
func (in *inst) join() {
	c, t := in.cell, in.tenant
	hint := t.Hint.model()
	level := hint.Level
	if level == model.LevelAuto {
		level = model.Level(c.plan.scenario.GPU.Level)
	}
	for i, r := range in.ranks {
		g := c.advance(r.gpu)
		r.group = g.AddGroup(r.account, false)
		r.channel = g.AddChannel(r.group, r)
		g.Schedule(r.group)
		r.joined = true
		pid := int(in.ranks[0].id.Session)*1000 + i
		if t.OneProcess {
			pid = int(in.ranks[0].id.Session) * 1000
		}
		if t.pid != 0 {
			pid = t.pid
		}
		q := model.Queue{ID: r.id, PID: pid, Device: c.ids[r.gpu], Hint: hint, Level: level, Slices: c.plan.slices}
		if len(in.ranks) > 1 && !t.OneProcess && q.Hint.Gang == "" {
			q.Hint.Gang = t.Name + gangSuffix(in.ranks[0].id)
		}
		c.engine.AddQueue(c.now, q)
	}
	c.dirty = true
	if t.Arrivals.Closed == nil {
		in.schedule()
		return
	}
	for range in.width {
		in.think()
	}
}

// leave ends the program and drops its submitted work.
func (in *inst) leave() {
	c := in.cell
	in.ended = true
	in.active, in.backlog, in.returning = nil, nil, nil
	in.first, in.launching = in.next, in.next
	for _, r := range in.ranks {
		c.engine.RemoveQueue(c.now, r.id)
		r.joined, r.seen, r.held, r.inFlight = false, false, nil, 0
		r.serving = in.next
		c.advance(r.gpu).RemoveGroup(r.group)
	}
	c.dirty = true
}

// arrive adds a request.
func (in *inst) arrive() {
	if in.ended {
		return
	}
	c := in.cell
	p := pending{at: c.now, kernels: int32(in.tenant.Kernels)}
	if in.tenant.Arrivals.Trace != nil {
		if len(in.trace) == 0 {
			return
		}
		r := in.trace[0]
		in.trace = in.trace[1:]
		p.work = r.Work
		if r.Kernels > 0 {
			p.kernels = int32(r.Kernels)
		}
	}
	if c.now >= epoch.Add(c.plan.warmup) {
		c.classes[in.class].offered++
	}
	if c.sketch != nil && in.tenant.Arrivals.Closed == nil {
		c.sketch.came(in)
	}
	in.backlog = append(in.backlog, p)
	in.begin()
}

// begin starts pending requests up to the concurrency limit.
func (in *inst) begin() {
	for len(in.backlog) > 0 && len(in.active)+len(in.returning) < in.width {
		in.active = append(in.active, request{pending: in.backlog[0], ranks: int32(len(in.ranks))})
		in.backlog = in.backlog[1:]
		in.next++
	}
	if !in.waiting {
		in.launch()
	}
	for _, r := range in.ranks {
		in.cell.ring(r)
	}
}

// launch submits kernels until none is left or the next one is due later.
func (in *inst) launch() {
	for in.launching < in.next {
		r := &in.active[in.launching-in.first]
		d := r.work
		if d == 0 {
			d = max(1, in.tenant.Kernel.draw(in.works))
		}
		in.fed = in.cell.now
		for _, rank := range in.ranks {
			rank.push(d)
		}
		if r.launched++; r.launched == r.kernels {
			in.launching++
		}
		if in.tenant.Launch > 0 && in.launching < in.next {
			in.waiting = true
			in.cell.timers.Push(in.cell.now.Add(in.tenant.Launch.D()), timer{timerLaunch, in})
			return
		}
	}
}

// complete ends a request as the program sees it.
func (in *inst) complete(r *request) {
	c := in.cell
	if r.at >= epoch.Add(c.plan.warmup) {
		sum := &c.classes[in.class]
		latency := c.now.Sub(r.at)
		sum.latency.Add(uint64(latency))
		sum.done++
		if in.limit > 0 && latency > in.limit {
			sum.late++
		}
	}
	if in.tenant.Arrivals.Closed != nil {
		in.think()
	}
	in.begin()
}

// busy reports whether the queue has work that is not known to be complete.
func (r *rank) busy() bool { return r.joined && (r.serving < r.inst.next || len(r.inst.returning) > 0) }

// push submits a kernel through the gate.
func (r *rank) push(d time.Duration) {
	if len(r.held) > 0 || !r.open() {
		r.held = append(r.held, d)
		return
	}
	r.submit(d)
}

func (r *rank) open() bool { return !r.gate.closed && (r.gate.limit == 0 || r.inFlight < r.gate.limit) }

func (r *rank) submit(d time.Duration) {
	r.inFlight++
	r.inst.cell.advance(r.gpu).Submit(r.channel, gpumodel.Work{Kind: gpumodel.WorkKernel, Duration: d})
}

// drain submits held kernels that the gate admits.
func (r *rank) drain() {
	n := 0
	for n < len(r.held) && r.open() {
		r.submit(r.held[n])
		n++
	}
	if n > 0 {
		r.held = append(r.held[:0], r.held[n:]...)
	}
}

// kernelDone handles the completion of a kernel of this rank.
func (r *rank) kernelDone() {
	in := r.inst
	if !r.joined {
		return
	}
	r.inFlight--
	r.drain()
	q := &in.active[r.serving-in.first]
	if r.ended++; r.ended < q.kernels {
		return
	}
	r.ended = 0
	r.serving++
	if q.ranks--; q.ranks > 0 {
		in.cell.ring(r)
		return
	}
	// All ranks serve in order, so this request is the oldest.
	done := in.active[0]
	in.active = append(in.active[:0], in.active[1:]...)
	in.first++
	if ret := in.cell.plan.ret; ret > 0 {
		in.returning = append(in.returning, done)
		in.cell.timers.Push(in.cell.now.Add(ret), timer{timerReturn, in})
		return
	}
	in.complete(&done)
}

// Done implements gpumodel.Sink. The device calls it while it advances, so consequences are
// deferred until it returns.
func (r *rank) Done(*gpumodel.Work, model.Time) { r.inst.cell.done = append(r.inst.cell.done, r) }

// Blocks implements gpumodel.Sink.
func (r *rank) Blocks(*gpumodel.Work, int, int) {}

// CopyStart implements gpumodel.Sink.
func (r *rank) CopyStart(*gpumodel.Work) {}

// CopyReady implements gpumodel.Sink.
func (r *rank) CopyReady(*gpumodel.Work) bool { return true }
