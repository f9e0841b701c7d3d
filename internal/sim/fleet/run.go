// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"math"
	"slices"
	"time"

	"xsched/internal/model"
	gpumodel "xsched/internal/virtual/model"
)

// Config describes one simulation.
type Config struct {
	Nodes, GPUs int // GPUs of each node
	Memory      int // GiB of a GPU; 0: 140
	// List, if not nil, has the nodes instead, of any kinds: the first Nodes of them. Interleave orders it.
	List    []Node
	Sharing Sharing
	Rule    Rule
	Score   Score   // "": most
	Cost    float64 // factor on XSched's costs; 0.5, 1, 1.5, or 0
	Length  time.Duration
	// Strict lets a pod that does not fit hold up all pods behind it, as a plain queue does. Kubernetes
	// tries the others.
	Strict bool
	// Preempt lets services evict jobs of lower priority.
	Preempt bool
	// Abort ends the simulation as soon as its result cannot be Kept.
	Abort bool
	// Progress, if not nil, receives the completed fraction.
	Progress func(float64)
}

// DefaultMemory is that of an H200, in GiB.
const DefaultMemory = 140

// Limits of a fleet.
const (
	maxNodes = 100_000
	maxGPUs  = 64
	maxDays  = 31
)

// step is how often the rates of services change.
const step = 15 * time.Minute

// checkpoint is how often jobs save their work: an evicted one loses what it did since.
const checkpoint = 30 * time.Minute

// task is a pod in the simulation.
type task struct {
	pod   *Pod
	claim claim
	state taskState
	on    []int // devices

	started time.Duration // last start
	waited  time.Duration
	queued  time.Duration
	// Of a job.
	left    float64 // seconds of work
	rate    float64
	since   time.Duration // left is of then
	version int           // of its end
	ended   time.Duration
	lapsed  bool // past its limit
}

type taskState uint8

const (
	future taskState = iota
	pending
	running
	finished
)

type event struct {
	kind    eventKind
	task    *task
	version int
}

type eventKind uint8

const (
	eventEnd eventKind = iota // of a job or a service
	eventArrive
	eventStep
)

// world is one simulation.
type world struct {
	config   Config
	outcomes *Outcomes
	cluster  *cluster
	tasks    []task
	agenda   gpumodel.Agenda[event]
	now      time.Duration
	nextStep time.Duration
	queue    []*task       // pending, by priority and arrival
	waiting  map[claim]int // tasks of the queue by claim
	full     map[claim]bool
	arrived  int

	busy, kept, ideal float64 // of all devices, now
	occupied, late    int     // devices with a pod, services over their target
	last              time.Duration
	result            Result
	failed            bool
	buffer            []int
}

// Run simulates the pods, which must be in order of arrival. It does not change them.
func Run(ctx context.Context, pods []Pod, c Config) (*Result, error) {
	w, err := newWorld(pods, c)
	if err != nil {
		return nil, err
	}
	for w.next() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	w.finish()
	return &w.result, nil
}

func newWorld(pods []Pod, c Config) (*world, error) {
	if c.Memory == 0 {
		c.Memory = DefaultMemory
	}
	if c.Score == "" {
		c.Score = MostAllocated
	}
	if c.Length == 0 {
		c.Length = 24 * time.Hour
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	outcomes, err := Table(c.Sharing, c.Cost)
	if err != nil {
		return nil, err
	}
	w := &world{
		config: c, outcomes: outcomes, cluster: newCluster(c.nodes(c.Nodes)), tasks: make([]task, len(pods)),
		waiting: map[claim]int{}, full: map[claim]bool{},
	}
	w.result.begin(&c)
	for i := range pods {
		w.tasks[i] = task{pod: &pods[i], claim: c.Rule.claim(&pods[i], outcomes, c.switching()), left: pods[i].Duration.Seconds()}
	}
	w.push(0, event{kind: eventStep})
	if len(pods) > 0 {
		w.push(pods[0].Arrive, event{kind: eventArrive})
	}
	return w, nil
}

// next handles the next event and reports whether the simulation goes on.
func (w *world) next() bool {
	at := w.agenda.When()
	if w.failed || at > model.Time(w.config.Length) {
		if !w.failed {
			w.advance(w.config.Length)
		}
		return false
	}
	w.advance(time.Duration(at))
	switch e := w.agenda.Pop(); e.kind {
	case eventStep:
		w.step()
	case eventArrive:
		w.arrive()
	case eventEnd:
		if t := e.task; t.state == running && t.version == e.version {
			w.end(t)
		}
	}
	return true
}

func (w *world) push(at time.Duration, e event) { w.agenda.Push(model.Time(at), e) }

// advance moves the clock and integrates what holds since the last event.
func (w *world) advance(to time.Duration) {
	for w.last < to {
		hour := int(w.last / time.Hour)
		until := min(to, time.Duration(hour+1)*time.Hour)
		w.result.integrate(hour, (until - w.last).Seconds(), w)
		w.last = until
	}
	w.now = to
}

// arrive takes in all pods of this moment, then schedules them by priority.
func (w *world) arrive() {
	var fresh []*task
	for w.arrived < len(w.tasks) && w.tasks[w.arrived].pod.Arrive <= w.now {
		t := &w.tasks[w.arrived]
		w.arrived++
		t.state, t.queued = pending, w.now
		fresh = append(fresh, t)
	}
	if w.arrived < len(w.tasks) {
		w.push(w.tasks[w.arrived].pod.Arrive, event{kind: eventArrive})
	}
	slices.SortStableFunc(fresh, func(a, b *task) int { return b.pod.Priority - a.pod.Priority })
	if w.config.Strict {
		for _, t := range fresh {
			w.enqueue(t)
		}
		w.retry(nil)
		return
	}
	full, evicted := map[claim]bool{}, false
	for _, t := range fresh {
		// What is waiting was tried whenever GPUs became free.
		if (evicted || w.waiting[t.claim] == 0) && !full[t.claim] && w.try(t, nil) {
			continue
		}
		full[t.claim] = true
		if t.pod.Service && w.config.Preempt && w.preempt(t) {
			clear(full)
			evicted = true
			continue
		}
		w.enqueue(t)
	}
	if evicted {
		w.retry(nil)
	}
}

// enqueue inserts a task into the queue.
func (w *world) enqueue(t *task) {
	at, _ := slices.BinarySearchFunc(w.queue, t, func(a, b *task) int {
		if a.pod.Priority != b.pod.Priority {
			return b.pod.Priority - a.pod.Priority
		}
		if a.queued <= b.queued { // behind those of the same moment
			return -1
		}
		return 1
	})
	w.queue = slices.Insert(w.queue, at, t)
	w.waiting[t.claim]++
	if t.pod.Service && w.config.Abort {
		w.failed = true
	}
}

// try places a task on one of the nodes; nil: any.
func (w *world) try(t *task, nodes []int) bool {
	on := w.cluster.find(&t.claim, w.config.Score, nodes, w.buffer)
	if on == nil {
		return false
	}
	w.buffer = on
	w.start(t, on)
	return true
}

func (w *world) start(t *task, on []int) {
	t.state, t.started, t.since, t.rate = running, w.now, w.now, 0
	t.waited += w.now - t.queued
	for _, i := range on {
		if d := &w.cluster.devices[i]; len(d.services)+len(d.jobs) == 0 {
			w.occupied++
		}
	}
	w.cluster.place(t, on)
	w.result.place(w.cluster, on)
	if t.pod.Service && t.pod.Duration > 0 {
		w.push(w.now+t.pod.Duration, event{kind: eventEnd, task: t, version: t.version})
	}
	w.update(t.on)
}

// stop takes a task off its devices.
func (w *world) stop(t *task) {
	w.settle(t)
	w.cluster.remove(t)
	t.version++
	on := t.on
	t.on = nil
	for _, i := range on {
		if d := &w.cluster.devices[i]; len(d.services)+len(d.jobs) == 0 {
			w.occupied--
		}
	}
	w.update(on)
	t.on = on // for retry
}

func (w *world) end(t *task) {
	w.stop(t)
	t.state, t.ended = finished, w.now
	var nodes []int
	for _, i := range t.on {
		if n := w.cluster.home[i]; len(nodes) == 0 || nodes[len(nodes)-1] != n {
			nodes = append(nodes, n)
		}
	}
	t.on = nil
	w.judge(t)
	w.retry(nodes)
}

// retry schedules pending tasks after GPUs of some nodes became free. No other node can fit a task
// that did not fit before.
func (w *world) retry(nodes []int) {
	if w.config.Strict {
		nodes = nil // those behind the first were never tried
	}
	clear(w.full)
	kept := w.queue[:0]
	for i, t := range w.queue {
		if len(w.full) == len(w.waiting) || w.config.Strict && len(w.full) > 0 { // no other one fits
			kept = append(kept, w.queue[i:]...)
			break
		}
		if w.full[t.claim] {
			kept = append(kept, t)
			continue
		}
		if !w.try(t, nodes) {
			w.full[t.claim] = true
			kept = append(kept, t)
			continue
		}
		if w.waiting[t.claim]--; w.waiting[t.claim] == 0 {
			delete(w.waiting, t.claim)
		}
	}
	clear(w.queue[len(kept):])
	w.queue = kept
}

// preempt evicts jobs for a service. An evicted job continues from its last checkpoint.
func (w *world) preempt(t *task) bool {
	device, victims := w.cluster.victims(&t.claim, t.pod.Priority)
	if device < 0 {
		return false
	}
	for _, v := range victims {
		w.stop(v)
		ran := (w.now - v.started).Seconds()
		lost := min(math.Mod(ran, checkpoint.Seconds()), v.pod.Duration.Seconds()-v.left)
		v.left += max(lost, 0)
		v.state, v.queued, v.on = pending, w.now, nil
		w.result.Evictions++
		w.enqueue(v)
	}
	return w.try(t, []int{w.cluster.home[device]})
}

// step changes the rates of all services.
func (w *world) step() {
	w.nextStep = w.now + step
	w.push(w.nextStep, event{kind: eventStep})
	for i := range w.cluster.devices {
		w.look(&w.cluster.devices[i])
	}
	for i := range w.tasks[:w.arrived] {
		if t := &w.tasks[i]; t.state == running && !t.pod.Service {
			w.pace(t)
		} else if t.state == pending {
			w.judge(t)
		}
	}
	if w.config.Progress != nil {
		w.config.Progress(min(1, w.now.Seconds()/w.config.Length.Seconds()))
	}
}
