// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/daemon"
	"xsched/internal/identity"
	"xsched/internal/journal"
)

// texts returns the entries of a kind without what differs between runs.
func texts(t *testing.T, c control.Control, caller control.Caller, pid int, kind string) string {
	t.Helper()
	j, err := c.Journal(ctx, caller, control.JournalRequest{Max: control.JournalMax})
	if err != nil || j.Missed != 0 {
		t.Fatalf("%+v, %v", j, err)
	}
	var b strings.Builder
	for _, e := range j.Entries {
		if e.Kind == kind {
			fmt.Fprintln(&b, strings.ReplaceAll(e.Text, fmt.Sprint(pid), "PID"))
		}
	}
	return b.String()
}

// Every change is in the journal and in the audit log: who, what, before, after.
func TestAudit(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(w.dir, "audit.log")
	stop := w.serve(t, func(o *daemon.Options) { o.Audit = file })
	app := startProgram(t, "app", w.vgpuPath(), w.sockPath())
	pid := app.Process.Pid
	await(t, "known", func() bool {
		l, err := w.ctl.List(ctx)
		return err == nil && len(l.Processes) == 1 && len(l.Processes[0].Queues) == 1 && l.Processes[0].Queues[0].Level == 3
	})
	c := w.daemon.Control()
	me := control.Caller{User: identity.OnHost(os.Getuid()), PID: os.Getpid()}
	other := control.Caller{User: identity.OnHost(4242), PID: 1}
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.Suspend(ctx, me, control.ProcessRequest{PID: pid}))
	must(c.Resume(ctx, me, control.ProcessRequest{PID: pid}))
	must(c.Resume(ctx, me, control.ProcessRequest{PID: pid})) // changes nothing
	must(c.Hint(ctx, me, control.HintRequest{PID: pid, Priority: new(int32(-7)), Utilization: new(30)}))
	must(c.Hint(ctx, me, control.HintRequest{PID: pid, SLOUS: new(int64(20_000)), Gang: new("ranks")}))
	must(c.Hint(ctx, me, control.HintRequest{PID: pid})) // only reads
	must(c.Policy(ctx, me, control.PolicyRequest{Name: "FIFO", QuantumUS: 4000}))
	must(c.Policy(ctx, me, control.PolicyRequest{})) // only reads
	must(c.Mode(ctx, me, control.ModeRequest{Mode: "level", Level: 2}))
	must(c.Mode(ctx, me, control.ModeRequest{Mode: "off", Device: "0000:01:00.0"}))
	_, err := c.Suspend(ctx, other, control.ProcessRequest{PID: pid})
	wantError(t, err, control.ErrNotAllowed)
	_, err = c.Mode(ctx, me, control.ModeRequest{Mode: "nope"}) // invalid: changes nothing, and is no question of rights
	wantError(t, err, control.ErrInvalid)
	w.daemon.Audit(me, "configuration", "a", "b")

	name := "root"
	if j, err := c.Journal(ctx, me, control.JournalRequest{}); err == nil {
		for _, e := range j.Entries {
			if e.Kind == control.JournalChange {
				name = e.User
				break
			}
		}
	}
	want := strings.ReplaceAll(`ROOT suspended app
ROOT resumed app
ROOT changed the hint of app from priority=0 utilization=0 to priority=-7 utilization=30
ROOT changed the hint of app from slo=none gang=none to slo=20ms gang=ranks
ROOT changed the policy from HPF quantum=QUANTUMus to FIFO quantum=4000us
ROOT changed the mode from live to level 2
ROOT changed the mode on 0000:01:00.0 from level 2 to off
uid 4242 was refused: process PID belongs to UID
ROOT changed the configuration from a to b
`, "ROOT", name)
	got := texts(t, c, me, pid, control.JournalChange)
	got = strings.ReplaceAll(got, fmt.Sprintf("belongs to uid %d", os.Getuid()), "belongs to UID")
	_, quantum, _ := strings.Cut(got, "HPF quantum=")
	quantum, _, _ = strings.Cut(quantum, "us")
	want = strings.ReplaceAll(want, "QUANTUM", quantum)
	if got != want {
		t.Errorf("journal:\n%swant\n%s", got, want)
	}
	// Another user sees the same without the program's name.
	hidden := strings.ReplaceAll(texts(t, c, other, pid, control.JournalChange), fmt.Sprintf("belongs to uid %d", os.Getuid()), "belongs to UID")
	if hidden != strings.ReplaceAll(want, "app", "process PID") {
		t.Errorf("seen by another user:\n%s", hidden)
	}
	if joined := texts(t, c, me, pid, control.JournalJoined); joined != "app joined\n" {
		t.Errorf("joined: %q", joined)
	}
	_ = app.Process.Kill()
	await(t, "departure", func() bool { return texts(t, c, me, pid, control.JournalLeft) != "" })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if broken, err := journal.ReadFiles(file, func(e control.JournalEntry) {
		if e.UID < 0 || e.TimeNS == 0 || e.ByPID == 0 {
			t.Errorf("incomplete: %+v", e)
		}
		fmt.Fprintln(&b, strings.ReplaceAll(e.Text, fmt.Sprint(pid), "PID"))
	}); broken != 0 || err != nil {
		t.Errorf("%d broken, %v", broken, err)
	}
	if got := strings.ReplaceAll(b.String(), fmt.Sprintf("belongs to uid %d", os.Getuid()), "belongs to UID"); got != want {
		t.Errorf("audit log:\n%swant\n%s", got, want)
	}
}

// A tenant that changes its hints without end fills neither the journal nor the audit log.
func TestAuditIsNotFlooded(t *testing.T) {
	w := newWorld(t)
	w.serve(t, nil)
	c := w.daemon.Control()
	tenant := control.Caller{User: identity.OnHost(4242), PID: 1}
	for range 500 {
		_, err := c.Policy(ctx, tenant, control.PolicyRequest{Name: "FIFO"})
		wantError(t, err, control.ErrNotAllowed)
	}
	j, err := c.Journal(ctx, control.Caller{User: identity.OnHost(0)}, control.JournalRequest{Max: control.JournalMax})
	if err != nil || len(j.Entries) < 10 || len(j.Entries) > 250 { // 40, and two per second
		t.Errorf("%d entries of 500 attempts, %v", len(j.Entries), err)
	}
}

// The history of a real program, as its owner and another user see it.
func TestHistoryOfAProgram(t *testing.T) {
	w := newWorld(t)
	w.serve(t, nil)
	app := startProgram(t, "app", w.vgpuPath(), w.sockPath())
	pid := app.Process.Pid
	c := w.daemon.Control()
	me := control.Caller{User: identity.OnHost(os.Getuid())}
	get := func(caller control.Caller) (spans []control.Span, h control.History) {
		h, err := c.History(ctx, caller, control.HistoryRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range h.Devices {
			spans = append(spans, d.Spans...)
		}
		return spans, h
	}
	await(t, "the program's work", func() bool {
		spans, _ := get(me)
		return len(spans) > 0 && spans[0].State == control.SpanRun
	})
	if _, err := c.Suspend(ctx, me, control.ProcessRequest{PID: pid}); err != nil {
		t.Fatal(err)
	}
	await(t, "suspended", func() bool {
		spans, _ := get(me)
		return spans[len(spans)-1].State == control.SpanPreempted
	})
	spans, h := get(me)
	if h.ToNS-h.FromNS < int64(50*time.Second) || h.StepNS != int64(time.Second) {
		t.Errorf("from %d to %d, step %d", h.FromNS, h.ToNS, h.StepNS)
	}
	for _, s := range spans {
		if s.PID != pid || s.Name != "app" || s.FromNS >= s.ToNS || s.ToNS > h.ToNS || s.FromNS < h.FromNS-int64(time.Second) {
			t.Errorf("%+v", s)
		}
	}
	foreign, _ := get(control.Caller{User: identity.OnHost(4242)})
	if len(foreign) == 0 || foreign[0].PID != pid || foreign[0].Name != "" {
		t.Errorf("another user sees %+v", foreign)
	}
	if _, boxed := get(control.Caller{User: identity.User{UID: 4242, Container: "/docker/x"}}); len(boxed.Devices) != 0 {
		t.Errorf("a container sees %+v", boxed.Devices)
	}
	if _, err := c.Resume(ctx, me, control.ProcessRequest{PID: pid}); err != nil {
		t.Fatal(err)
	}
	await(t, "the end of the suspension in the journal", func() bool {
		return strings.Contains(texts(t, c, me, pid, control.JournalPreemption), "app was suspended by hand for ")
	})
	await(t, "a point of the series", func() bool {
		_, h := get(me)
		return len(h.Devices) == 1 && len(h.Devices[0].Series) == 1 && len(h.Devices[0].Series[0].Share) == 60
	})
	for _, r := range []control.HistoryRequest{{Seconds: -1}, {Seconds: 3601}, {Device: "gpu"}} {
		_, err := c.History(ctx, me, r)
		wantError(t, err, control.ErrInvalid)
	}
	_, err := c.Journal(ctx, me, control.JournalRequest{Max: -1})
	wantError(t, err, control.ErrInvalid)
}
