// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"xsched/internal/alert"
	"xsched/internal/control"
	"xsched/internal/journal"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/sensor"
)

// alerts brings faults, and conditions that last, to the receivers of alerts.
type alerts struct {
	out      *alert.Alerts // nil: there are no receivers
	access   *access
	past     *chronicle
	values   func(model.DeviceID) *control.Sensors
	known    map[string]bool // GPUs that a driver listed since the start
	reviewed time.Time
}

const (
	alertsTime = 300 * time.Millisecond // for the end of the alert command at the daemon's end
	reviewTime = 5 * time.Second        // the figures of a thousand programs with an SLO take a while
)

// openAlerts checks the receivers and starts to send, until Close.
func (d *Daemon) openAlerts(past *chronicle) (err error) {
	past.alerts = &alerts{access: d.access, past: past, values: d.sensors.of, known: map[string]bool{}}
	o := d.opts.Alerts
	o.Log = d.log
	if past.alerts.out, err = alert.New(o); err != nil || past.alerts.out == nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	part := d.health.Add(alertsPart, alertsLimit, false)
	go func() {
		defer close(ended)
		past.alerts.out.Run(ctx, part)
	}()
	d.onClose(func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(alertsTime):
		}
	})
	return nil
}

// raise passes an entry of the journal on; who is nil if no program is concerned.
func (a *alerts) raise(kind string, who *loop.Identity, e journal.Entry, xid int) {
	if a.out != nil {
		owner, subject := a.subject(who, e.Device)
		subject.Xid = xid
		a.out.Happened(owner, alert.Alert{Kind: kind, Severity: alert.Warning, Subject: subject, Text: a.past.render(&e, everything).Text})
	}
}

// subject names a program and its GPU, and who counts for the alert.
func (a *alerts) subject(who *loop.Identity, device string) (owner string, s alert.Subject) {
	s.GPU = device
	if who == nil {
		return "", s
	}
	s.PID, s.Name, s.User = who.PID, control.TenantName(who.Command), a.past.users.of(who.User)
	return ownerText(who.User.Account()), s
}

// sensed takes an event of a GPU's sensors. A full memory is a condition, which review sees.
func (h *chronicle) sensed(e sensor.Event) {
	if entry := h.enterFault(nil, e.GPU.String(), e.Count, e.Text); e.Xid != 0 {
		h.alerts.raise(alert.Xid, nil, entry, e.Xid)
	}
}

// review reports the conditions that hold. It is called every second.
func (a *alerts) review(programs []loop.ClientView) {
	if a.out == nil || time.Since(a.reviewed) < reviewTime {
		return
	}
	a.reviewed = time.Now()
	a.out.Review(append(a.services(programs), a.hardware(a.past.usage.gpus.list())...))
}

// services returns the programs that miss their targets.
func (a *alerts) services(programs []loop.ClientView) (all []alert.Condition) {
	for i := range programs {
		p := &programs[i]
		if !p.Hint.SLO.Said() {
			continue
		}
		if level := serviceLevel(p, p.Latency()); level.Misses() {
			owner, subject := a.subject(&p.Identity, "")
			name := a.past.shown(everything, new(a.past.programOf(&p.Identity))).text
			all = append(all, alert.Condition{Owner: owner, Alert: alert.Alert{
				Kind: alert.SLO, Severity: alert.Warning, Subject: subject,
				Text: fmt.Sprintf("%s misses its SLO of %v: %.1f%% of its requests meet it, %g%% should", name, p.Hint.SLO.Latency, 100*level.Attainment, 100*level.Objective),
			}})
		}
	}
	return all
}

// hardware returns the conditions of GPUs, of which the drivers list some.
func (a *alerts) hardware(listed []string) (all []alert.Condition) {
	for _, gpu := range listed {
		a.known[gpu] = true
	}
	for gpu := range a.known {
		about := alert.Alert{Severity: alert.Warning, Subject: alert.Subject{GPU: gpu}}
		id, _ := model.ParseDeviceID(gpu)
		if !slices.Contains(listed, gpu) {
			about.Kind, about.Severity, about.Text = alert.GPU, alert.Critical, "the driver no longer lists GPU "+gpu
		} else if v := a.values(id); v != nil && v.MemoryLow {
			about.Kind, about.Text = alert.Memory, "the next allocation on GPU "+gpu+" may fail: "+v.MemoryText()
		} else {
			continue
		}
		all = append(all, alert.Condition{Alert: about})
	}
	return all
}

// stats returns nil without receivers.
func (a *alerts) stats() *control.AlertStats {
	if a.out == nil {
		return nil
	}
	sent, lost := a.out.Counts()
	return &control.AlertStats{Sent: sent, Lost: lost}
}

// AlertTest implements control.Control.
func (a *alerts) AlertTest(ctx context.Context, c control.Caller, r control.AlertTest) (control.AlertTest, error) {
	if err := a.access.owner(c, "alerts"); err != nil {
		return r, err
	}
	err := a.out.Test(ctx)
	if _, ok := errors.AsType[*control.Error](err); err == nil || ok {
		return r, err
	}
	return r, control.Errorf(control.ErrUnavailable, "", "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
}
