// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"math/rand/v2"
	"slices"
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
	active      []request // first..next
	backlog     []pending // arrived, not begun; grows while a policy starves the tenant
	launching   uint64    // number of the request whose kernels are being launched
	parts       []Segment // of every request
	watched     bool      // launches take CPU time: the watcher may find a queue idle between them
	returning   []request // complete on the device, not yet visible to the program
	waiting     bool      // a launch timer is set
	blocked     bool      // the program waits for a segment
}

// pending is a request that has arrived and not begun.
type pending struct {
	at      model.Time
	work    time.Duration // of each kernel; 0: the segment's
	kernels int32         // of each segment; 0: the segment's
}

// request is a request that has begun.
type request struct {
	pending
	thread
	ranks int32      // that have not completed it
	token model.Time // of its last token
	first bool       // it has delivered a token
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

	page       page
	copies     model.Copies // the daemon's view
	known      daemonView
	watch      watch
	lanes      *gpumodel.Group // for copies; nil: the tenant has none
	copied     int64           // bytes, and at the end of the warm-up
	copiedBase int64
	rung       bool // a pending doorbell
	serving    uint64
	ended      int32           // kernels and copies of that request
	held       []gpumodel.Work // at the gate
	batch      batch
	flying     int // submitted and incomplete

	memory    *holding  // nil: none
	ownMemory memorySum // of its past lives

	gate  gate
	wants hardware // newest desired state
	has   hardware // state set on the device
	doing bool     // an operation is in flight
	steps []bool   // remaining suspends (true) and resumes of the operation

	called bool   // the worker is scheduled
	joint  *joint // the worker makes its next call together with others

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
	gather uint32 // as in model.Verdict
}

// hardware is the state requested from the driver.
type hardware struct {
	suspend model.Level
	slice   time.Duration
}

// ArrivalStream returns the random numbers of the arrivals of a program. Models that this package is compared
// with draw from it too, so that all of them see the same requests (common random numbers).
func ArrivalStream(seed uint64, number int) *rand.Rand {
	return rand.New(rand.NewPCG(seed, uint64(number)<<1))
}

func (c *cell) addInst(m instance, local map[int]int) {
	t := &c.plan.scenario.Tenants[m.class]
	in := &inst{
		cell: c, tenant: t, class: m.class, width: 1, launching: 1, first: 1, next: 1,
		random: ArrivalStream(c.plan.seed, m.number),
		works:  rand.New(rand.NewPCG(c.plan.seed, uint64(m.number)<<1|1)),
		trace:  t.Arrivals.Trace, parts: t.parts(),
	}
	for i := range in.parts {
		in.parts[i].complete()
		in.watched = in.watched || in.parts[i].paced()
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
	case timerResume:
		in.resume()
	case timerBatch:
		for _, r := range in.ranks {
			r.tickBatch()
		}
	case timerWatch:
		for _, r := range in.ranks {
			if r.watch.armed && c.now >= r.watch.at {
				r.look()
			}
		}
	}
}

// join starts the program.
func (in *inst) join() {
	c, t := in.cell, in.tenant
	hint := t.Hint.model()
	best := model.Level(c.plan.scenario.GPU.Level)
	level := cmp.Or(hint.Level, best)
	if t.MaxPriority != nil {
		hint.Cap = model.Cap{On: true, Priority: model.Priority(*t.MaxPriority)}
	}
	for i, r := range in.ranks {
		g := c.advance(r.gpu)
		r.group = g.AddGroup(r.account, false)
		r.channel = g.AddChannel(r.group, r)
		g.Schedule(r.group)
		if slices.ContainsFunc(in.parts, func(s Segment) bool { return s.Copy > 0 }) {
			r.lanes = g.AddGroup(r.account, true)
			g.AddChannel(r.lanes, r)
			g.Schedule(r.lanes)
			r.channel.SetLanes([]*gpumodel.Group{r.lanes})
		}
		r.joined = true
		pid := int(in.ranks[0].id.Session)*1000 + i
		if t.OneProcess {
			pid = int(in.ranks[0].id.Session) * 1000
		}
		if t.pid != 0 {
			pid = t.pid
		}
		q := model.Queue{ID: r.id, PID: pid, User: t.User, Device: c.ids[r.gpu], Hint: hint, Level: level, Best: best, Slices: c.plan.slices}
		if len(in.ranks) > 1 && !t.OneProcess && q.Hint.Gang == "" {
			q.Hint.Gang = t.Name + gangSuffix(in.ranks[0].id)
		}
		c.engine.AddQueue(c.now, q)
		if t.Memory > 0 {
			c.memories[r.gpu].take(r, model.Bytes(t.Memory), hint.Priority)
		}
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
	in.first, in.launching, in.blocked = in.next, in.next, false
	for _, r := range in.ranks {
		c.engine.RemoveQueue(c.now, r.id)
		if r.memory != nil {
			c.memories[r.gpu].give(r)
		}
		r.leaveJoint()
		r.joined, r.held, r.flying, r.batch = false, nil, 0, batch{}
		r.page, r.known, r.copies = page{}, daemonView{}, model.Copies{}
		r.serving = in.next
		g := c.advance(r.gpu)
		g.RemoveGroup(r.group)
		if r.lanes != nil {
			g.RemoveGroup(r.lanes)
		}
	}
	c.dirty = true
}

// arrive adds a request.
func (in *inst) arrive() {
	if in.ended {
		return
	}
	c := in.cell
	p := pending{at: c.now}
	if in.tenant.Arrivals.Trace != nil {
		if len(in.trace) == 0 {
			return
		}
		r := in.trace[0]
		in.trace = in.trace[1:]
		p.work, p.kernels = r.Work, int32(r.Kernels)
	}
	if c.now >= epoch.Add(c.plan.warmup) {
		c.classes[in.class].offered++
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
	if !in.waiting && !in.blocked {
		in.launch()
	}
}

// complete ends a request as the program sees it.
func (in *inst) complete(r *request) {
	c := in.cell
	in.returned(r)
	if c.sketch != nil && in.tenant.Arrivals.Closed == nil {
		c.sketch.done(in, r.at)
	}
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
