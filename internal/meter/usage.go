// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"cmp"
	"slices"
	"time"

	"xsched/internal/model"
)

// span is a time in use.
type span struct {
	since model.Time // start of the current period; 0: none
	total time.Duration
}

func (u *span) upTo(now model.Time) time.Duration {
	if u.since == 0 {
		return u.total
	}
	return u.total + max(0, now.Sub(u.since))
}

func (u *span) set(now model.Time, active bool) {
	if active {
		u.since = now
	} else {
		u.total, u.since = u.upTo(now), 0
	}
}

// deviceUse is the time during which at least one queue used a GPU. That of all clients is in real time,
// that of one client in time of the GPU's turns.
type deviceUse struct {
	queues, active int
	use            span
	turns          turns
	recent         recentUse
	waiting        int  // queues of a client that wait
	waited         span // one of them waits, and none is active
}

// set updates the number of queues that use the GPU. It reports whether the first began or the last ended.
func (t *deviceUse) set(now model.Time, active bool) (changed bool) {
	if active {
		t.active++
		changed = t.active == 1
	} else {
		t.active--
		changed = t.active == 0
	}
	if changed {
		t.use.set(now, active)
	}
	return changed
}

// settle begins or ends a client's wait after a change of its queues.
func (t *deviceUse) settle(now model.Time) {
	if waits := t.waiting > 0 && t.active == 0; waits != (t.waited.since != 0) {
		t.waited.set(now, waits)
	}
}

// turns is a clock that divides a GPU's time among the clients that use it at once: it runs at 1/n of
// real time while n clients do. So the sum of all clients' times never exceeds real time.
type turns struct {
	clients int
	changed model.Time
	passed  float64 // nanoseconds; shorter steps than one matter with many clients
}

// at reads the clock. It is never 0, which means no time in span.
func (t *turns) at(now model.Time) model.Time { return 1 + model.Time(t.upTo(now)) }

func (t *turns) upTo(now model.Time) float64 {
	if t.clients == 0 || now <= t.changed {
		return t.passed
	}
	return t.passed + float64(now.Sub(t.changed))/float64(t.clients)
}

// add changes the number of clients that use the GPU.
func (t *turns) add(now model.Time, clients int) {
	t.passed, t.changed = t.upTo(now), max(now, t.changed)
	t.clients += clients
}

// devices has the times of each device. Clients name the devices of their queues, so the number of
// devices without queues is bounded.
type devices map[model.DeviceID]*deviceUse

const maxIdle = 64

func (g devices) enter(now model.Time, gpu model.DeviceID) {
	if g[gpu] == nil {
		g[gpu] = &deviceUse{recent: recentFrom(now)}
	}
	g[gpu].queues++
}

// leave ends the part of a queue; so many devices without queues are kept.
func (g devices) leave(gpu model.DeviceID, keep int) {
	if t := g[gpu]; t != nil {
		if t.queues--; t.queues == 0 && len(g) > keep {
			delete(g, gpu)
		}
	}
}

// QueueUse is the time during which a queue used its GPU: it has work, is not suspended and does not
// yield to longer timeslices.
type QueueUse struct {
	device  model.DeviceID
	program *ProgramUse // nil: none
	span    span
	waits   bool // it has work and may not run

	// While the client keeps the total, worked is the part of it already accounted, as of workedAt.
	worked   time.Duration
	workedAt model.Time
	owed     time.Duration // busy time not yet accounted when that ended; negative if over-counted
}

// UpTo returns the time in use.
func (q *QueueUse) UpTo(now model.Time) time.Duration { return q.span.upTo(now) }

// ProgramUse is the use of a program's queues.
type ProgramUse struct {
	uses   devices
	Shares []GPUShare // of the last second; replaced, never changed
}

// NewProgramUse returns the use of a program without queues.
func NewProgramUse() ProgramUse { return ProgramUse{uses: devices{}} }

// Usage is the use of all GPUs.
type Usage struct {
	gpus devices
	step model.Time // start of the last step of shares
}

// NewUsage returns the use of GPUs without queues.
func NewUsage() *Usage { return &Usage{gpus: devices{}} }

// Enter begins to account a queue, of a program unless that is nil.
func (g *Usage) Enter(now model.Time, q *QueueUse, gpu model.DeviceID, program *ProgramUse) {
	q.device, q.program = gpu, program
	g.gpus.enter(now, gpu)
	if program != nil {
		program.uses.enter(now, gpu)
	}
}

// Leave ends the account of a queue. It reports whether the queue was in use. Only devices that are
// listed are known to exist.
func (g *Usage) Leave(now model.Time, q *QueueUse, listed bool, maxGPUs int) (changed bool) {
	changed = g.Set(now, q, false)
	g.Wait(now, q, false)
	keep := maxIdle
	if !listed {
		keep = 0
	}
	g.gpus.leave(q.device, keep)
	if q.program != nil {
		q.program.uses.leave(q.device, maxGPUs)
	}
	return changed
}

// Set notes whether a queue uses its GPU, and reports whether that changed.
func (g *Usage) Set(now model.Time, q *QueueUse, active bool) (changed bool) {
	if active == (q.span.since != 0) {
		return false
	}
	q.span.set(now, active)
	gpu := g.gpus[q.device]
	gpu.set(now, active)
	if q.program == nil {
		return true
	}
	use := q.program.uses[q.device]
	if use.set(gpu.turns.at(now), active) {
		if active {
			gpu.turns.add(now, 1)
		} else {
			gpu.turns.add(now, -1)
		}
	}
	use.settle(now)
	return true
}

// Wait notes whether a queue has work and may not run.
func (g *Usage) Wait(now model.Time, q *QueueUse, waits bool) {
	if q.program == nil || waits == q.waits {
		return
	}
	q.waits = waits
	use := q.program.uses[q.device]
	if waits {
		use.waiting++
	} else {
		use.waiting--
	}
	use.settle(now)
}

// GPUTotal is a program's use of a GPU since it joined.
type GPUTotal struct {
	Device model.DeviceID
	Ran    time.Duration // programs that use the GPU at once have equal parts of that time
	Waited time.Duration // it had work, and none of its queues might run
}

// Totals returns the use of each GPU.
func (p *ProgramUse) Totals(now model.Time, all *Usage) []GPUTotal {
	out := make([]GPUTotal, 0, len(p.uses))
	for id, t := range p.uses {
		total := GPUTotal{Device: id, Ran: t.use.total, Waited: t.waited.upTo(now)}
		if gpu := all.gpus[id]; gpu != nil { // nil: no client has queues there
			total.Ran = t.use.upTo(gpu.turns.at(now))
		}
		out = append(out, total)
	}
	slices.SortFunc(out, func(a, b GPUTotal) int { return cmp.Compare(a.Device, b.Device) })
	return out
}

// Pause stops accounting for a queue whose client keeps the total from now on.
func (g *Usage) Pause(now model.Time, q *QueueUse, total time.Duration) {
	g.Set(now, q, false)
	q.worked, q.workedAt = total-q.owed, now
}

// Resume ends that; the last reading of the total was this.
func (g *Usage) Resume(q *QueueUse, total time.Duration) { q.owed = total - q.worked }

// Worked accounts the busy time of a queue from its client's total. The client is not trusted: a reading
// adds at most the time that has passed since the last one. The remainder carries over to the next
// reading, also across pauses. So a client that is delayed between reading the clock and writing the
// page loses nothing, and time accounted too early counts once.
func (g *Usage) Worked(now model.Time, q *QueueUse, total time.Duration) {
	more := min(max(0, total-q.worked), max(0, now.Sub(q.workedAt)))
	q.worked, q.workedAt = q.worked+more, max(now, q.workedAt)
	q.span.total += more
	g.gpus[q.device].use.total += more
	if q.program != nil {
		q.program.uses[q.device].use.total += more
	}
}
