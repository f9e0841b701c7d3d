// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"math"
	"time"
)

// This file has the consequences of placements: the outcome of each GPU, and the progress of jobs.

// update looks at devices whose tenants changed, and paces their jobs.
func (w *world) update(on []int) {
	for _, i := range on {
		w.look(&w.cluster.devices[i])
	}
	for _, i := range on {
		for _, t := range w.cluster.devices[i].jobs {
			w.pace(t)
		}
	}
}

// look finds the outcome of a device's present tenants.
func (w *world) look(d *device) {
	w.busy -= d.busy
	w.kept -= d.all
	w.ideal -= d.ideal
	w.late -= d.late
	hour := int(w.now/time.Hour) % 24
	total, kernel := 0.0, 0
	var first *task // the busiest service
	for _, t := range d.services {
		load := t.load(hour)
		if total += load; first == nil || load > first.load(hour) {
			first = t
		}
	}
	for _, t := range d.jobs {
		kernel = max(kernel, t.pod.shape)
	}
	d.late, d.kept, d.all, d.ideal = 0, 0, 0, 0
	for _, t := range d.services {
		other, otherLoad := w.neighbour(d, t, hour)
		own := t.load(hour)
		ratio := w.outcomes.P99(t.pod.shape, own, other, otherLoad, kernel, len(d.jobs)) / (t.pod.P99.Seconds() * 1000)
		if own > 0 && ratio > 1 {
			d.late++
		}
		w.result.worst(own, ratio)
	}
	d.busy = min(1, total)
	if n := len(d.jobs); n > 0 {
		own, load, other, otherLoad := 0, 0.0, 0, 0.0
		if first != nil {
			own, load = first.pod.shape, first.load(hour)
			other, otherLoad = w.neighbour(d, first, hour)
		}
		d.all = w.outcomes.Kept(own, load, other, otherLoad, kernel, n)
		d.ideal = max(0, 1-total)
		d.busy = min(1, total+d.all)
		d.kept = d.all / float64(n)
	}
	w.busy += d.busy
	w.kept += d.all
	w.ideal += d.ideal
	w.late += d.late
	if w.late > 0 && w.config.Abort {
		w.failed = true
	}
}

// load returns the part of a GPU that a service uses in an hour of the day.
func (t *task) load(hour int) float64 { return t.pod.Load() * t.pod.hours[hour] }

// switches is the GPU time of the two context switches of a request.
const switches = 400 * time.Microsecond

// switching returns that time under a way of sharing.
func (c *Config) switching() time.Duration {
	switch c.Sharing {
	case XSched:
		return time.Duration(c.Cost * float64(switches))
	case TimeSlicing:
		return switches
	}
	return 0
}

// neighbour returns the longest requests of the other services on the device, at least the second
// shortest, and their load. Shorter requests count as longer ones, with the switches that they cause in
// addition.
func (w *world) neighbour(d *device, own *task, hour int) (shape int, load float64) {
	if len(d.services) < 2 {
		return 0, 0
	}
	shape = 1
	for _, t := range d.services {
		if t != own {
			shape = max(shape, t.pod.shape)
		}
	}
	for _, t := range d.services {
		if t == own {
			continue
		}
		load += t.load(hour)
		if t.pod.shape < shape {
			load += float64(t.pod.Rate * t.pod.hours[hour] * w.config.switching().Seconds())
		}
	}
	return shape, load
}

// settle credits a job with what it did.
func (w *world) settle(t *task) {
	t.left = max(0, t.left-float64(t.rate*(w.now-t.since).Seconds()))
	t.since = w.now
}

// pace sets the rate of a job: that of its slowest GPU.
func (w *world) pace(t *task) {
	if t.pod.Service || t.state != running {
		return
	}
	w.settle(t)
	t.rate = math.Inf(1)
	for _, i := range t.on {
		t.rate = min(t.rate, w.cluster.devices[i].kept)
	}
	t.version++
	if t.rate > 0 {
		end := w.now + time.Duration(math.Ceil(t.left/t.rate*1e9))
		if end <= w.nextStep { // a later one is known at the next step
			w.push(end, event{kind: eventEnd, task: t, version: t.version})
		}
	}
	w.judge(t)
}

// The limit of a job's time from arrival to end, and the part of jobs that may exceed it.
const (
	limitFactor = 2
	limitExtra  = 10 * time.Minute
	limitPart   = 0.05
)

// judge notes a job that is past its limit.
func (w *world) judge(t *task) {
	if t.pod.Service || t.lapsed || w.now-t.pod.Arrive <= limitFactor*t.pod.Duration+limitExtra {
		return
	}
	t.lapsed = true
	w.result.Overdue++
	if w.config.Abort && float64(w.result.Overdue) > limitPart*float64(w.jobs()) {
		w.failed = true
	}
}

// jobs returns the number of jobs in the trace.
func (w *world) jobs() int {
	if w.result.Jobs == 0 {
		for i := range w.tasks {
			if !w.tasks[i].pod.Service {
				w.result.Jobs++
			}
		}
	}
	return w.result.Jobs
}

// finish counts all tasks.
func (w *world) finish() {
	w.jobs()
	r := &w.result
	r.Aborted = w.failed
	for i := range w.tasks {
		t := &w.tasks[i]
		switch t.state {
		case future:
			r.NotArrived++
			continue
		case pending:
			r.Pending++
			t.waited += w.now - t.queued
			w.judge(t)
		case running:
			r.Running++
			w.settle(t)
			w.judge(t)
		case finished:
			r.Finished++
		}
		r.Arrived++
		if t.pod.Service {
			r.Services++
			if t.waited > 0 {
				r.ServicesWaited++
			}
		} else {
			r.waits = append(r.waits, t.waited.Seconds())
			if t.state == finished {
				r.stretch += (t.ended - t.pod.Arrive).Seconds() / t.pod.Duration.Seconds()
				r.ended++
			}
		}
	}
	r.end(w.now)
}
