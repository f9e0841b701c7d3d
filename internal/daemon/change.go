// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"xsched/internal/config"
	"xsched/internal/control"
	"xsched/internal/engine"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/policy"
)

// canDo refuses a level that a process's queues do not support.
func (d *Daemon) canDo(v loop.ClientView, l model.Level) error {
	if l <= model.LevelBlock {
		if l == model.LevelBlock && v.Attached {
			return control.Errorf(control.ErrNotSupported, "use level 2 or 3, or start the program with `xsched run`", "level 1 requires the shim, which process %d does not have", v.PID)
		}
		return nil
	}
	if d.drivers.Empty() && len(v.Caps) == 0 {
		return control.Errorf(control.ErrNotSupported, "use level 1", "level %d is not available: %s", l, d.drivers.Absent())
	}
	for _, q := range v.Queues {
		if c := v.Caps[q.Device]; c.MaxLevel < l {
			reason := c.Reason
			if reason == "" {
				reason = q.Reason
			}
			return control.Errorf(control.ErrNotSupported, "use level 1 or auto", "level %d is not available for process %d on %s: %s", l, v.PID, q.Device, reason)
		}
	}
	return nil
}

// typed converts an error to a control.Error.
func typed(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*control.Error](err); ok {
		return e
	}
	return control.Errorf(control.ErrUnavailable, "", "%v", err)
}

// Policy implements control.Control.
func (d *Daemon) Policy(ctx context.Context, c control.Caller, r control.PolicyRequest) (control.PolicyReply, error) {
	quantum := time.Duration(r.QuantumUS) * time.Microsecond
	changes := r.Name != "" || r.QuantumUS != 0
	if changes {
		if err := d.access.owner(c, "policy"); err != nil {
			return control.PolicyReply{}, err
		}
	}
	if r.QuantumUS != 0 && (r.QuantumUS < model.TimesliceMin.Microseconds() || r.QuantumUS > model.TimesliceMax.Microseconds()) {
		return control.PolicyReply{}, control.Errorf(control.ErrInvalid, "use 100 to 10000000", "quantum %d us is out of range", r.QuantumUS)
	}
	gpu, err := d.settable(ctx, r.Device)
	if err != nil {
		return control.PolicyReply{}, err
	}
	if r.QuantumUS != 0 && gpu != 0 {
		return control.PolicyReply{}, control.Errorf(control.ErrInvalid, "omit the device", "the quantum applies to all GPUs")
	}
	out := control.PolicyReply{Available: policy.Names(), Summaries: map[string]string{}}
	var bad error
	if changes {
		err := d.engineDo(ctx, func(e *engine.Engine) {
			switch {
			case r.Name == "":
			case gpu == 0:
				bad = e.SetPolicy(r.Name)
			case r.Name == control.DefaultSetting:
				bad = e.SetDevicePolicy(gpu, "")
			default:
				bad = e.SetDevicePolicy(gpu, r.Name)
			}
			if bad == nil && r.QuantumUS != 0 {
				e.SetQuantum(quantum)
			}
		})
		if err != nil {
			return control.PolicyReply{}, err
		}
	}
	if errors.Is(bad, policy.ErrUnknown) {
		return control.PolicyReply{}, control.Errorf(control.ErrInvalid, "use one of "+strings.Join(policy.Suggest(r.Name), ", "), "unknown policy %q", r.Name)
	}
	if bad != nil {
		return control.PolicyReply{}, control.Errorf(control.ErrInvalid, "", "%v", bad)
	}
	all := d.loop.Config()
	cfg := all.On(gpu)
	out.Name, out.QuantumUS, out.Devices = cfg.Policy, cfg.Quantum.Microseconds(), settings(&all)
	if !slices.Contains(out.Available, out.Name) {
		out.Available = append(out.Available, out.Name) // with a strategy, for measurements
	}
	for _, name := range out.Available {
		out.Summaries[name] = policy.Summary(name)
	}
	if changes {
		if r.Name != "" {
			d.keepSetting(ctx, gpu, keyPolicy, setOrDefault(r.Name, out.Name))
		}
		if r.QuantumUS != 0 {
			d.keepSetting(ctx, 0, keyQuantum, quantum.String())
		}
		d.log.Info("policy changed", "device", r.Device, "policy", out.Name, "quantum_us", out.QuantumUS, "user", c.User)
	}
	return out, nil
}

// Mode implements control.Control.
func (d *Daemon) Mode(ctx context.Context, c control.Caller, r control.ModeRequest) (control.ModeReply, error) {
	var names []string
	for _, m := range model.Modes {
		names = append(names, string(m))
	}
	if r.Mode != "" {
		if err := d.access.owner(c, "mode"); err != nil {
			return control.ModeReply{}, err
		}
	}
	gpu, err := d.settable(ctx, r.Device)
	if err != nil {
		return control.ModeReply{}, err
	}
	toDefault := gpu != 0 && r.Mode == control.DefaultSetting && r.Level == 0
	if r.Mode != "" && !toDefault {
		if err := d.checkMode(ctx, r, gpu, names); err != nil {
			return control.ModeReply{}, err
		}
	}
	out := control.ModeReply{Available: names}
	var bad error
	if r.Mode != "" {
		err := d.engineDo(ctx, func(e *engine.Engine) {
			switch {
			case toDefault:
				bad = e.SetDeviceMode(gpu, "", 0)
			case gpu == 0:
				bad = e.SetMode(model.Mode(r.Mode), model.Level(r.Level))
			default:
				bad = e.SetDeviceMode(gpu, model.Mode(r.Mode), model.Level(r.Level))
			}
		})
		if err != nil {
			return control.ModeReply{}, err
		}
	}
	if bad != nil {
		return control.ModeReply{}, control.Errorf(control.ErrInvalid, "", "%v", bad)
	}
	all := d.loop.Config()
	cfg := all.On(gpu)
	out.Devices = settings(&all)
	out.Mode, out.Level = modeOf(&cfg)
	if r.Mode != "" {
		d.keepSetting(ctx, gpu, keyMode, setOrDefault(r.Mode, config.Mode{Mode: cfg.Mode, Level: cfg.ForceLevel}.String()))
		d.log.Info("mode changed", "device", r.Device, "mode", out.Mode, "level", out.Level, "user", c.User)
	}
	return out, nil
}

// setOrDefault returns what a request for a setting has set.
func setOrDefault(asked, got string) string {
	if asked == control.DefaultSetting {
		return asked
	}
	return got
}

func (d *Daemon) checkMode(ctx context.Context, r control.ModeRequest, gpu model.DeviceID, names []string) error {
	known := false
	for _, n := range names {
		known = known || n == r.Mode
	}
	if !known {
		return control.Errorf(control.ErrInvalid, "use one of "+strings.Join(names, ", "), "unknown mode %q", r.Mode)
	}
	if model.Mode(r.Mode) != model.ModeLevel {
		if r.Level != 0 {
			return control.Errorf(control.ErrInvalid, "omit the level", "mode %s takes no level", r.Mode)
		}
		return nil
	}
	l := model.Level(r.Level)
	if l < model.LevelBlock || l > model.LevelInterrupt {
		return control.Errorf(control.ErrInvalid, "use 1, 2 or 3", "level %d is out of range for mode level", r.Level)
	}
	return d.someCanDo(ctx, l, gpu)
}

// Suspend implements control.Control.
func (d *Daemon) Suspend(ctx context.Context, c control.Caller, r control.ProcessRequest) (control.ProcessReply, error) {
	message := "suspended process %d"
	s, err := d.access.find(ctx, c, r.PID)
	if errors.Is(err, control.ErrNotFound) {
		if s, err = d.attach(ctx, c, r.PID, model.HintChange{}); err == nil {
			message = "attached to process %d and suspended it" + attachEnds
		}
	}
	if err != nil {
		return control.ProcessReply{}, err
	}
	return d.hold(loop.WithUser(ctx, c.User), c, s, true, message)
}

// Resume implements control.Control.
func (d *Daemon) Resume(ctx context.Context, c control.Caller, r control.ProcessRequest) (control.ProcessReply, error) {
	s, err := d.access.find(ctx, c, r.PID)
	if errors.Is(err, control.ErrNotFound) && d.access.owner(c, "") == nil && d.keeper.release(r.PID) {
		return control.ProcessReply{PID: r.PID, Message: fmt.Sprintf("process %d is not connected; it will not be suspended again when it connects", r.PID)}, nil
	}
	if err != nil {
		return control.ProcessReply{}, err
	}
	if !s.Held {
		return reply(c, s, "process %d was not suspended by hand"), nil
	}
	return d.hold(loop.WithUser(ctx, c.User), c, s, false, "resumed process %d")
}

func (d *Daemon) hold(ctx context.Context, c control.Caller, s loop.ClientView, held bool, message string) (control.ProcessReply, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	err := d.loop.SetHeld(ctx, s.PID, held)
	if errors.Is(err, loop.ErrUnknownPID) {
		return control.ProcessReply{}, control.Errorf(control.ErrNotFound, "", "process %d has ended", shownPID(c, s.Identity))
	}
	if err := unavailable(err); err != nil {
		return control.ProcessReply{}, typed(err)
	}
	d.keepProcess(ctx, c, s)
	out := reply(c, s, message)
	out.Held = held
	if held && len(s.Queues) == 0 {
		out.Message += "; it has no GPU context yet and will be suspended when it creates one"
	}
	return out, nil
}

// reply describes a process to a caller. message has a verb for its PID.
func reply(c control.Caller, s loop.ClientView, message string) control.ProcessReply {
	pid := shownPID(c, s.Identity)
	out := control.ProcessReply{PID: pid, Attached: s.Attached, Held: s.Held, Message: fmt.Sprintf(message, pid)}
	for i, q := range s.Queues {
		if i == 0 || int(q.Level) < out.Level {
			out.Level = int(q.Level)
		}
	}
	return out
}

// Wedge implements control.Control.
func (d *Daemon) Wedge(ctx context.Context, c control.Caller, r control.WedgeRequest) (control.WedgeReply, error) {
	const longest = time.Minute
	if !d.opts.Virtual {
		return control.WedgeReply{}, control.Errorf(control.ErrNotSupported, "use a daemon started with --virtual", "fault injection requires a virtual GPU")
	}
	if err := d.access.owner(c, "engine"); err != nil {
		return control.WedgeReply{}, err
	}
	t := time.Duration(r.DurationMS) * time.Millisecond
	if r.DurationMS <= 0 || r.DurationMS > longest.Milliseconds() {
		return control.WedgeReply{}, control.Errorf(control.ErrInvalid, "use 1 to 60000", "%d ms is out of range", r.DurationMS)
	}
	if err := unavailable(d.loop.Wedge(ctx, t)); err != nil {
		return control.WedgeReply{}, typed(err)
	}
	return control.WedgeReply(r), nil
}
