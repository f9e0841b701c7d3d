// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"xsched/internal/config"
	"xsched/internal/control"
	"xsched/internal/daemon"
	"xsched/internal/engine"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/policy"
	"xsched/internal/state"
)

// noConfig is the value of --config for no file.
const noConfig = "off"

// configFile is the configuration of a daemon: a file and the flags, which take precedence.
type configFile struct {
	path     string // empty: none
	optional bool   // may be missing
	given    *pflag.FlagSet
}

// newConfigFile finds the file for the given flags.
func newConfigFile(given *pflag.FlagSet, flags serveFlags) *configFile {
	f := &configFile{path: flags.config, given: given}
	switch {
	case f.path == noConfig:
		f.path = ""
	case f.path == "" && os.Geteuid() == 0 && !flags.o.Virtual:
		f.path, f.optional = config.Default, true
	}
	return f
}

// resolved is a configuration with all defaults.
type resolved struct {
	o        daemon.Options
	flags    serveFlags // with the values of the file
	warnings []string
}

// reload reads the file again.
func (f *configFile) reload() (daemon.Options, []string, error) {
	r, err := f.read()
	return r.o, r.warnings, err
}

// read reads the file and combines it with the flags.
func (f *configFile) read() (resolved, error) {
	file := &config.File{}
	if f.path != "" {
		found, err := config.Read(f.path, os.Geteuid())
		switch {
		case err == nil:
			file, f.optional = found, false // a file that vanishes later is a mistake
		case !f.optional || !errors.Is(err, os.ErrNotExist):
			return resolved{}, err
		}
	}
	r, err := combine(f.given, file, f.path)
	r.o.ConfigFile = f.path
	return r, err
}

// combine applies a file to the flags that were not given.
func combine(given *pflag.FlagSet, file *config.File, path string) (resolved, error) {
	var r resolved
	c := &cobra.Command{}
	r.flags.register(c)
	set := c.Flags()
	copyFlags(set, given)
	source := map[string]string{}
	given.Visit(func(f *pflag.Flag) { source[f.Name] = control.SourceFlag })
	for _, v := range file.Values() {
		if v.Flag == "" || source[v.Flag] != "" {
			continue
		}
		source[v.Flag] = control.SourceFile
		if err := setFromFile(set, v); err != nil {
			return r, fmt.Errorf("%s: %s: %w", path, v.Key, err)
		}
	}
	virtual := r.flags.o.Virtual
	if set.Changed("platform") && !virtual {
		return r, usagef("--platform applies to the virtual GPU; add --virtual")
	}
	if virtual && !set.Changed("http") {
		r.flags.web.addr = webOff // several daemons may run at once in tests and demos
	}
	var err error
	if r.o, err = r.flags.options(set.Changed); err != nil {
		return r, err
	}
	if r.o.Rules, err = file.Resolve(path); err != nil {
		return r, err
	}
	caps, err := capsOf(file, path, r.flags.limits, r.flags.allow)
	if err != nil {
		return r, err
	}
	r.o.Limits = caps.limits
	r.o.GPUs = map[model.DeviceID]engine.Setting{}
	for id, on := range file.GPUs {
		s := engine.Setting{}
		if on.Policy != nil {
			s.Policy = string(*on.Policy)
		}
		if on.Mode != nil {
			s.Mode, s.ForceLevel = on.Mode.Mode, on.Mode.Level
		}
		r.o.GPUs[model.DeviceID(id)] = s
	}
	r.o.Config = control.ConfigReply{File: path, Values: r.values(source), Caps: caps.shown, Rules: rulesOf(file)}
	if os.Geteuid() == 0 {
		for _, w := range file.Warnings(path) {
			r.warnings = append(r.warnings, w.String())
		}
	}
	return r, nil
}

// setFromFile gives a flag the value of its key.
func setFromFile(set *pflag.FlagSet, v config.Value) error {
	switch v.Key {
	case "mode":
		mode, level, _ := strings.Cut(v.Value, " ")
		return errors.Join(set.Set("mode", mode), set.Set("level", level))
	case "log.format":
		return set.Set(v.Flag, strconv.FormatBool(v.Value == "json"))
	}
	return set.Set(v.Flag, v.Value)
}

// values returns the value of every key in the form of the file.
func (r *resolved) values(source map[string]string) []control.ConfigValue {
	knobs, o, flags := policy.DefaultKnobs(), &r.o, &r.flags
	format := "text"
	if flags.logJSON {
		format = "json"
	}
	name := cmp.Or(o.Policy, engine.DefaultConfig().Policy)
	if p, err := policy.New(name); err == nil { // else the daemon refuses it
		name = p.Name()
	}
	texts := map[string]string{
		"policy": name, "mode": config.Mode{Mode: o.Mode, Level: o.ModeLevel}.String(),
		"quantum": cmp.Or(o.Quantum, knobs.Quantum).String(), "hold": max(cmp.Or(o.Hold, knobs.Hold), 0).String(),
		"starvation_bound":    max(cmp.Or(o.StarvationBound, knobs.StarvationBound), 0).String(),
		"limits.max_sessions": strconv.Itoa(cmp.Or(o.MaxSessions, daemon.MaxSessions)), "limits.max_sessions_per_user": strconv.Itoa(cmp.Or(o.MaxSessionsPerUID, daemon.MaxSessionsPerUser)),
		"http.address": flags.web.addr, "http.token_file": flags.web.tokenFile, "http.view_token_file": flags.web.viewTokenFile, "log.level": flags.logLevel, "log.format": format,
		"self_test": flags.selfTest, "sensors": flags.sensors, "guardian_cgroup": o.GuardianCgroup, "record": o.Record, "audit": flags.audit, "alerts.command": flags.alerts.command, "alerts.url": flags.alerts.shownURL(), "alerts.token_file": flags.alerts.tokenFile, "host_memory": o.HostMemory.String(),
	}
	var out []control.ConfigValue
	for _, k := range config.Keys() {
		out = append(out, control.ConfigValue{Key: k.Key, Value: texts[k.Key], Source: cmp.Or(source[k.Flag], control.SourceDefault), Restart: k.Restart})
	}
	for _, id := range slices.Sorted(maps.Keys(o.GPUs)) {
		s := o.GPUs[id]
		if s.Policy != "" {
			out = append(out, control.ConfigValue{Key: "gpus." + id.String() + ".policy", Value: s.Policy, Source: control.SourceFile})
		}
		if s.Mode != "" {
			out = append(out, control.ConfigValue{Key: "gpus." + id.String() + ".mode", Value: config.Mode{Mode: s.Mode, Level: s.ForceLevel}.String(), Source: control.SourceFile})
		}
	}
	return out
}

func rulesOf(file *config.File) []control.ConfigRule {
	var out []control.ConfigRule
	for i := range file.Rules {
		r := &file.Rules[i]
		out = append(out, control.ConfigRule{Name: r.Name, Match: r.Match.String(), Hints: r.Hints.String()})
	}
	return out
}

// caps are the limits of users, and how they are shown.
type caps struct {
	limits loop.Limits
	shown  []control.ConfigCap
}

// capsOf combines the caps of a file with --max-priority and --allow-priority.
func capsOf(file *config.File, path string, flags []string, allow bool) (caps, error) {
	out := caps{limits: loop.Limits{Users: map[int]loop.Limit{}, Groups: map[int]loop.Limit{}}}
	source := control.SourceDefault
	fill := func(c config.Cap, l loop.Limit) loop.Limit {
		if c.Priority != nil {
			l.Priority = model.Priority(*c.Priority)
		}
		if c.Share != nil && *c.Share < model.UtilizationMax {
			l.Share = *c.Share
		} else if c.Share != nil {
			l.Share = 0
		}
		return l
	}
	if d := file.Caps.Default; d != nil {
		out.limits.Others, source = fill(*d, loop.Limit{}), control.SourceFile
	}
	priorities, err := maxPriorities(flags, allow)
	if err != nil {
		return out, err
	}
	if p, ok := priorities[otherUsers]; ok {
		out.limits.Others.Priority, source = p, control.SourceFlag
		delete(priorities, otherUsers)
	}
	show := func(whom string, l loop.Limit, source string) {
		out.shown = append(out.shown, control.ConfigCap{Whom: whom, Priority: int(l.Priority), Share: l.Share, Source: source})
	}
	show("others", out.limits.Others, source)
	for _, kind := range []struct {
		whom string
		from map[config.Name]config.Cap
		into map[int]loop.Limit
		id   func(config.Name) (int, error)
	}{
		{"user", file.Caps.Users, out.limits.Users, config.Name.UID},
		{"group", file.Caps.Groups, out.limits.Groups, config.Name.GID},
	} {
		for _, name := range slices.Sorted(maps.Keys(kind.from)) {
			id, err := kind.id(name)
			if err != nil {
				return out, fmt.Errorf("%s: caps.%ss: %w", path, kind.whom, err)
			}
			kind.into[id] = fill(kind.from[name], out.limits.Others)
			if _, replaced := priorities[id]; kind.whom == "group" || !replaced {
				show(kind.whom+" "+string(name), kind.into[id], control.SourceFile)
			}
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(priorities)) {
		l, known := out.limits.Users[uid]
		if !known {
			l = out.limits.Others
		}
		l.Priority = priorities[uid]
		out.limits.Users[uid] = l
		show("user "+strconv.Itoa(uid), l, control.SourceFlag)
	}
	return out, nil
}

// keepFile is the file for run-time settings of the daemon in a directory; empty: none. Daemons in
// other directories than the user's default have files of their own.
func keepFile(stateDir, dir string) string {
	switch {
	case stateDir == "":
		return ""
	case stateDir == dir || dir == control.DefaultDir(os.Geteuid(), os.Getenv):
		return filepath.Join(stateDir, state.FileName)
	}
	sum := sha256.Sum256([]byte(dir))
	return filepath.Join(stateDir, fmt.Sprintf("state-%x.json", sum[:8]))
}
