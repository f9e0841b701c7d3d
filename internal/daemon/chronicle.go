// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"time"

	"xsched/internal/clock"
	"xsched/internal/control"
	"xsched/internal/health"
	"xsched/internal/history"
	"xsched/internal/identity"
	"xsched/internal/journal"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/record"
)

// chronicle is what the daemon remembers: who used the GPUs, and what happened.
type chronicle struct {
	trace   *record.Trace
	history *history.History
	journal *journal.Journal
	faults  faults
	threads threads
}

const (
	takeTime      = 100 * time.Millisecond // between two readings of the trace
	auditFileTime = 500 * time.Millisecond // for the last entries at the end
)

// newChronicle opens the audit log, if one is configured.
func (d *Daemon) newChronicle() error {
	c := &d.chronicle
	c.trace = record.NewTrace()
	c.history = history.New(c.trace, clock.Now())
	var file *journal.File
	if d.opts.Audit != "" {
		var err error
		if file, err = journal.OpenFile(d.opts.Audit, d.log); err != nil {
			if !d.opts.AuditOptional {
				return err
			}
			d.log.Warn("no audit log", "err", err)
		}
	}
	c.journal = journal.New(journal.Options{
		Clock: time.Now, Admin: d.access.administers, File: file,
		Render: func(e *journal.Entry) control.JournalEntry { return d.render(e, everything) },
	})
	d.onClose(func() {
		c.journal.Report()
		if file != nil {
			file.Close(auditFileTime)
		}
	})
	return nil
}

// remember runs the chronicle until ctx ends.
func (d *Daemon) remember(ctx context.Context, part *health.Part) {
	c := &d.chronicle
	tick := time.NewTicker(takeTime)
	defer tick.Stop()
	second, report := int64(clock.Now())/int64(time.Second), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		part.Beat()
		now := clock.Now()
		if s := int64(now) / int64(time.Second); s != second {
			second = s
			d.sample(ctx)
		} else {
			c.history.Take(now)
		}
		if time.Since(report) >= journal.ReportPeriod {
			report = time.Now()
			c.journal.Report()
		}
	}
}

// sample adds a point to the history and moves preemptions and faults to the journal.
func (d *Daemon) sample(ctx context.Context) {
	c := &d.chronicle
	var programs []loop.ClientView
	if d.server.Sessions() > 0 {
		var err error
		if programs, err = d.sessions(ctx); err != nil {
			return // the loop is blocked: the next sample fills the gap
		}
	}
	c.history.Sample(clock.Now(), programs)
	pairs, rest := c.history.Preemptions()
	entries := d.preemptions(pairs)
	if rest.Pairs > 0 {
		entries = append(entries, journal.Entry{
			Time: time.Now(), Kind: control.JournalPreemption, Duration: rest.Time, Count: rest.Count,
			Detail: fmt.Sprintf("%d more pairs of programs", rest.Pairs),
		})
	}
	c.journal.AddPreemptions(entries)
	d.findFaults(programs)
	c.threads.sample(programs)
}

// preemptions returns the entries of pairs. A group is suspended as a whole, so its programs in one container
// have one entry together: it has the most suspensions and the longest time of them.
func (d *Daemon) preemptions(pairs []history.Preemption) []journal.Entry {
	offset := unixOffset()
	entries := make([]journal.Entry, 0, len(pairs)+1)
	type container struct {
		group string
		user  identity.User
		space uint64 // of PIDs
	}
	groups := map[container]int{}
	for i := range pairs {
		p := &pairs[i]
		e := journal.Entry{
			Time: offset.time(p.At), Kind: control.JournalPreemption, Program: d.programOf(&p.Victim), By: d.programOf(&p.By),
			Hand: p.Hand, Yield: p.Yield, Duration: p.Time, Count: p.Count, Device: p.Device.String(),
		}
		if p.Group {
			e.Group, e.Detail = true, d.terms.groupOf(&p.Victim)
			of := container{e.Detail, p.Victim.User, p.Victim.PIDNamespace}
			if at, known := groups[of]; known {
				first := &entries[at]
				if e.Time.After(first.Time) {
					first.Time = e.Time
				}
				first.Count, first.Duration = max(first.Count, e.Count), max(first.Duration, e.Duration)
				if first.Device != e.Device {
					first.Device = ""
				}
				continue
			}
			groups[of] = len(entries)
		}
		entries = append(entries, e)
	}
	return entries
}

func (d *Daemon) programOf(i *loop.Identity) journal.Program {
	return journal.Program{PID: i.PID, PIDNamespace: i.PIDNamespace, LocalPID: i.LocalPID, User: i.User, Name: control.TenantName(i.Command), Pod: d.terms.podName(i)}
}

// joined records a new session.
func (d *Daemon) joined(who loop.Identity) {
	d.chronicle.history.Joined(who)
	detail := ""
	if who.Attached {
		detail = "attached"
	}
	d.chronicle.journal.Add(who.User, journal.Entry{Kind: control.JournalJoined, Program: d.programOf(&who), Detail: detail})
}

// ended records the end of a session.
func (d *Daemon) ended(who loop.Identity, why string) {
	d.chronicle.history.Left(clock.Now(), who)
	d.chronicle.journal.Add(who.User, journal.Entry{Kind: control.JournalLeft, Program: d.programOf(&who), Detail: why})
}

// offset converts times of the engine to the Unix clock.
type offset int64

func unixOffset() offset { return offset(time.Now().UnixNano() - int64(clock.Now())) }

func (o offset) ns(t model.Time) int64       { return int64(t) + int64(o) }
func (o offset) time(t model.Time) time.Time { return time.Unix(0, o.ns(t)) }
