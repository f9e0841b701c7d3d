// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"xsched/internal/alert"
	"xsched/internal/control"
	"xsched/internal/daemon"
	"xsched/internal/identity"
)

// alertServer is an address for alerts.
func alertServer(t *testing.T) (url string, posts <-chan alert.Alert) {
	got := make(chan alert.Alert, 100)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var a alert.Alert
		if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
			t.Error(err)
		}
		got <- a
	}))
	t.Cleanup(server.Close)
	return server.URL, got
}

// TestAlerts: an error of the driver of each of two GPUs reaches a real command and a real server, once; a test alert
// only of the administrator. A command that hangs delays neither requests nor the end.
func TestAlerts(t *testing.T) {
	w := newWorld(t)
	helper, hang, command := filepath.Join(w.dir, "helper"), filepath.Join(w.dir, "hang"), filepath.Join(w.dir, "alert")
	text := strings.Replace(sensorHelper, `echo '{"xid":31`, `echo '{"xid":31,"id":"0000:01:00.0"}'; echo '{"xid":31`, 1)
	script := "#!/bin/sh\ncd " + w.dir + "\ncat >>alerts.json\nls /proc/self/fd >fds\n[ ! -e stuck ] || sleep 1000\n"
	if err := errors.Join(os.WriteFile(helper, []byte(text), 0o700), os.WriteFile(command, []byte(script), 0o700)); err != nil {
		t.Fatal(err)
	}
	url, posts := alertServer(t)
	stop := w.serve(t, func(o *daemon.Options) {
		o.Sensors = func() (string, []string, error) { return helper, append(os.Environ(), "HANG="+hang), nil }
		o.Alerts = alert.Options{Command: command, URL: url}
	})
	got := map[string]alert.Alert{}
	for range 2 {
		select {
		case a := <-posts:
			got[a.Subject.GPU] = a
		case <-time.After(20 * time.Second):
			t.Fatalf("only %+v", got)
		}
	}
	host, _ := os.Hostname()
	for _, gpu := range []string{"0000:01:00.0", "0000:02:00.0"} {
		if a := got[gpu]; a.Kind != alert.Xid || a.State != alert.Firing || a.Host != host || !strings.Contains(a.Text, "Xid 31 on "+gpu) {
			t.Errorf("%s: %+v", gpu, a)
		}
	}
	c := w.daemon.Control()
	_, err := c.AlertTest(ctx, control.Caller{User: identity.OnHost(4242)}, control.AlertTest{})
	wantError(t, err, control.ErrNotAllowed)
	_, err = c.AlertTest(ctx, control.Caller{User: identity.User{Container: "docker-a"}, Admin: true}, control.AlertTest{})
	wantError(t, err, control.ErrNotAllowed)
	if _, err := w.ctl.AlertTest(ctx); err != nil {
		t.Error(err)
	}
	if a := <-posts; a.Kind != "test" {
		t.Errorf("%+v", a)
	}
	all, err := os.ReadFile(filepath.Join(w.dir, "alerts.json"))
	if err != nil || bytes.Count(all, []byte("\n")) != 3 {
		t.Errorf("%s, %v", all, err)
	}
	alone := exec.CommandContext(t.Context(), "ls", "/proc/self/fd")
	if want, err := alone.Output(); err != nil {
		t.Error(err)
	} else if fds, _ := os.ReadFile(filepath.Join(w.dir, "fds")); !bytes.Equal(fds, want) {
		t.Errorf("the command has files of the daemon: %q instead of %q", fds, want)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "stuck"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = w.ctl.AlertTest(ctx) }()
	<-posts
	began := time.Now()
	if s, err := w.ctl.Stats(ctx); err != nil || s.Alerts == nil || s.Alerts.Sent != 3 || s.Alerts.Lost != 0 || time.Since(began) > 5*time.Second {
		t.Errorf("%+v, %v after %v", s.Alerts, err, time.Since(began))
	}
	began = time.Now()
	if err := stop(); err != nil || time.Since(began) > 5*time.Second {
		t.Errorf("the end took %v, %v", time.Since(began), err)
	}
}

// TestFaultAlerts: a device that hangs for two programs is an alert about each of them.
func TestFaultAlerts(t *testing.T) {
	w := newWorld(t)
	url, posts := alertServer(t)
	w.serve(t, func(o *daemon.Options) { o.Alerts.URL = url })
	for i := range 2 {
		pid := startProgram(t, "app", w.vgpuPath(), w.sockPath()).Process.Pid
		await(t, "level 3", func() bool {
			l, err := w.ctl.List(ctx)
			n := len(l.Processes)
			return err == nil && n == i+1 && len(l.Processes[n-1].Queues) == 1 && l.Processes[n-1].Queues[0].Level == 3
		})
		if err := w.device.SetFault(fmt.Sprintf("never-answer:%d", pid)); err != nil {
			t.Fatal(err)
		}
		if _, err := w.ctl.Suspend(ctx, pid); err != nil {
			t.Fatal(err)
		}
		select {
		case a := <-posts:
			if a.Kind != alert.Fault || a.Subject.PID != pid || a.Subject.Name != "app" || a.Subject.User == "" || a.Subject.GPU != "0000:01:00.0" || !strings.Contains(a.Text, "does not return") {
				t.Errorf("%+v", a)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("no alert about %d", pid)
		}
	}
}

// TestSLOConditions: two services that miss their targets are two conditions, a third one with a generous target is
// none. internal/alert TestConditions has what follows from them.
func TestSLOConditions(t *testing.T) {
	w := newWorld(t)
	w.serve(t, nil)
	want := map[int]bool{}
	for i := range 3 {
		p := startProgram(t, "app", w.vgpuPath(), w.sockPath())
		target := new(int64(1))
		if i == 2 {
			target = new(int64(time.Hour.Microseconds()))
		} else {
			want[p.Process.Pid] = true
		}
		await(t, "hint", func() bool {
			_, err := w.ctl.Hint(ctx, control.HintRequest{PID: p.Process.Pid, SLOUS: target})
			return err == nil
		})
		await(t, "requests", func() bool { // a busy machine may miss some
			if _, err := p.in.WriteString("request\n"); err != nil {
				t.Fatal(err)
			}
			l, err := w.ctl.List(ctx)
			return err == nil && slices.ContainsFunc(l.Processes, func(x control.Process) bool {
				return x.PID == p.Process.Pid && x.SLO != nil && x.SLO.Met+x.SLO.Missed > 0
			})
		})
	}
	all, err := w.daemon.SLOConditions(ctx)
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, c := range all {
		a := c.Alert
		if c.Owner == "" || a.Kind != alert.SLO || !want[a.Subject.PID] || a.Subject.Name != "app" || !strings.Contains(a.Text, "misses its SLO of 1µs: 0.0% of its requests meet it, 99% should") {
			t.Errorf("%+v", c)
		}
		delete(want, a.Subject.PID)
	}
}

// A daemon without receivers says so, and one with a receiver that others can change does not start.
func TestNoAlerts(t *testing.T) {
	w := newWorld(t)
	w.serve(t, nil)
	_, err := w.ctl.AlertTest(ctx)
	wantError(t, err, control.ErrInvalid, "alerts.command")
	if s, err := w.ctl.Stats(ctx); err != nil || s.Alerts != nil {
		t.Errorf("%+v, %v", s.Alerts, err)
	}
	o := options(t.TempDir())
	o.Alerts.Command = "alert"
	_, err = daemon.Start(o)
	wantError(t, err, control.ErrInvalid, "absolute")
}
