// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	log    *slog.Logger
	access *access
	terms  *terms
	users  *userNames

	trace   *record.Trace
	history *history.History
	journal *journal.Journal
	usage   *usage
	alerts  *alerts
	faults  faults
	threads threads
}

const (
	takeTime      = 100 * time.Millisecond // between two readings of the trace
	auditFileTime = 500 * time.Millisecond // for the last entries at the end
)

// open opens the audit log, if the options name a file. end closes it.
func (h *chronicle) open(o *Options) (end func(), err error) {
	h.trace = record.NewTrace()
	h.history = history.New(h.trace, clock.Now())
	var file *journal.File
	if o.Audit != "" {
		if file, err = journal.OpenFile(o.Audit, h.log); err != nil {
			if !o.AuditOptional {
				return nil, err
			}
			h.log.Warn("no audit log", "err", err)
		}
	}
	h.journal = journal.New(journal.Options{
		Clock: time.Now, Admin: h.access.administers, File: file,
		Render: func(e *journal.Entry) control.JournalEntry { return h.render(e, everything) },
	})
	return func() {
		h.journal.Report()
		if file != nil {
			file.Close(auditFileTime)
		}
	}, nil
}

// run samples the programs and moves events to the journal, until ctx ends.
func (h *chronicle) run(ctx context.Context, part *health.Part) {
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
			h.sample(ctx)
		} else {
			h.history.Take(now)
		}
		if time.Since(report) >= journal.ReportPeriod {
			report = time.Now()
			h.journal.Report()
		}
	}
}

// sample adds a point to the history and moves preemptions and faults to the journal.
func (h *chronicle) sample(ctx context.Context) {
	var programs []loop.ClientView
	if h.access.server.Sessions() > 0 {
		var err error
		if programs, err = h.access.sessions(ctx); err != nil {
			return // the loop is blocked: the next sample fills the gap
		}
	}
	h.usage.sample(programs)
	h.history.Sample(clock.Now(), programs)
	pairs, rest := h.history.Preemptions()
	entries := h.preemptions(pairs)
	if rest.Pairs > 0 {
		entries = append(entries, journal.Entry{
			Time: time.Now(), Kind: control.JournalPreemption, Duration: rest.Time, Count: rest.Count,
			Detail: fmt.Sprintf("%d more pairs of programs", rest.Pairs),
		})
	}
	h.journal.AddPreemptions(entries)
	h.moves(ctx)
	h.hostLimits(ctx, programs)
	h.faults.find(h, programs)
	h.threads.sample(h.log, programs)
	h.alerts.review(programs)
}

// preemptions returns the entries of pairs. A group is suspended as a whole, so its programs in one container
// have one entry together: it has the most suspensions and the longest time of them.
func (h *chronicle) preemptions(pairs []history.Preemption) []journal.Entry {
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
			Time: offset.time(p.At), Kind: control.JournalPreemption, Program: h.programOf(&p.Victim), By: h.programOf(&p.By),
			Hand: p.Hand, Yield: p.Yield, Duration: p.Time, Count: p.Count, Device: p.Device.String(),
		}
		if p.Group {
			e.Group, e.Detail = true, h.terms.groupOf(&p.Victim)
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

func (h *chronicle) programOf(i *loop.Identity) journal.Program {
	return journal.Program{PID: i.PID, PIDNamespace: i.PIDNamespace, LocalPID: i.LocalPID, User: i.User, Name: control.TenantName(i.Command), Pod: h.terms.podName(i)}
}

// joined records a new session.
func (h *chronicle) joined(who loop.Identity) {
	h.history.Joined(who)
	h.usage.joined(who)
	detail := ""
	if who.Attached {
		detail = "attached"
	}
	h.journal.Add(who.User, journal.Entry{Kind: control.JournalJoined, Program: h.programOf(&who), Detail: detail})
}

// ended records the end of a session.
func (h *chronicle) ended(who loop.Identity, why string) {
	h.history.Left(clock.Now(), who)
	h.journal.Add(who.User, journal.Entry{Kind: control.JournalLeft, Program: h.programOf(&who), Detail: why})
}

// offset converts times of the engine to the Unix clock.
type offset int64

func unixOffset() offset { return offset(time.Now().UnixNano() - int64(clock.Now())) }

func (o offset) ns(t model.Time) int64       { return int64(t) + int64(o) }
func (o offset) time(t model.Time) time.Time { return time.Unix(0, o.ns(t)) }

// Audit enters a change of a setting in the journal. The zero Caller with the daemon's user stands
// for the daemon itself.
func (h *chronicle) Audit(c control.Caller, what, before, after string) {
	h.audit(c, journal.Entry{What: what, Before: before, After: after})
}

func (h *chronicle) audit(c control.Caller, e journal.Entry) {
	e.Kind = control.JournalChange
	e.By = journal.Program{PID: c.PID, PIDNamespace: c.PIDNamespace, User: c.User}
	if c.PIDNamespace == 0 {
		e.By.LocalPID = c.PID // the daemon does not know the number in another namespace
	}
	h.journal.Add(c.User, e)
}

// refused enters a request that failed for lack of permission.
func (h *chronicle) refused(c control.Caller, what string, err error) {
	var refusal *control.Error
	if errors.As(err, &refusal) && errors.Is(err, control.ErrNotAllowed) {
		h.audit(c, journal.Entry{What: changeRefused, Before: what, After: refusal.Cause})
	}
}
