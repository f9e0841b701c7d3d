// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"xsched/internal/config"
	"xsched/internal/control"
	"xsched/internal/driver"
	"xsched/internal/engine"
	"xsched/internal/keeper"
	"xsched/internal/model"
	"xsched/internal/policy"
)

// settings changes the policy, the mode and the configuration in force.
type settings struct {
	opts    *Options
	log     *slog.Logger
	access  *access
	terms   *terms
	keeper  *keeper.Keeper
	drivers *driver.Set
	views   *views
	journal *chronicle
}

// Policy implements control.Control.
func (s *settings) Policy(ctx context.Context, c control.Caller, r control.PolicyRequest) (control.PolicyReply, error) {
	changes := r.Name != "" || r.QuantumUS != 0
	if changes {
		if err := s.access.owner(c, "policy"); err != nil {
			return control.PolicyReply{}, err
		}
	}
	if r.QuantumUS != 0 && (r.QuantumUS < model.TimesliceMin.Microseconds() || r.QuantumUS > model.TimesliceMax.Microseconds()) {
		return control.PolicyReply{}, control.Errorf(control.ErrInvalid, "use 100 to 10000000", "quantum %d us is out of range", r.QuantumUS)
	}
	gpu, err := s.settable(ctx, r.Device)
	if err != nil {
		return control.PolicyReply{}, err
	}
	if r.QuantumUS != 0 && gpu != 0 {
		return control.PolicyReply{}, control.Errorf(control.ErrInvalid, "omit the device", "the quantum applies to all GPUs")
	}
	if changes {
		if err := s.setPolicy(ctx, r, gpu); err != nil {
			return control.PolicyReply{}, err
		}
	}
	all := s.access.loop.Config()
	cfg := all.On(gpu)
	out := control.PolicyReply{
		Name: cfg.Policy, QuantumUS: cfg.Quantum.Microseconds(), Devices: deviceSettings(&all), Available: policy.Names(), Summaries: map[string]string{},
	}
	if !slices.Contains(out.Available, out.Name) {
		out.Available = append(out.Available, out.Name) // with a strategy, for measurements
	}
	for _, name := range out.Available {
		out.Summaries[name] = policy.Summary(name)
	}
	if changes {
		if r.Name != "" {
			s.keepSetting(ctx, gpu, keyPolicy, setOrDefault(r.Name, out.Name))
		}
		if r.QuantumUS != 0 {
			s.keepSetting(ctx, 0, keyQuantum, microseconds(r.QuantumUS).String())
		}
		s.log.Info("policy changed", "device", r.Device, "policy", out.Name, "quantum_us", out.QuantumUS, "user", c.User)
	}
	return out, nil
}

func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// setPolicy changes the policy of a GPU, or of all if gpu is 0, and the quantum.
func (s *settings) setPolicy(ctx context.Context, r control.PolicyRequest, gpu model.DeviceID) error {
	err := s.changeEngine(ctx, func(e *engine.Engine) (err error) {
		switch {
		case r.Name == "":
		case gpu == 0:
			err = e.SetPolicy(r.Name)
		case r.Name == control.DefaultSetting:
			err = e.SetDevicePolicy(gpu, "")
		default:
			err = e.SetDevicePolicy(gpu, r.Name)
		}
		if err == nil && r.QuantumUS != 0 {
			e.SetQuantum(microseconds(r.QuantumUS))
		}
		return err
	})
	if errors.Is(err, policy.ErrUnknown) {
		return control.Errorf(control.ErrInvalid, policy.Remedy(r.Name), "unknown policy %q", r.Name)
	}
	return err
}

// Mode implements control.Control.
func (s *settings) Mode(ctx context.Context, c control.Caller, r control.ModeRequest) (control.ModeReply, error) {
	if r.Mode != "" {
		if err := s.access.owner(c, "mode"); err != nil {
			return control.ModeReply{}, err
		}
	}
	gpu, err := s.settable(ctx, r.Device)
	if err != nil {
		return control.ModeReply{}, err
	}
	if r.Mode != "" {
		if err := s.setMode(ctx, r, gpu); err != nil {
			return control.ModeReply{}, err
		}
	}
	all := s.access.loop.Config()
	cfg := all.On(gpu)
	out := control.ModeReply{Available: modeNames(), Devices: deviceSettings(&all)}
	out.Mode, out.Level = modeOf(&cfg)
	if r.Mode != "" {
		s.keepSetting(ctx, gpu, keyMode, setOrDefault(r.Mode, config.Mode{Mode: cfg.Mode, Level: cfg.ForceLevel}.String()))
		s.log.Info("mode changed", "device", r.Device, "mode", out.Mode, "level", out.Level, "user", c.User)
	}
	return out, nil
}

func modeNames() (names []string) {
	for _, m := range model.Modes {
		names = append(names, string(m))
	}
	return names
}

// setMode changes the mode of a GPU, or of all if gpu is 0.
func (s *settings) setMode(ctx context.Context, r control.ModeRequest, gpu model.DeviceID) error {
	toDefault := gpu != 0 && r.Mode == control.DefaultSetting && r.Level == 0
	if !toDefault {
		if err := s.checkMode(ctx, r, gpu); err != nil {
			return err
		}
	}
	return s.changeEngine(ctx, func(e *engine.Engine) error {
		switch {
		case toDefault:
			return e.SetDeviceMode(gpu, "", 0)
		case gpu == 0:
			return e.SetMode(model.Mode(r.Mode), model.Level(r.Level))
		}
		return e.SetDeviceMode(gpu, model.Mode(r.Mode), model.Level(r.Level))
	})
}

// setOrDefault returns what a request for a setting has set.
func setOrDefault(asked, got string) string {
	if asked == control.DefaultSetting {
		return asked
	}
	return got
}

func (s *settings) checkMode(ctx context.Context, r control.ModeRequest, gpu model.DeviceID) error {
	if names := modeNames(); !slices.Contains(names, r.Mode) {
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
	return s.someCanDo(ctx, l, gpu)
}

// Wedge implements control.Control.
func (s *settings) Wedge(ctx context.Context, c control.Caller, r control.WedgeRequest) (control.WedgeReply, error) {
	const longest = time.Minute
	if !s.opts.Virtual {
		return control.WedgeReply{}, control.Errorf(control.ErrNotSupported, "use a daemon started with --virtual", "fault injection requires a virtual GPU")
	}
	if err := s.access.owner(c, "engine"); err != nil {
		return control.WedgeReply{}, err
	}
	t := time.Duration(r.DurationMS) * time.Millisecond
	if r.DurationMS <= 0 || r.DurationMS > longest.Milliseconds() {
		return control.WedgeReply{}, control.Errorf(control.ErrInvalid, "use 1 to 60000", "%d ms is out of range", r.DurationMS)
	}
	if err := unavailable(s.access.loop.Wedge(ctx, t)); err != nil {
		return control.WedgeReply{}, typed(err)
	}
	return control.WedgeReply(r), nil
}

// settable parses the address of a GPU that can have settings; 0: the request has none. A host whose driver
// lists its GPUs has no others.
func (s *settings) settable(ctx context.Context, name string) (model.DeviceID, error) {
	if name == "" {
		return 0, nil
	}
	const remedy = "see `xsched list --devices`"
	id, err := model.ParseDeviceID(name)
	if err != nil || id == 0 || id.String() != strings.ToLower(name) {
		return 0, control.Errorf(control.ErrInvalid, remedy, "%q is not a PCI address like 0000:01:00.0", name)
	}
	if listed := s.drivers.Devices(); len(listed) == 0 || slices.Contains(listed, id) {
		return id, nil
	}
	used, err := s.views.Devices(ctx, control.Caller{})
	if err != nil {
		return 0, err
	}
	if slices.ContainsFunc(used.Devices, func(u control.Device) bool { return u.ID == id.String() }) {
		return id, nil
	}
	return 0, control.Errorf(control.ErrNotFound, remedy, "there is no GPU %s", id)
}

// someCanDo rejects a level that no GPU, or the given one, supports. If only some programs lack it,
// the others get it, and `list` shows the reason.
func (s *settings) someCanDo(ctx context.Context, l model.Level, on model.DeviceID) error {
	if l <= model.LevelBlock {
		return nil
	}
	if s.drivers.Empty() {
		return control.Errorf(control.ErrNotSupported, "use level 1", "level %d is unavailable: %s", l, s.drivers.Absent())
	}
	reply, err := s.views.Devices(ctx, control.Caller{})
	if err != nil {
		return err
	}
	reason, some := "", false
	for _, dev := range reply.Devices {
		if on != 0 && dev.ID != on.String() {
			continue
		}
		some = true
		if model.Level(dev.MaxLevel) >= l {
			return nil
		}
		reason = dev.LevelReason
	}
	if !some {
		return nil // unknown until the first program probes the GPU
	}
	if on != 0 {
		return control.Errorf(control.ErrNotSupported, "use level 1", "%s does not support level %d: %s", on, l, reason)
	}
	return control.Errorf(control.ErrNotSupported, "use level 1", "no GPU supports level %d: %s", l, reason)
}

// changeEngine runs f on the engine loop. It fails if f does, or if the loop does not answer in time.
func (s *settings) changeEngine(ctx context.Context, f func(e *engine.Engine) error) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var refused error
	if err := s.access.loop.Engine(ctx, func(e *engine.Engine) { refused = f(e) }); err != nil {
		return unavailable(err)
	}
	if refused != nil && !errors.Is(refused, policy.ErrUnknown) {
		refused = control.Errorf(control.ErrInvalid, "", "%v", refused)
	}
	return refused
}
