// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"xsched/internal/config"
	"xsched/internal/control"
	"xsched/internal/engine"
	"xsched/internal/keeper"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// engineConfig returns what options say about the engine.
func engineConfig(o *Options) engine.Config {
	cfg := engine.DefaultConfig()
	if o.Policy != "" {
		cfg.Policy = o.Policy
	}
	if o.Mode != "" {
		cfg.Mode, cfg.ForceLevel = o.Mode, o.ModeLevel
	}
	if o.Quantum != 0 {
		cfg.Quantum = o.Quantum
	}
	if o.Hold != 0 {
		cfg.Hold = max(o.Hold, 0)
	}
	if o.StarvationBound != 0 {
		cfg.StarvationBound = max(o.StarvationBound, 0)
	}
	cfg.Devices = maps.Clone(o.GPUs)
	return cfg
}

// Keys of settings that operators change at run time.
const (
	keyPolicy  = "policy"
	keyMode    = "mode"
	keyQuantum = "quantum"
)

// gpuKey returns the key of a GPU's setting; 0: of all GPUs.
func gpuKey(gpu model.DeviceID, name string) string {
	if gpu == 0 {
		return name
	}
	return "gpus." + gpu.String() + "." + name
}

// over returns the configured value of a key with its source, for keeper.Set.
func over(values []control.ConfigValue, key string) string {
	for _, v := range values {
		if v.Key == key {
			return v.Source + " " + v.Value
		}
	}
	return control.SourceDefault + " " + control.DefaultSetting
}

// inForce returns what options say about the engine, with newer settings of operators.
func inForce(k *keeper.Keeper, log *slog.Logger, o *Options) engine.Config {
	cfg := engineConfig(o)
	for key, s := range k.Overlay(func(key string) string { return over(o.Config.Values, key) }) {
		if err := apply(&cfg, key, s.Value); err != nil {
			log.Warn("a run-time setting of the previous daemon is lost", "key", key, "value", s.Value, "err", err)
			k.Set(key, s.Value, "- "+s.Value) // forgets it
		}
	}
	return cfg
}

// apply changes one setting of a configuration.
func apply(cfg *engine.Config, key, value string) error {
	gpu := model.DeviceID(0)
	setting := engine.Setting{}
	name := key
	if rest, ok := strings.CutPrefix(key, "gpus."); ok {
		at := strings.LastIndexByte(rest, '.')
		if at < 0 {
			return fmt.Errorf("unknown key %q", key)
		}
		id, err := model.ParseDeviceID(rest[:at])
		if err != nil {
			return err
		}
		gpu, name, setting = id, rest[at+1:], cfg.Devices[id]
	}
	file := "policy: " // checks the value as in a file
	switch name {
	case keyPolicy, keyMode, keyQuantum:
		file = name + ": "
	default:
		return fmt.Errorf("unknown key %q", key)
	}
	if gpu != 0 && value == control.DefaultSetting {
		if name == keyPolicy {
			setting.Policy = ""
		} else {
			setting.Mode, setting.ForceLevel = "", 0
		}
	} else {
		f, err := config.Parse("state", []byte(file+fmt.Sprintf("%q", value)))
		if err != nil {
			return err
		}
		switch {
		case f.Quantum != nil:
			cfg.Quantum = time.Duration(*f.Quantum)
		case f.Policy != nil && gpu == 0:
			cfg.Policy = string(*f.Policy)
		case f.Policy != nil:
			setting.Policy = string(*f.Policy)
		case f.Mode != nil && gpu == 0:
			cfg.Mode, cfg.ForceLevel = f.Mode.Mode, f.Mode.Level
		case f.Mode != nil:
			setting.Mode, setting.ForceLevel = f.Mode.Mode, f.Mode.Level
		}
	}
	if gpu == 0 {
		return nil
	}
	if cfg.Devices == nil {
		cfg.Devices = map[model.DeviceID]engine.Setting{}
	}
	if cfg.Devices[gpu] = setting; setting == (engine.Setting{}) {
		delete(cfg.Devices, gpu)
	}
	return nil
}

// keepSetting remembers what an operator has set.
func (s *settings) keepSetting(ctx context.Context, gpu model.DeviceID, name, value string) {
	key := gpuKey(gpu, name)
	s.keeper.Set(key, value, over(s.terms.configured.Load().reply.Values, key))
	s.keeper.Flush(ctx)
}

// Config implements control.Control.
func (s *settings) Config(ctx context.Context, c control.Caller) (control.ConfigReply, error) {
	if s.access.owner(c, "") != nil {
		return control.ConfigReply{}, control.Errorf(control.ErrNotAllowed, "use sudo", "only root and the daemon's user (uid %d) may see the configuration", s.access.uid)
	}
	now := s.terms.configured.Load()
	out := now.reply
	out.File, out.State = s.opts.ConfigFile, s.opts.KeepFile
	out.Values, out.Rules = slices.Clone(out.Values), slices.Clone(out.Rules)
	settings := s.keeper.Overlay(func(key string) string { return over(out.Values, key) })
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		value := control.ConfigValue{Key: key, Value: settings[key].Value, Source: settings[key].Source}
		if i := slices.IndexFunc(out.Values, func(v control.ConfigValue) bool { return v.Key == key }); i >= 0 {
			out.Values[i] = value
		} else {
			out.Values = append(out.Values, value)
		}
	}
	all, err := s.access.sessions(ctx)
	if err != nil {
		return control.ConfigReply{}, err
	}
	for i := range out.Rules {
		for _, s := range all {
			if s.Rule == out.Rules[i].Name {
				out.Rules[i].PIDs = append(out.Rules[i].PIDs, s.PID)
			}
		}
	}
	return out, nil
}

// HasConfig reports whether there is a configuration file to reload.
func (s *settings) HasConfig() bool { return s.opts.Load != nil && s.opts.ConfigFile != "" }

// Reload implements control.Control. Everything is read and checked first; then the loop applies all of
// it between two decisions.
func (s *settings) Reload(ctx context.Context, c control.Caller, _ control.ReloadRequest) (control.ReloadReply, error) {
	if err := s.access.owner(c, "configuration"); err != nil {
		return control.ReloadReply{}, err
	}
	s.terms.changing.Lock()
	defer s.terms.changing.Unlock()
	if !s.HasConfig() {
		return control.ReloadReply{}, control.Errorf(control.ErrInvalid, "start it with `xsched serve --config FILE`", "the daemon has no configuration file")
	}
	before := s.terms.configured.Load().reply.Values
	out, err := s.readAgain(ctx)
	if err != nil {
		s.log.Error("configuration not reloaded: nothing has changed", "err", err, "user", c.User)
		return out, typed(err)
	}
	for _, w := range out.Warnings {
		s.log.Warn("configuration", "warning", w)
	}
	if len(out.Restart) > 0 {
		s.log.Warn("new values take effect at the next start of the daemon", "keys", out.Restart)
	}
	s.journal.Audit(c, changeConfig, valuesText(before, out.Changed), valuesText(s.terms.configured.Load().reply.Values, out.Changed))
	s.log.Info("configuration reloaded", "file", s.opts.ConfigFile, "changed", out.Changed, "user", c.User)
	return out, nil
}

func (s *settings) readAgain(ctx context.Context) (control.ReloadReply, error) {
	out := control.ReloadReply{File: s.opts.ConfigFile, Changed: []string{}}
	read := stateOfFile(s.opts.ConfigFile) // before: a change meanwhile counts as one
	o, warnings, err := s.opts.Load()
	if err != nil {
		return out, control.Errorf(control.ErrInvalid, "", "%v", err)
	}
	old := s.terms.configured.Load()
	out.Warnings = warnings
	next := &configured{number: old.number + 1, rules: o.Rules, reply: o.Config, read: read}
	next.reply.Values, out.Changed, out.Restart = merge(old.reply.Values, o.Config.Values)
	if !slices.Equal(old.reply.Caps, next.reply.Caps) {
		out.Changed = append(out.Changed, "caps")
	}
	if !slices.EqualFunc(old.reply.Rules, next.reply.Rules, func(a, b control.ConfigRule) bool {
		return a.Name == b.Name && a.Match == b.Match && a.Hints == b.Hints
	}) {
		out.Changed = append(out.Changed, "rules")
	}
	cfg := inForce(s.keeper, s.log, &o)
	if _, err := engine.New(cfg); err != nil {
		return out, control.Errorf(control.ErrInvalid, "", "%v", err)
	}
	// From here on, clients that join get the new terms.
	s.terms.configured.Store(next)
	if err := s.reconfigure(ctx, o.Limits, &cfg); err != nil {
		next := *old
		next.number += 2
		s.terms.configured.Store(&next)
		return out, unavailable(err)
	}
	s.keeper.Prune(func(key string) string { return over(next.reply.Values, key) })
	s.access.server.SetLimits(o.MaxSessions, o.MaxSessionsPerUID)
	if s.opts.SetLogLevel != nil {
		s.opts.SetLogLevel(o.LogLevel)
	}
	return out, nil
}

// reconfigure applies limits, rules and the engine's settings at once.
func (s *settings) reconfigure(ctx context.Context, limits loop.Limits, cfg *engine.Config) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	clients, err := s.access.loop.Identities(ctx)
	if err != nil {
		return err
	}
	terms := make(map[model.SessionID]loop.Terms, len(clients))
	for _, who := range clients {
		terms[who.ID] = s.terms.of(who)
	}
	return s.access.loop.Reconfigure(ctx, limits, terms, func(e *engine.Engine) { change(e, cfg) })
}

// change applies what differs. A policy that is set anew would forget its state.
func change(e *engine.Engine, cfg *engine.Config) {
	now := e.Config()
	if cfg.Policy != now.Policy {
		_ = e.SetPolicy(cfg.Policy) // checked before, as all below
	}
	if cfg.Mode != now.Mode || cfg.ForceLevel != now.ForceLevel {
		_ = e.SetMode(cfg.Mode, cfg.ForceLevel)
	}
	if cfg.Quantum != now.Quantum {
		e.SetQuantum(cfg.Quantum)
	}
	if cfg.Hold != now.Hold || cfg.StarvationBound != now.StarvationBound {
		e.SetBounds(cfg.Hold, cfg.StarvationBound)
	}
	gpus := maps.Clone(now.Devices)
	if gpus == nil {
		gpus = map[model.DeviceID]engine.Setting{}
	}
	maps.Copy(gpus, cfg.Devices)
	for id := range gpus {
		want, has := cfg.Devices[id], now.Devices[id]
		if want.Policy != has.Policy {
			_ = e.SetDevicePolicy(id, want.Policy)
		}
		if want.Mode != has.Mode || want.ForceLevel != has.ForceLevel {
			_ = e.SetDeviceMode(id, want.Mode, want.ForceLevel)
		}
	}
}

// merge returns the values after a reload: one that needs a restart stays, and the new one is pending.
func merge(old, next []control.ConfigValue) (values []control.ConfigValue, changed, restart []string) {
	changed = []string{}
	before := map[string]control.ConfigValue{}
	for _, v := range old {
		before[v.Key] = v
	}
	for _, v := range next {
		was, had := before[v.Key]
		delete(before, v.Key)
		switch {
		case had && was.Value == v.Value && v.Restart:
		case had && v.Restart:
			restart = append(restart, v.Key)
			was.Pending = v.Value
			v = was
		case !had || was.Value != v.Value:
			changed = append(changed, v.Key)
		}
		values = append(values, v)
	}
	return values, append(changed, slices.Sorted(maps.Keys(before))...), restart
}

// fileState identifies a version of a file; zero: there is none.
type fileState struct {
	size  int64
	inode uint64
	mtime syscall.Timespec
	at    time.Time // when this was found out; not compared
}

func stateOfFile(path string) fileState {
	out := fileState{at: time.Now()}
	var st syscall.Stat_t
	if path != "" && syscall.Stat(path, &st) == nil {
		out.size, out.inode, out.mtime = st.Size, st.Ino, st.Mtim
	}
	return out
}

func (f fileState) exists() bool { return f.inode != 0 }

// configState tells whether the configuration in force is the one in the file.
func (v *views) configState() control.ConfigState {
	in := v.terms.configured.Load()
	now := stateOfFile(v.opts.ConfigFile)
	out := control.ConfigState{Changed: now.size != in.read.size || now.inode != in.read.inode || now.mtime != in.read.mtime}
	if in.read.exists() || now.exists() {
		out.File = v.opts.ConfigFile
	}
	if in.read.exists() {
		out.ReadNS = in.read.at.UnixNano()
	}
	for _, value := range in.reply.Values {
		if value.Pending != "" {
			out.Restart = append(out.Restart, value.Key)
		}
	}
	out.RunTime = slices.Sorted(maps.Keys(v.keeper.Overlay(func(key string) string { return over(in.reply.Values, key) })))
	return out
}
