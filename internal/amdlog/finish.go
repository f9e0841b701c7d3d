// SPDX-License-Identifier: Apache-2.0

package amdlog

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// finish builds the result.
func (a *analysis) finish() *Log {
	l := a.log
	l.Prefixes, l.Levels = map[string]uint64{}, map[string]uint64{}
	for i, n := range a.eras {
		if n > 0 {
			l.Prefixes[Era(i).String()] = n
		}
	}
	for i, n := range a.levels {
		if n > 0 {
			l.Levels[strconv.Itoa(i)] = n
		}
	}
	l.Processes = []*Process{}
	// One kernel may leave several records; those without a process count by the log's basis.
	switch {
	case l.Dispatches > 0:
		l.Kernels = a.loose.dispatches
	case l.Launches > 0:
		l.Kernels = a.loose.launches
	default:
		l.Kernels = a.loose.commands
	}
	for _, p := range a.processes {
		l.Processes = append(l.Processes, a.result(p))
		l.Kernels += p.out.Kernels
	}
	slices.SortFunc(l.Processes, func(x, y *Process) int {
		return cmp.Or(cmp.Compare(y.Kernels, x.Kernels), cmp.Compare(x.PID, y.PID))
	})
	for i, p := range l.Processes {
		if i == 0 {
			l.FirstUS, l.LastUS = p.FirstUS, p.LastUS
		}
		l.FirstUS, l.LastUS = min(l.FirstUS, p.FirstUS), max(l.LastUS, p.LastUS)
	}
	return l
}

func (a *analysis) result(p *process) *Process {
	out := &p.out
	out.Threads, out.Dispatches = len(p.threads), p.dispatch.count
	switch {
	case p.dispatch.count > 0:
		out.Activity, out.Basis = a.activity(&p.dispatch), basisDispatch
	case p.launch.count > 0:
		out.Activity, out.Basis = a.activity(&p.launch), basisLaunch
	case p.command.count > 0:
		out.Activity, out.Basis = a.activity(&p.command), basisCommand
		out.TopKernels = nil // a command has no name
	}
	for text, n := range p.failures {
		call, err, _ := strings.Cut(text, returnedMark)
		out.Failures = append(out.Failures, Failure{call, err, n})
	}
	slices.SortFunc(out.Failures, func(x, y Failure) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), cmp.Compare(x.Call+x.Error, y.Call+y.Error))
	})
	for object, n := range p.streams {
		out.Streams = append(out.Streams, StreamCount{hex(object), n})
	}
	slices.SortFunc(out.Streams, func(x, y StreamCount) int {
		return cmp.Or(cmp.Compare(y.Kernels, x.Kernels), cmp.Compare(x.Queue, y.Queue))
	})
	out.Streams = slices.Clip(out.Streams[:min(len(out.Streams), topCount)])
	if p.rings {
		maps.Copy(p.queues, p.deleted)
	}
	out.Queues = []*Queue{}
	for _, q := range p.queues {
		q.out.Activity = a.activity(&q.activity)
		q.out.Lag = q.lag.Distribution()
		for _, s := range q.swq {
			q.out.SWq = append(q.out.SWq, hex(s))
		}
		out.Queues = append(out.Queues, &q.out)
	}
	slices.SortFunc(out.Queues, func(x, y *Queue) int {
		return cmp.Or(cmp.Compare(y.Kernels, x.Kernels), cmp.Compare(x.HWq, y.HWq))
	})
	if out.Life == nil {
		out.Life = []QueueEvent{}
	}
	if !p.rings {
		for i, e := range out.Life {
			if e.Kind == "deleted" && !slices.ContainsFunc(out.Queues, func(q *Queue) bool { return q.HWq == e.HWq }) {
				out.Life[i].HWq = "" // the address is that of the software queue
			}
		}
	}
	return out
}

func (a *analysis) activity(t *activity) Activity {
	out := Activity{Kernels: t.count, TimeJumps: t.jumps, Intervals: t.intervals.Distribution(), Timeline: t.line.result()}
	if span := t.intervals.Sum(); span > 0 {
		out.RateHz = float64(t.intervals.N()) / span * 1e6
	}
	for id, n := range t.names {
		out.TopKernels = append(out.TopKernels, KernelCount{a.nameOf(id), n})
		if id >= 0 {
			out.Names++
		}
	}
	slices.SortFunc(out.TopKernels, func(x, y KernelCount) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), cmp.Compare(x.Name, y.Name))
	})
	out.TopKernels = slices.Clip(out.TopKernels[:min(len(out.TopKernels), topCount)])
	if t.items.N() > 0 || t.without > 0 {
		g := &Grids{Items: t.items.Distribution(), Distinct: len(t.grids), Without: t.without}
		for k, n := range t.grids {
			g.Top = append(g.Top, GridCount{k.grid, k.group, n})
		}
		slices.SortFunc(g.Top, func(x, y GridCount) int {
			return cmp.Or(cmp.Compare(y.Count, x.Count), slices.Compare(x.Grid[:], y.Grid[:]), slices.Compare(x.Workgroup[:], y.Workgroup[:]))
		})
		g.Top = slices.Clip(g.Top[:min(len(g.Top), topCount)])
		out.Grids = g
	}
	return out
}

func (a *analysis) nameOf(id int32) string {
	switch id {
	case noName:
		return "(not named)"
	case otherName:
		return "(others)"
	}
	return a.nameList[id]
}

func priorityName(p int32) string {
	switch p {
	case 0:
		return "low"
	case 1:
		return "normal"
	case 2:
		return "high"
	case -1:
		return ""
	}
	return strconv.Itoa(int(p))
}

func hex(v uint64) string { return fmt.Sprintf("0x%x", v) }
