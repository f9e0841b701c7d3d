// SPDX-License-Identifier: Apache-2.0

package amdlog

import "xsched/internal/report"

import "slices"

// Limits on every table that a log can grow, so that no log exhausts memory.
// Entries beyond a limit are counted together.
const (
	maxProcesses = 256
	maxQueues    = 1024   // in all processes
	maxNames     = 16384  // kernels
	maxName      = 1024   // bytes
	maxEntries   = 400000 // of all other tables together
	maxLife      = 1000   // queue events per process
	maxSWq       = 16
	maxJump      = 24 * 3600 * 1000 * 1000 // us
	topCount     = 20
)

// analysis merges the chunks of a log in order. All state across chunks is
// here, so that the workers need none.
type analysis struct {
	log       *Log
	pid       uint32
	eras      [eras]uint64
	levels    [10]uint64
	processes map[uint32]*process
	names     map[string]int32
	nameList  []string
	writers   []*process // of the current chunk
	queues    int
	entries   int
	loose     submissions // without a process
}

// submissions counts kernels by the record that shows them.
type submissions struct{ dispatches, launches, commands uint64 }

func (s *submissions) add(k kind) {
	switch k {
	case dispatch:
		s.dispatches++
	case shader:
		s.launches++
	case command:
		s.commands++
	}
}

// room reserves a table entry and reports whether one was left.
func (a *analysis) room() bool {
	if a.entries >= maxEntries {
		return false
	}
	a.entries++
	return true
}

const (
	noName    int32 = -1
	otherName int32 = -2
)

type process struct {
	out      Process
	threads  map[uint64]int32 // kernel last named by each thread
	objects  map[uint64]int32 // kernel at each code address
	queues   map[uint64]*queue
	dispatch activity
	launch   activity
	command  activity
	streams  map[uint64]uint64 // commands by queue object
	failures map[string]uint64 // failed launches by call and error
	deleted  map[uint64]*queue // addresses that no record before their deletion proves to be rings
	rings    bool              // the release names rings, also where it deletes them
}

type queue struct {
	out      Queue
	hwq      uint64
	swq      []uint64
	activity activity
	lag      report.Histogram
}

// activity accumulates an Activity.
type activity struct {
	count     uint64
	last      uint64
	timed     uint64 // kernels with a plausible timestamp
	suspect   uint64 // an outlier timestamp that the next kernel may confirm
	jumps     uint64
	intervals report.Histogram
	items     report.Histogram
	grids     map[gridKey]uint64
	names     map[int32]uint64
	without   uint64
	line      timeline
}

type gridKey struct{ grid, group [3]uint32 }

func newAnalysis(o Options) *analysis {
	return &analysis{log: &Log{Name: o.Name}, pid: o.PID, processes: map[uint32]*process{}, names: map[string]int32{}}
}

// add merges the next chunk.
func (a *analysis) add(c *chunk) {
	l := a.log
	l.Lines.add(&c.lines)
	l.DispatchLines += c.markedLines
	for i, n := range c.eras {
		a.eras[i] += n
	}
	for i, n := range c.levels {
		a.levels[i] += n
	}
	a.writers = a.writers[:0]
	for i := range c.writers {
		w := &c.writers[i]
		p := a.process(w.pid)
		a.writers = append(a.writers, p)
		if p == nil {
			continue
		}
		if p.out.Records == 0 {
			p.out.FirstUS, p.out.LastUS = w.first, w.last
		} else {
			p.out.FirstUS, p.out.LastUS = min(p.out.FirstUS, w.first), max(p.out.LastUS, w.last)
		}
		p.out.Records += w.records
		if _, known := p.threads[w.tid]; !known && a.room() {
			p.threads[w.tid] = noName
		}
	}
	for i := range c.events {
		e := &c.events[i]
		switch e.kind {
		case dispatch:
			l.Dispatches++
		case shader:
			l.Launches++
		case barrier:
			l.Barriers++
		case command:
			l.Commands++
		case failed:
			l.Failed++
		}
		switch {
		case e.writer == noWriter:
			a.loose.add(e.kind)
			if e.kind == dispatch {
				l.Orphans++
			}
		case a.writers[e.writer] == nil:
			a.loose.add(e.kind)
			l.Dropped++
		default:
			a.event(a.writers[e.writer], c, e)
		}
	}
}

// process returns the process with this pid, or nil beyond maxProcesses.
func (a *analysis) process(pid uint32) *process {
	if pid == 0 {
		pid = a.pid
	}
	p := a.processes[pid]
	if p == nil && len(a.processes) < maxProcesses {
		p = &process{out: Process{PID: pid}, threads: map[uint64]int32{}, objects: map[uint64]int32{}, queues: map[uint64]*queue{}}
		a.processes[pid] = p
	}
	return p
}

func (a *analysis) event(p *process, c *chunk, e *event) {
	tid := c.writers[e.writer].tid
	switch e.kind {
	case shader:
		name := a.name(c.buf[e.name[0]:e.name[1]])
		p.out.Launches++
		a.submit(&p.launch, e.time, name)
		if _, known := p.threads[tid]; known {
			p.threads[tid] = name
		}
	case dispatch:
		// A thread names a kernel, then submits it. Graph replays only submit;
		// there the code address identifies the kernel.
		name := noName
		if n, known := p.threads[tid]; known && n != noName {
			name = n
			p.threads[tid] = noName
			if _, seen := p.objects[e.object]; e.object != 0 && (seen || a.room()) {
				p.objects[e.object] = name
			}
		} else if n, known := p.objects[e.object]; known && e.object != 0 {
			name = n
		}
		q := a.queue(p, e)
		a.dispatch(&p.dispatch, e, name)
		if q != nil {
			a.dispatch(&q.activity, e, name)
			q.pointers(e, true)
		}
	case command:
		p.out.Commands++
		a.submit(&p.command, e.time, noName)
		if _, known := p.streams[e.swq]; e.swq != 0 && (known || a.room()) {
			if p.streams == nil {
				p.streams = map[uint64]uint64{}
			}
			p.streams[e.swq]++
		}
	case failed:
		p.out.Failed++
		text := string(c.buf[e.name[0]:e.name[1]])
		if _, known := p.failures[text]; known || a.room() {
			if p.failures == nil {
				p.failures = map[string]uint64{}
			}
			p.failures[text]++
		}
	case barrier:
		p.out.Barriers++
		if q := a.queue(p, e); q != nil {
			q.out.Barriers++
			q.pointers(e, false)
		}
	default:
		if !e.cut || e.hwq != 0 {
			a.life(p, a.queue(p, e), e)
		}
	}
}

func (a *analysis) dispatch(to *activity, e *event, name int32) {
	a.submit(to, e.time, name)
	if !e.hasGrid {
		to.without++
		return
	}
	to.items.Add(uint64(e.grid[0]) * uint64(max(e.grid[1], 1)) * uint64(max(e.grid[2], 1)))
	key := gridKey{e.grid, e.group}
	if _, known := to.grids[key]; known || a.room() {
		if to.grids == nil {
			to.grids = map[gridKey]uint64{}
		}
		to.grids[key]++
	}
}

// submit counts a kernel, also on the timeline.
func (a *analysis) submit(to *activity, time uint64, name int32) {
	if a.kernel(to, time, name) {
		to.line.at(time).kernels++
	}
}

// kernel counts a kernel and reports whether its timestamp is plausible.
func (a *analysis) kernel(t *activity, time uint64, name int32) bool {
	t.count++
	if _, known := t.names[name]; !known && name >= 0 && !a.room() {
		name = otherName
	}
	if t.names == nil {
		t.names = map[int32]uint64{}
	}
	t.names[name]++
	if t.timed == 0 {
		t.last, t.timed = time, 1
		return true
	}
	switch {
	case time >= t.last && time-t.last <= maxJump:
		t.intervals.Add(time - t.last)
		t.last = time
	case time < t.last && t.last-time <= maxJump:
		// Threads write slightly out of order, and users concatenate logs.
		t.jumps++
		if t.last-time > 1000*1000 {
			t.last = time
		}
	case t.suspect != 0 && max(time, t.suspect)-min(time, t.suspect) <= maxJump:
		t.jumps++ // two timestamps agree: the clock restarted
		t.last = time
	default:
		t.jumps++
		t.suspect = time
		return false
	}
	t.suspect = 0
	t.timed++
	return true
}

// name returns the number of a kernel name.
func (a *analysis) name(b []byte) int32 {
	b = b[:min(len(b), maxName)]
	if id, known := a.names[string(b)]; known {
		return id
	}
	if len(a.nameList) >= maxNames || len(b) == 0 {
		return otherName
	}
	id := int32(len(a.nameList))
	s := string(b)
	a.nameList = append(a.nameList, s)
	a.names[s] = id
	return id
}

// queue returns the hardware queue of an event, or nil if unknown. Only packets and new creation
// records prove that an address is a ring: old releases log the software queue elsewhere.
func (a *analysis) queue(p *process, e *event) *queue {
	if e.hwq == 0 {
		return nil
	}
	p.rings = p.rings || e.swq != 0
	q := p.queues[e.hwq]
	if q == nil {
		if q = a.newQueue(p, e); q == nil {
			return nil
		}
	}
	if e.swq != 0 && len(q.swq) < maxSWq && !slices.Contains(q.swq, e.swq) {
		q.swq = append(q.swq, e.swq)
	}
	if e.id >= 0 {
		q.out.ID = e.id
	}
	if e.priority >= 0 && (e.kind == created || q.out.Priority == "") {
		q.out.Priority = priorityName(e.priority)
	}
	if e.size > 0 {
		q.out.Size = e.size
	}
	return q
}

// newQueue returns the queue of an address that is not known to be a ring. A log may begin after the
// queue's creation, so that its deletion is the first record.
func (a *analysis) newQueue(p *process, e *event) *queue {
	q := p.deleted[e.hwq]
	proven := e.kind != acquired && e.kind != released && e.kind != deleted
	if q == nil {
		if a.queues >= maxQueues || !proven && e.kind != deleted {
			return nil
		}
		a.queues++
		q = &queue{hwq: e.hwq, out: Queue{HWq: hex(e.hwq), ID: -1}}
	}
	switch {
	case proven:
		delete(p.deleted, e.hwq)
		p.queues[e.hwq] = q
	case p.deleted == nil:
		p.deleted = map[uint64]*queue{e.hwq: q}
	default:
		p.deleted[e.hwq] = q
	}
	return q
}

// pointers records the number of packets waiting in the queue.
func (q *queue) pointers(e *event, kernel bool) {
	if !e.hasPointers {
		return
	}
	lag := e.wptr - e.rptr
	if e.wptr < 1<<32 && e.rptr < 1<<32 {
		lag = uint64(uint32(e.wptr) - uint32(e.rptr)) // up to 7.0 the pointers wrap at 32 bits
	}
	limit := uint64(1 << 24)
	if q.out.Size > 0 {
		limit = uint64(q.out.Size)
	}
	if lag > limit {
		q.out.LagBroken++
		return
	}
	q.lag.Add(lag)
	if kernel && q.activity.suspect == 0 {
		b := q.activity.line.at(e.time)
		b.lagSum += lag
		b.lagCount++
		b.lagMax = max(b.lagMax, lag)
	}
}

// life records creation, deletion, acquisition and release of a queue; q is nil if its ring is
// unknown.
func (a *analysis) life(p *process, q *queue, e *event) {
	if q == nil {
		q = &queue{}
	}
	text := ""
	switch e.kind {
	case created:
		q.out.Created++
		text = "created"
	case deleted:
		q.out.Deleted++
		text = "deleted"
	case acquired:
		q.out.Acquired++
		return
	case released:
		q.out.Released++
		return
	default:
		return
	}
	q.out.Ended = e.kind == deleted
	if p.out.LifeCount == nil {
		p.out.LifeCount = map[string]int{}
	}
	p.out.LifeCount[text]++
	if len(p.out.Life) < maxLife && a.room() {
		l := QueueEvent{TimeUS: e.time, Kind: text, HWq: q.out.HWq}
		if e.kind == created {
			l.Size, l.Priority = e.size, priorityName(e.priority)
			if e.swq != 0 {
				l.SWq = hex(e.swq)
			}
		}
		p.out.Life = append(p.out.Life, l)
	}
}
