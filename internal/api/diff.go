// SPDX-License-Identifier: Apache-2.0

package api

import (
	"xsched/internal/control"
	"xsched/internal/control/upstream"
)

// diff returns the changes between two samples: removals first, then the order of the second. It ends
// once there are more than most. The cost grows with the number of queues, never with its square.
func diff(last, now *control.List, most int) []event {
	var out []event
	if last.Policy != now.Policy {
		out = append(out, newEvent("policy", NameEvent{Name: now.Policy}))
	}
	if last.Mode != now.Mode || last.ModeLevel != now.ModeLevel {
		out = append(out, newEvent("mode", NameEvent{Name: now.Mode, Level: now.ModeLevel}))
	}
	before, after := bySession(last), bySession(now)
	for i := range last.Processes {
		if len(out) > most {
			return out
		}
		p := &last.Processes[i]
		if after[p.Session] == nil {
			for _, q := range p.Queues {
				out = append(out, queueEvent("removed", p, q))
			}
			out = append(out, processEvent("removed", p))
		}
	}
	for i := range now.Processes {
		if len(out) > most {
			return out
		}
		p := &now.Processes[i]
		old := before[p.Session]
		if old == nil {
			out = append(out, processEvent("added", p))
			for _, q := range p.Queues {
				out = append(out, queueEvent("added", p, q))
			}
			continue
		}
		if hintsOf(old) != hintsOf(p) {
			out = append(out, processEvent("changed", p))
		}
		out = append(out, diffQueues(old, p)...)
	}
	return out
}

func diffQueues(last, now *control.Process) []event {
	var out []event
	before, after := byIndex(last), byIndex(now)
	for _, q := range last.Queues {
		if after[q.Index] == nil {
			out = append(out, queueEvent("removed", last, q))
		}
	}
	for _, q := range now.Queues {
		old := before[q.Index]
		// Counters that decrease show a slot that was reused between the samples.
		if old == nil || q.Preemptions < old.Preemptions || q.Device != old.Device {
			out = append(out, queueEvent("added", now, q))
			continue
		}
		if stateOf(*old) != stateOf(q) {
			out = append(out, queueEvent("changed", now, q))
		}
		if n := q.Preemptions - old.Preemptions; n > 0 {
			out = append(out, newEvent("preemption", PreemptionEvent{
				Handle: upstream.HandleText(upstream.HandleOf(now.Session, q.Index)), PID: now.PID, Pod: podOf(now), Device: q.Device, Level: q.Level,
				Count: n, Causes: newCauses(old.PreemptedBy, q.PreemptedBy),
			}))
		}
	}
	return out
}

// newCauses returns the increase of each cause.
func newCauses(last, now []control.Cause) []control.Cause {
	out := []control.Cause{}
	for _, c := range now {
		for _, o := range last {
			if o.PID == c.PID && o.Reason == c.Reason {
				c.Count -= min(o.Count, c.Count)
			}
		}
		if c.Count > 0 {
			out = append(out, c)
		}
	}
	return out
}

func bySession(l *control.List) map[uint64]*control.Process {
	out := make(map[uint64]*control.Process, len(l.Processes))
	for i := range l.Processes {
		out[l.Processes[i].Session] = &l.Processes[i]
	}
	return out
}

func byIndex(p *control.Process) map[uint32]*control.Queue {
	out := make(map[uint32]*control.Queue, len(p.Queues))
	for i := range p.Queues {
		out[p.Queues[i].Index] = &p.Queues[i]
	}
	return out
}

func queueEvent(change string, p *control.Process, q control.Queue) event {
	return newEvent("queue", QueueEvent{
		Change: change, Handle: upstream.HandleText(upstream.HandleOf(p.Session, q.Index)), PID: p.PID, Session: p.Session, Queue: q,
	})
}

func processEvent(change string, p *control.Process) event {
	alone := *p
	alone.Queues = []control.Queue{}
	full := newEvent("process", ProcessEvent{change, alone})
	out := newEvent("process", ProcessEvent{change, alone.For(control.Nobody)})
	out.full, out.user = full.data, p.Owner
	return out
}

// hints are the fields of a process whose change is an event; counters are not.
type hints struct {
	said            control.Hints
	nice            int
	priority        int32
	held, together  bool // by hand, with its group
	attached        bool
	command, reason string
	pod, class      string
}

func podOf(p *control.Process) string {
	return control.PodName(p.Namespace, p.Pod, p.PodContainer)
}

func hintsOf(p *control.Process) hints {
	return hints{p.Hints, p.Nice, p.Priority, p.Held, p.GroupHeld, p.Attached, p.Command, p.PriorityReason, podOf(p), p.Class}
}

// state is the fields of a queue whose change is an event.
type state struct {
	busy          bool
	state, reason string
	level         int
	slice, own    int64
	said          control.Hints
}

func stateOf(q control.Queue) state {
	return state{q.Busy, q.State, q.LevelReason, q.Level, q.SliceUS, q.OwnSliceUS, q.Hints}
}
