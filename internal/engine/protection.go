// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"slices"
	"time"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// This file accounts what protection gains each process and what it costs the queues below
// (policy.Protection). A process has an account on a device from its first request there beside a
// queue of lower rank.

// maxProtected bounds the changes that nobody has asked for.
const maxProtected = 64

// protect reports a change of a queue to the account of its process.
func (e *Engine) protect(now model.Time, r *record, busy bool, fed time.Duration) {
	d := r.dev
	if busy {
		if r.protection == nil {
			r.protection = d.newProtection(now, r)
		}
		if r.protection != nil && !r.working {
			d.account(now)
			r.working = true
			r.protection.Begin(now)
		}
		return
	}
	if p := r.protection; p != nil && r.working {
		fed = min(fed, now.Sub(d.queue(r).ChangedAt))
		d.account(now)
		r.working = false
		// A latency target has its own control, and must not suffer from a trial.
		if p.End(now, fed, d.cfg.NativeSlice, !r.hint.SLO.Said()) {
			e.reportProtection(now, d, p)
		}
	}
}

func (e *Engine) reportProtection(now model.Time, d *device, p *policy.Protection) {
	if len(e.protected) < maxProtected {
		e.protected = append(e.protected, p.Status(now, d.id))
	}
}

// checkNative protects the processes again whose time of native sharing is over, and returns when the
// next one's is.
func (e *Engine) checkNative(now model.Time, d *device) model.Time {
	next := model.Never
	if len(d.protections) == 0 {
		return next
	}
	for _, r := range d.records {
		p := r.protection
		if p == nil || !p.Native {
			continue
		}
		if p.Expire(now) {
			e.reportProtection(now, d, p)
		}
		next = min(next, p.NativeUntil())
	}
	return next
}

// voidRequests excludes the requests in progress from accounts that assume another state than the one
// in force: no order of queues, or native sharing where a queue of another process prevents it.
func (d *device) voidRequests() {
	if len(d.protections) == 0 {
		return
	}
	ordered := d.ordered()
	rank, native := d.view.NativeRank()
	for i, r := range d.records {
		if p := r.protection; p != nil && r.working && (!ordered || p.Native && !(native && d.view.Queues[i].Rank == rank)) {
			p.Void()
		}
	}
}

// ordered reports that higher queues run before lower ones.
func (d *device) ordered() bool { return d.cfg.Mode != model.ModeOff && d.policy.Protects() }

// newProtection returns the account of a queue's process, nil if it has none: nobody is below it, or
// the policy knows no order.
func (d *device) newProtection(now model.Time, r *record) *policy.Protection {
	n := len(d.view.Queues)
	if d.stale || n < 2 || !d.ordered() {
		return nil
	}
	q := d.queue(r)
	if q.PID <= 0 || d.view.Queues[n-1].Rank >= q.Rank {
		return nil
	}
	p := d.protections[q.PID]
	if p == nil {
		p = policy.NewProtection(q.PID, now)
		if d.protections == nil {
			d.protections = make(map[int]*policy.Protection)
		}
		d.protections[q.PID] = p
	}
	return p
}

// leaveProtection ends a queue's part in the account of its process.
func (r *record) leaveProtection() {
	if r.protection != nil && r.working {
		r.protection.Leave()
	}
	r.protection, r.working = nil, false
}

// forgetProtections drops the accounts of processes without queues; pids has those in the view.
func (d *device) forgetProtections(pids map[int]int) {
	for pid, p := range d.protections {
		_, known := pids[pid]
		if !known && !slices.ContainsFunc(d.parked, func(r *record) bool { return r.protection == p }) {
			delete(d.protections, pid)
			d.blockers = slices.DeleteFunc(d.blockers, func(o *policy.Protection) bool { return o == p })
		}
	}
}

// lowsChanged reports a new queue of a process to the accounts of the others.
func (d *device) lowsChanged(now model.Time, pid int) {
	for _, p := range d.protections {
		if p.PID != pid {
			p.LowsChanged(now)
		}
	}
}

// blockage finds the queues that keep all lower ones from progressing.
type blockage struct {
	first, end int // the ready queues of the highest rank are in [first, end)
	seen       bool
	top        model.Priority

	lows                  int // processes with work below them
	process               int // of the last one
	progress, lowProgress bool
	waits, lowWaits       bool
}

// add counts a queue; they come in order.
func (b *blockage) add(i int, q *policy.Queue) {
	if !q.Ready {
		return
	}
	if !b.seen {
		b.seen, b.first, b.top, b.process = true, i, q.Rank, -1
	}
	if q.Rank == b.top {
		b.end = i + 1
		b.progress, b.waits = b.progress || q.Progressing, b.waits || !q.Progressing
		return
	}
	if q.Process != b.process {
		b.lows, b.process = b.lows+1, q.Process
	}
	b.lowProgress, b.lowWaits = b.lowProgress || q.Progressing, b.lowWaits || !q.Progressing
}

// setBlockers puts the result in force. Lows that nobody with work keeps from progressing still wait
// for the last one that did: they stay suspended for a moment.
func (d *device) setBlockers(b *blockage) {
	switch {
	case len(d.protections) == 0 || !d.ordered():
		d.blocked = false
		return
	case b.lowWaits && !b.lowProgress:
		d.blocked = true
	case b.waits && !b.progress && !b.lowProgress:
		d.blocked = true
		return
	default:
		d.blocked = false
	}
	if b.lows == 0 {
		return
	}
	d.blockers = d.blockers[:0]
	for i := b.first; i < b.end; i++ {
		p := d.records[i].protection
		if n := len(d.blockers); p == nil || !d.view.Queues[i].Ready || n > 0 && d.blockers[n-1] == p {
			continue // the queues of a process are adjacent
		}
		p.Beside(b.lows)
		d.blockers = append(d.blockers, p)
	}
}

// chargeBlockers accounts the time since the last call.
func (d *device) chargeBlockers(now model.Time, elapsed time.Duration) {
	if !d.blocked || len(d.blockers) == 0 {
		return
	}
	for _, p := range d.blockers {
		p.Block(now, elapsed/time.Duration(len(d.blockers)))
	}
}

// Protections returns what protection gains and costs, by device and process; pid 0 means all.
func (e *Engine) Protections(now model.Time, pid int) []policy.ProtectionStatus {
	var out []policy.ProtectionStatus
	if pid != 0 {
		for _, d := range e.devicesOf(pid) {
			if p := d.protections[pid]; p != nil {
				out = append(out, p.Status(now, d.id))
				d.submissions(out[len(out)-1:])
			}
		}
		return out
	}
	for _, d := range e.devices {
		from := len(out)
		for _, p := range d.protections {
			out = append(out, p.Status(now, d.id))
		}
		slices.SortFunc(out[from:], func(a, b policy.ProtectionStatus) int { return cmp.Compare(a.PID, b.PID) })
		d.submissions(out[from:])
	}
	return out
}

// submissions adds to each status, in order of PIDs, what is known about the queue of its process with the most requests.
func (d *device) submissions(all []policy.ProtectionStatus) {
	if len(all) == 0 {
		return
	}
	for _, r := range d.records {
		if r.protection == nil {
			continue
		}
		i, found := slices.BinarySearchFunc(all, r.protection.PID, func(s policy.ProtectionStatus, pid int) int { return cmp.Compare(s.PID, pid) })
		if !found {
			continue
		}
		if s := r.segments.State(); s.Known >= all[i].Segments.Known {
			all[i].Segments, all[i].Sharing = s, model.SharingNone
			if r.parked == nil {
				all[i].Sharing = d.queue(r).Verdict.Sharing
			}
		}
	}
}

// Protected returns the processes whose protection was dropped or resumed since the last call.
func (e *Engine) Protected() []policy.ProtectionStatus {
	out := e.protected
	e.protected = nil
	return out
}
