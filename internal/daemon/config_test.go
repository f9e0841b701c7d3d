// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"xsched/internal/config"
	"xsched/internal/control"
	"xsched/internal/daemon"
	"xsched/internal/engine"
	"xsched/internal/model"
)

// lines is a log that tests read.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// with returns the lines that have a word.
func (l *lines) with(word string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(strings.Split(l.text.String(), "\n"), func(s string) bool { return !strings.Contains(s, word) })
}

// configured makes a daemon read a text as its configuration, as the command line does.
func configured(t *testing.T, o *daemon.Options, text *string) {
	t.Helper()
	load := func() (daemon.Options, []string, error) {
		next := *o
		f, err := config.Parse("config.yaml", []byte(*text))
		if err != nil {
			return next, nil, err
		}
		policy, mode := "HPF", config.Mode{Mode: model.ModeLive}
		source := map[string]string{"policy": control.SourceDefault, "mode": control.SourceDefault}
		if f.Policy != nil {
			policy, source["policy"] = string(*f.Policy), control.SourceFile
		}
		if f.Mode != nil {
			mode, source["mode"] = *f.Mode, control.SourceFile
		}
		next.Policy, next.Mode, next.ModeLevel = policy, mode.Mode, mode.Level
		next.Config.Values = []control.ConfigValue{
			{Key: "policy", Value: policy, Source: source["policy"]}, {Key: "mode", Value: mode.String(), Source: source["mode"]},
		}
		if f.HTTP.Address != nil {
			next.Config.Values = append(next.Config.Values, control.ConfigValue{Key: "http.address", Value: string(*f.HTTP.Address), Source: control.SourceFile, Restart: true})
		}
		next.GPUs = map[model.DeviceID]engine.Setting{}
		for id, on := range f.GPUs {
			next.GPUs[model.DeviceID(id)] = engine.Setting{Policy: string(*on.Policy)}
			next.Config.Values = append(next.Config.Values, control.ConfigValue{Key: "gpus." + id.String() + ".policy", Value: string(*on.Policy), Source: control.SourceFile})
		}
		if next.Rules, err = f.Resolve("config.yaml"); err != nil {
			return next, nil, err
		}
		next.Config.Rules = nil
		for i := range f.Rules {
			next.Config.Rules = append(next.Config.Rules, control.ConfigRule{Name: f.Rules[i].Name, Match: f.Rules[i].Match.String(), Hints: f.Rules[i].Hints.String()})
		}
		return next, nil, nil
	}
	next, _, err := load()
	if err != nil {
		t.Fatal(err)
	}
	*o = next
	o.ConfigFile, o.Load = "config.yaml", load
}

func sourceOf(t *testing.T, w *world, key string) string {
	t.Helper()
	reply, err := w.ctl.Config(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range reply.Values {
		if v.Key == key {
			return v.Source + " " + v.Value
		}
	}
	return "none"
}

// TestReload: a new file changes policy, mode, GPUs and rules at once; a mistake in it changes nothing.
func TestReload(t *testing.T) {
	w, log := newWorld(t), &lines{}
	text := "policy: HPF\nhttp: {address: 'off'}\n"
	w.serve(t, func(o *daemon.Options) {
		o.Log = slog.New(slog.NewTextHandler(log, nil))
		configured(t, o, &text)
	})
	startProgram(t, "app", w.vgpuPath(), w.sockPath())
	await(t, "the program is known", func() bool { l, err := w.ctl.List(ctx); return err == nil && len(l.Processes) == 1 })
	text = "policy: fifo\nmode: level 1\ngpus: {0000:02:00.0: {policy: EDF}}\nhttp: {address: '127.0.0.1:1'}\nrules: [{match: {command: '*'}, hints: {priority: -3}}]\n"
	r, err := w.ctl.Reload(ctx)
	if err != nil || !slices.Equal(r.Changed, []string{"policy", "mode", "gpus.0000:02:00.0.policy", "rules"}) || !slices.Equal(r.Restart, []string{"http.address"}) {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := texts(t, w.daemon, control.Caller{}, -1, control.JournalChange); !strings.Contains(got, "changed the configuration from policy=HPF mode=") || !strings.Contains(got, " to policy=FIFO mode=level 1 ") {
		t.Errorf("journal: %s", got)
	}
	check := func(when string) {
		t.Helper()
		l, err := w.ctl.List(ctx)
		if err != nil || l.Policy != "FIFO" || l.Mode != "level" || l.ModeLevel != 1 || len(l.Devices) != 1 || l.Devices[0].Policy != "EDF" || l.Processes[0].Priority != -3 {
			t.Errorf("%s: %+v, %v", when, l, err)
		}
		if got := sourceOf(t, w, "http.address"); got != "file off" {
			t.Errorf("%s: http.address is %s", when, got)
		}
	}
	check("after the reload")
	for _, bad := range []string{"policy: NOPE\n", "policy: HPF\nrules: [{match: {user: no-such-user}, hints: {priority: 1}}]\n", "{", "mode: live\nx: 1\n"} {
		text = bad
		_, err := w.ctl.Reload(ctx)
		wantError(t, err, control.ErrInvalid, "config.yaml:")
		check(bad)
	}
	if n := len(log.with("not reloaded: nothing has changed")); n != 4 {
		t.Errorf("%d lines about 4 mistakes", n)
	}
	text = ""
	if r, err := w.ctl.Reload(ctx); err != nil || !slices.Contains(r.Changed, "rules") {
		t.Fatalf("%+v, %v", r, err)
	}
	if l, err := w.ctl.List(ctx); err != nil || l.Policy != "HPF" || l.Mode != "live" || len(l.Devices) != 0 || l.Processes[0].Priority != 0 {
		t.Errorf("the defaults again: %+v, %v", l, err)
	}
	_, err = w.daemon.Reload(ctx, control.Nobody, control.ReloadRequest{})
	wantError(t, err, control.ErrNotAllowed)
	_, err = w.daemon.Config(ctx, control.Nobody)
	wantError(t, err, control.ErrNotAllowed)
}

func TestReloadWithoutFile(t *testing.T) {
	w := newWorld(t)
	w.serve(t, nil)
	_, err := w.ctl.Reload(ctx)
	wantError(t, err, control.ErrInvalid, "no configuration file")
}

// TestLatestChangeWins: a run-time setting survives reloads and restarts of the same configuration, and
// ends with a new configured value, or when it is set to the configured one.
func TestLatestChangeWins(t *testing.T) {
	w := newWorld(t)
	text := "policy: HPF\n"
	file := filepath.Join(w.dir, "state.json")
	start := func() (stop func() error) {
		return w.serve(t, func(o *daemon.Options) { configured(t, o, &text); o.KeepFile = file })
	}
	stop := start()
	expect := func(want string) {
		t.Helper()
		if got := sourceOf(t, w, "policy"); got != want {
			t.Errorf("policy: %s, want %s", got, want)
		}
		p, err := w.ctl.Policy(ctx)
		if _, name, _ := strings.Cut(strings.TrimPrefix(want, "run "), " "); err != nil || p.Name != name {
			t.Errorf("%s is in force, want %s; %v", p.Name, name, err)
		}
	}
	set := func(name string) {
		t.Helper()
		if _, err := w.ctl.SetPolicy(ctx, control.PolicyRequest{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	restart := func() {
		t.Helper()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		stop = start()
	}
	expect("file HPF")
	set("fifo")
	expect("run time FIFO")
	if _, err := w.ctl.Reload(ctx); err != nil {
		t.Fatal(err)
	}
	expect("run time FIFO")
	restart()
	expect("state FIFO")
	text = "policy: EDF\n"
	if _, err := w.ctl.Reload(ctx); err != nil {
		t.Fatal(err)
	}
	expect("file EDF")
	set("fifo")
	set("edf")
	expect("file EDF")
	restart()
	expect("file EDF")
	set("fifo")
	text = "policy: UP\n"
	restart()
	expect("file UP")
	text = "policy: EDF\n"
	restart()
	expect("file EDF")
}

// TestKept: a restart keeps the settings of GPUs, and hints and suspension of a running program.
func TestKept(t *testing.T) {
	const gpu = "0000:02:00.0"
	w, log := newWorld(t), &lines{}
	file := filepath.Join(w.dir, "state.json")
	start := func() func() error {
		return w.serve(t, func(o *daemon.Options) { o.KeepFile, o.Log = file, slog.New(slog.NewTextHandler(log, nil)) })
	}
	stop := start()
	app := startProgram(t, "app", w.vgpuPath(), w.sockPath())
	known := func() bool { l, err := w.ctl.List(ctx); return err == nil && len(l.Processes) == 1 }
	await(t, "the program is known", known)
	pid := app.Process.Pid
	priority, slo := int32(-9), int64(5000)
	for _, err := range []error{
		second(w.ctl.SetPolicy(ctx, control.PolicyRequest{Name: "fifo", Device: gpu})),
		second(w.ctl.SetMode(ctx, control.ModeRequest{Mode: "level", Level: 1, Device: gpu})),
		second(w.ctl.SetPolicy(ctx, control.PolicyRequest{QuantumUS: 1234})),
		second(w.ctl.Hint(ctx, control.HintRequest{PID: pid, Priority: &priority, SLOUS: &slo})),
		second(w.ctl.Suspend(ctx, pid)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	saved, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(saved), `"held": true`) {
		t.Fatalf("%s, %v", saved, err)
	}
	again := func(when string, held bool) {
		t.Helper()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		stop = start()
		app.rejoin(t)
		await(t, "the program is known", known)
		l, err := w.ctl.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		p := l.Processes[0]
		if p.Held != held || p.Priority != -9 ||
			!slices.Equal(l.Devices, []control.DeviceSetting{{Device: gpu, Policy: "FIFO", Mode: "level", Level: 1}}) {
			t.Errorf("%s: %+v %+v", when, p, l.Devices)
		}
	}
	again("after a restart", true)
	if _, err := w.ctl.Resume(ctx, pid); err != nil {
		t.Fatal(err)
	}
	again("after resume and a restart", false)
	if p, err := w.ctl.Policy(ctx); err != nil || p.QuantumUS != 1234 {
		t.Errorf("%+v, %v", p, err)
	}
	// A corrupted file is set aside with one warning, and the daemon starts with the defaults.
	if err := errors.Join(stop(), os.WriteFile(file, []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	stop = start()
	if l, err := w.ctl.List(ctx); err != nil || len(l.Devices) != 0 {
		t.Errorf("%+v, %v", l, err)
	}
	if warnings := log.with("settings of the previous daemon are lost"); len(warnings) != 1 || !strings.Contains(warnings[0], ".bad") {
		t.Errorf("%q", warnings)
	}
}

// Of two requests at the same time, the file keeps what is in force.
func TestKeptOfConcurrentRequests(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(w.dir, "state.json")
	w.serve(t, func(o *daemon.Options) { o.KeepFile = file })
	app := startProgram(t, "app", w.vgpuPath(), w.sockPath())
	await(t, "the program is known", func() bool { l, err := w.ctl.List(ctx); return err == nil && len(l.Processes) == 1 })
	for round := range 50 {
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				if i%2 == 0 {
					_, _ = w.ctl.Suspend(ctx, app.Process.Pid)
				} else {
					_, _ = w.ctl.Resume(ctx, app.Process.Pid)
				}
			})
		}
		all.Wait()
		l, err := w.ctl.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		saved, err := os.ReadFile(file)
		if held := strings.Contains(string(saved), `"held": true`); err != nil || held != l.Processes[0].Held {
			t.Fatalf("round %d: held %v, kept %v, %v", round, l.Processes[0].Held, held, err)
		}
	}
}

// TestUnwritableState: one warning, and everything else works.
func TestUnwritableState(t *testing.T) {
	w, log := newWorld(t), &lines{}
	blocked := filepath.Join(w.dir, "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.serve(t, func(o *daemon.Options) {
		o.KeepFile, o.Log = filepath.Join(blocked, "state.json"), slog.New(slog.NewTextHandler(log, nil))
	})
	for i := range 3 {
		if _, err := w.ctl.SetPolicy(ctx, control.PolicyRequest{QuantumUS: 1000 + int64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if p, err := w.ctl.Policy(ctx); err != nil || p.QuantumUS != 1002 {
		t.Errorf("%+v, %v", p, err)
	}
	if n := log.with("will not survive"); len(n) != 1 {
		t.Errorf("%q", n)
	}
}

func second[T any](_ T, err error) error { return err }
