// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"slices"
	"testing"

	"xsched/internal/control"
	"xsched/internal/policy"
)

// TestSettingsPerGPU: a GPU keeps its own policy and mode, shows them, and returns to the others'.
func TestSettingsPerGPU(t *testing.T) {
	const first, second = "0000:01:00.0", "0000:02:00.0"
	w := newWorld(t)
	stop := w.serve(t, nil)
	defer func() { _ = stop() }()
	app := startProgram(t, "app", w.vgpuPath(), w.sockPath())
	await(t, "the program is known", func() bool { l, err := w.ctl.List(ctx); return err == nil && len(l.Processes) == 1 })

	p, err := w.ctl.SetPolicy(ctx, control.PolicyRequest{Name: "fifo", Device: second})
	if err != nil || p.Name != "FIFO" {
		t.Fatalf("%+v %v", p, err)
	}
	if p, err = w.ctl.Policy(ctx); err != nil || p.Name != "HPF" || !slices.Equal(p.Devices, []control.DeviceSetting{{Device: second, Policy: "FIFO"}}) {
		t.Errorf("%+v %v", p, err)
	}
	if p, err = w.ctl.SetPolicy(ctx, control.PolicyRequest{Device: second}); err != nil || p.Name != "FIFO" || len(p.Available) != len(policy.Names()) {
		t.Errorf("read of one GPU: %+v %v", p, err)
	}
	// A strategy for launch-bound requests is offered only where it is in force.
	if p, err = w.ctl.SetPolicy(ctx, control.PolicyRequest{Name: "hpf/In-time", Device: second}); err != nil || p.Name != "HPF/in-time" || p.Available[len(p.Available)-1] != p.Name || p.Summaries[p.Name] == "" {
		t.Errorf("strategy: %+v %v", p, err)
	}
	if p, err = w.ctl.SetPolicy(ctx, control.PolicyRequest{Name: "fifo", Device: second}); err != nil || len(p.Available) != len(policy.Names()) {
		t.Errorf("%+v %v", p, err)
	}
	m, err := w.ctl.SetMode(ctx, control.ModeRequest{Mode: "level", Level: 1, Device: first})
	if err != nil || m.Mode != "level" || m.Level != 1 {
		t.Errorf("%+v %v", m, err)
	}
	// The level of a forced mode is shown where it is in force.
	await(t, "level 1 on the first GPU", func() bool {
		l, err := w.ctl.List(ctx)
		return err == nil && len(l.Processes) == 1 && len(l.Processes[0].Queues) == 1 && l.Processes[0].Queues[0].Level == 1
	})
	l, err := w.ctl.List(ctx)
	want := []control.DeviceSetting{{Device: first, Mode: "level", Level: 1}, {Device: second, Policy: "FIFO"}}
	if err != nil || l.Policy != "HPF" || l.Mode != "live" || !slices.Equal(l.Devices, want) {
		t.Errorf("%+v %v", l.Devices, err)
	}
	d, err := w.ctl.Devices(ctx)
	if err != nil || len(d.Devices) != 2 || d.Devices[0].Policy != "HPF" || d.Devices[0].Mode != "level" || d.Devices[0].ModeLevel != 1 || d.Devices[1].Policy != "FIFO" {
		t.Errorf("%+v %v", d, err)
	}
	for _, bad := range []control.PolicyRequest{
		{Name: "nope", Device: second},
		{Name: "FIFO", Device: "1"},
		{Name: "FIFO", Device: "0000:02:00.0 or so"},
		{Name: "FIFO", Device: "0000:00:00.0"},
		{QuantumUS: 1000, Device: second},
		{Name: "default"},
	} {
		_, err := w.ctl.SetPolicy(ctx, bad)
		wantError(t, err, control.ErrInvalid)
	}
	for _, bad := range []control.ModeRequest{
		{Mode: "nope", Device: second},
		{Mode: "level", Device: second},
		{Mode: "off", Level: 1, Device: second},
		{Mode: "default"},
		{Mode: "default", Level: 2, Device: second},
		{Mode: "off", Device: "02:00.0"},
	} {
		_, err := w.ctl.SetMode(ctx, bad)
		wantError(t, err, control.ErrInvalid)
	}
	if _, err := w.ctl.SetPolicy(ctx, control.PolicyRequest{Name: "default", Device: second}); err != nil {
		t.Error(err)
	}
	if _, err := w.ctl.SetMode(ctx, control.ModeRequest{Mode: "default", Device: first}); err != nil {
		t.Error(err)
	}
	if l, err = w.ctl.List(ctx); err != nil || len(l.Devices) != 0 {
		t.Errorf("settings left: %+v %v", l.Devices, err)
	}
	for _, want := range []control.ModeRequest{{Mode: "level", Level: 1}, {Mode: "level", Level: 2}, {Mode: "live"}} {
		if _, err := w.ctl.SetMode(ctx, want); err != nil {
			t.Error(err)
		}
		l, err := w.ctl.List(ctx)
		if err != nil || l.Mode != want.Mode || l.ModeLevel != want.Level {
			t.Errorf("list: mode %s, level %d, want %+v; %v", l.Mode, l.ModeLevel, want, err)
		}
		v, err := w.ctl.Version(ctx)
		if err != nil || v.Mode != want.Mode || v.ModeLevel != want.Level {
			t.Errorf("version: mode %s, level %d, want %+v; %v", v.Mode, v.ModeLevel, want, err)
		}
	}
	_ = app
}
