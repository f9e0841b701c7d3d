// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"math/rand/v2"
	"time"

	"xsched/internal/engine"
	"xsched/internal/model"
	"xsched/internal/report"
	"xsched/internal/residency"
	gpumodel "xsched/internal/virtual/model"
)

// cell is a set of dependent devices with their tenants and their own engine. It is a
// discrete-event simulation. Simultaneous events run in the order devices, timers, engine.
type cell struct {
	plan   *plan
	engine *engine.Engine
	end    model.Time

	gpus     []*gpumodel.GPU
	ids      []model.DeviceID
	nexts    []model.Time // of each GPU
	memories []*memory    // of each GPU
	moves    gpumodel.Agenda[*memory]
	host     residency.Host
	stale    []bool // nexts is out of date

	insts []*inst
	ranks []*rank // of session number index+1

	now    model.Time
	random *rand.Rand // of the host
	timers gpumodel.Agenda[timer]
	bell   model.Time // when the daemon reads the changed queues
	wake   model.Time // the engine's next wake-up
	rung   []*rank    // changed since the daemon's last read
	done   []*rank    // completed a kernel or a copy each

	resuming []*rank // by the current decision
	due      []model.QueueID
	joints   []*rank // called by the current decision to suspend or resume
	dirty    bool

	classes []classSum
	devices []gpumodel.Totals // at the end of the warm-up
	events  uint64

	picture []*gpumodel.Timeline // of the devices, while they are drawn
	sketch  *sketch
	tracks  []report.Lane
}

// classSum adds up the instances of one tenant entry in this cell.
type classSum struct {
	latency, wait           report.Histogram
	firstToken, perToken    report.Histogram
	copied                  int64  // bytes
	periods                 uint64 // busy periods that the daemon saw
	offered, done, kernels  uint64
	memory                  memorySum
	late                    uint64 // over its deadline or its SLO's latency
	run                     time.Duration
	least, most             time.Duration // run of a single one
	instances               int
	preemptions, timeslices uint64
}

// epoch is the start of a simulation. The engine uses time 0 for "never".
const epoch = model.Time(time.Second)

// cancelEvery is the number of steps between checks of the context.
const cancelEvery = 4096

func newCell(p *plan, member cellPlan) (*cell, error) {
	e, err := engine.New(p.engine)
	if err != nil {
		return nil, err
	}
	c := &cell{
		plan: p, engine: e, now: epoch, bell: model.Never, wake: model.Never,
		random: rand.New(rand.NewPCG(p.seed, 1<<63|uint64(member.devices[0]))),
		host:   residency.Host{Budget: residency.All},
		end:    epoch.Add(p.duration), classes: make([]classSum, len(p.scenario.Tenants)),
	}
	if p.record != nil {
		p.record.Attach(e, epoch, c.programOf)
	}
	local := map[int]int{}
	for i, device := range member.devices {
		local[device] = i
		g := gpumodel.NewGPU(epoch, p.costs, nil, nil)
		c.gpus = append(c.gpus, g)
		c.ids = append(c.ids, deviceID(device))
		c.memories = append(c.memories, newMemory(c))
	}
	c.nexts = make([]model.Time, len(c.gpus))
	c.stale = make([]bool, len(c.gpus))
	for i := range c.nexts {
		c.nexts[i] = model.Never
	}
	c.devices = make([]gpumodel.Totals, len(c.gpus))
	for _, m := range member.instances {
		c.addInst(m, local)
	}
	if member.drawn && p.draw > 0 {
		for i, g := range c.gpus {
			c.picture = append(c.picture, gpumodel.NewTimeline(i))
			g.SetTimeline(c.picture[i])
		}
		c.sketch = newSketch(len(c.ranks))
	}
	for _, g := range c.gpus {
		g.OnStart(c.started)
	}
	return c, nil
}

// run simulates to the end.
func (c *cell) run(ctx context.Context) error {
	warm := epoch.Add(c.plan.warmup)
	drawn := warm.Add(c.plan.draw)
	measuring := false
	for steps := 1; ; steps++ {
		if steps%cancelEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		t := min(c.timers.When(), c.moves.When(), c.bell, c.wake)
		for _, next := range c.nexts {
			t = min(t, next)
		}
		if !measuring && t >= warm {
			measuring = true
			c.beginMeasuring(warm)
		}
		if c.sketch != nil && t >= drawn {
			c.takePicture(warm, drawn)
		}
		if t >= c.end {
			break
		}
		c.step(t)
	}
	c.finish()
	return nil
}

// step processes the events due at t.
func (c *cell) step(t model.Time) {
	c.now = t
	for i, next := range c.nexts {
		if next <= t {
			c.advance(i)
		}
	}
	c.land()
	for c.timers.When() <= t {
		c.events++
		c.fire(c.timers.Pop())
	}
	for c.moves.When() <= t {
		c.events++
		c.moves.Pop().move()
	}
	if c.bell <= t {
		c.bell = model.Never
		c.scan()
	}
	if c.dirty || c.wake <= t {
		c.decide()
	}
	c.land()
	for i, stale := range c.stale {
		if stale {
			c.stale[i] = false
			c.nexts[i] = c.gpus[i].NextEvent()
		}
	}
	if c.sketch != nil {
		c.sketch.look(c)
	}
}

// advance simulates a GPU up to now. Call it before changing the GPU.
func (c *cell) advance(i int) *gpumodel.GPU {
	g := c.gpus[i]
	if g.Now() < c.now || c.nexts[i] <= c.now {
		g.Advance(c.now)
	}
	c.stale[i] = true
	return g
}

// land handles completed kernels in order of completion.
func (c *cell) land() {
	for i := 0; i < len(c.done); i++ {
		c.done[i].workDone()
	}
	c.done = c.done[:0]
}

// decide runs the engine and dispatches its desired states.
func (c *cell) decide() {
	c.events++
	c.dirty = false
	c.due = c.engine.ProgressDue(c.now, c.due[:0])
	for _, id := range c.due {
		c.engine.SetProgress(c.now, id, c.ranks[id.Session-1].page.progress(false))
	}
	changes, wake := c.engine.Decide(c.now)
	c.wake = max(wake, c.now+1)
	// Resumes go first; suspends wait for the driver's replies to them. The loop wakes workers one
	// after the other, and the last one woken runs first.
	at := c.now.Add(c.plan.dispatch.draw(c.random))
	for _, stop := range []bool{false, true} {
		for i := len(changes) - 1; i >= 0; i-- {
			if (changes[i].Suspend != 0) == stop && c.ranks[changes[i].Queue.Session-1].desire(&changes[i], at) {
				at = at.Add(c.plan.dispatch.draw(c.random))
			}
		}
	}
	c.join()
	for _, r := range c.resuming {
		r.resuming = false
	}
	c.resuming = c.resuming[:0]
}

// started handles the start of a kernel.
func (c *cell) started(account *gpumodel.Account, submitted, started model.Time) {
	if submitted >= epoch.Add(c.plan.warmup) {
		c.classes[c.ranks[account.PID-1].inst.class].wait.Add(uint64(started.Sub(submitted)))
	}
}

// beginMeasuring discards the counts of the warm-up.
func (c *cell) beginMeasuring(at model.Time) {
	for i, g := range c.gpus {
		g.Advance(at - 1) // events at this instant count
		c.devices[i] = g.Totals()
	}
	for _, r := range c.ranks {
		r.base, r.copiedBase = *r.account, r.copied
	}
}

// takePicture stores the recorded timelines.
func (c *cell) takePicture(from, to model.Time) {
	var spans []gpumodel.Span
	for i, g := range c.gpus {
		g.Advance(to - 1)
		spans = append(spans, c.picture[i].Spans(from, to)...)
		g.SetTimeline(nil)
	}
	c.tracks = c.sketch.lanes(c, spans, from, to)
	c.picture, c.sketch = nil, nil
}

// finish advances all devices to the end and adds up the results.
func (c *cell) finish() {
	c.now = c.end
	for i, g := range c.gpus {
		g.Advance(c.end)
		c.events += g.Handled()
		t, base := g.Totals(), c.devices[i]
		c.devices[i] = gpumodel.Totals{
			RunNS: t.RunNS - base.RunNS, SwitchNS: t.SwitchNS - base.SwitchNS, IdleNS: t.IdleNS - base.IdleNS,
			Switches: t.Switches - base.Switches, MidKernel: t.MidKernel - base.MidKernel, Kernels: t.Kernels - base.Kernels,
		}
	}
	for _, in := range c.insts {
		sum := &c.classes[in.class]
		var run time.Duration
		for _, r := range in.ranks {
			run += time.Duration(r.account.RunNS - r.base.RunNS)
			sum.copied += r.copied - r.copiedBase
			sum.kernels += r.account.Kernels - r.base.Kernels
			sum.preemptions += r.account.Preemptions - r.base.Preemptions
			sum.timeslices += r.account.Timeslices - r.base.Timeslices
			sum.memory.add(r.moved(c.now))
		}
		if sum.instances == 0 || run < sum.least {
			sum.least = run
		}
		sum.most = max(sum.most, run)
		sum.run += run
		sum.instances++
	}
}

// timer is a scheduled event of an instance.
type timer struct {
	kind timerKind
	inst *inst
}

type timerKind uint8

const (
	timerArrival timerKind = iota // an open request
	timerThink                    // a closed request after its think time
	timerLaunch                   // the next kernel of the request being launched
	timerReturn                   // the program observes the completion of a request
	timerResume                   // the program observes the completion of a segment
	timerWatch                    // the program's watcher looks for idle queues
	timerWork                     // a worker calls the driver
	timerHurry                    // a worker stops waiting for its predecessors
	timerBatch                    // the program's thread that releases batches looks at them
	timerJoin                     // the program starts
	timerLeave                    // the program ends
)
