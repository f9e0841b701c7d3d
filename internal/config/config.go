// SPDX-License-Identifier: Apache-2.0

// Package config reads the daemon's configuration file: a strict YAML schema, the caps of users and
// groups, and the rules that give hints to programs. A key with a `flag` tag is also a flag of
// `xsched serve`, which takes precedence.
package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"xsched/internal/model"
)

// Default is the file of root's daemon.
const Default = "/etc/xsched/config.yaml"

// File is a configuration file. Absent keys are nil or empty. The struct is the single definition of
// the schema. The tags:
//
//	yaml     name of the key
//	flag     flag of `xsched serve` with the same meaning
//	range    smallest and largest number or duration
//	enum     allowed values
//	restart  "yes": a change takes effect at the next start of the daemon
//	help     one line
type File struct {
	Policy          *Policy       `yaml:"policy" flag:"policy" help:"scheduling policy"`
	Mode            *Mode         `yaml:"mode" flag:"mode" help:"off, timeslice, suspend, level 1 to 3, or live"`
	Quantum         *Duration     `yaml:"quantum" flag:"quantum" range:"100us..10s" help:"turn of each program under rotating policies"`
	Hold            *Duration     `yaml:"hold" flag:"hold" range:"0s..10s" help:"how long a high-priority program that becomes idle keeps the GPU"`
	StarvationBound *Duration     `yaml:"starvation_bound" flag:"starvation-bound" range:"0s..1h0m0s" help:"longest time that a busy program may go without GPU progress; 0s disables the bound"`
	GPUs            map[GPU]OnGPU `yaml:"gpus" help:"policy and mode of single GPUs, by PCI address"`
	Limits          Limits        `yaml:"limits" help:"numbers of connected programs"`
	Caps            Caps          `yaml:"caps" help:"limits of the users of root's daemon"`
	Rules           []Rule        `yaml:"rules" help:"hints for programs; the first rule that matches a program applies"`
	HTTP            HTTP          `yaml:"http" help:"the HTTP listener"`
	Log             Log           `yaml:"log" help:"the daemon's log"`
	HostMemory      *Amount       `yaml:"host_memory" flag:"host-memory" restart:"yes" help:"host memory for moved GPU memory, such as 64GiB; default half of what is available"`
	SelfTest        *string       `yaml:"self_test" flag:"self-test" enum:"auto,on,off" restart:"yes" help:"test preemption on idle GPUs in the background"`
	Sensors         *string       `yaml:"sensors" flag:"sensors" enum:"on,off" restart:"yes" help:"read memory, power, temperature and errors of the GPUs"`
	Alerts          Alerts        `yaml:"alerts" help:"where the daemon sends alerts"`
	GuardianCgroup  *string       `yaml:"guardian_cgroup" flag:"guardian-cgroup" restart:"yes" help:"folder of a cgroup for the guardian, unless its service runs"`
	Audit           *string       `yaml:"audit" flag:"audit" restart:"yes" help:"append changes, their authors and faults to this file; auto or off"`
	Record          *string       `yaml:"record" flag:"record" restart:"yes" help:"record all scheduling events to this file"`
}

// OnGPU is the policy and the mode of one GPU.
type OnGPU struct {
	Policy *Policy `yaml:"policy" help:"scheduling policy of this GPU"`
	Mode   *Mode   `yaml:"mode" help:"mode of this GPU"`
}

// Limits are numbers of connected programs.
type Limits struct {
	MaxSessions        *int `yaml:"max_sessions" flag:"max-sessions" range:"1..65536" help:"connected programs"`
	MaxSessionsPerUser *int `yaml:"max_sessions_per_user" flag:"max-sessions-per-user" range:"1..65536" help:"connected programs of one user"`
}

// HTTP is the HTTP listener.
type HTTP struct {
	Address       *Address `yaml:"address" flag:"http" restart:"yes" help:"HOST:PORT, or off"`
	TokenFile     *string  `yaml:"token_file" flag:"http-token-file" restart:"yes" help:"file with the bearer token; required if other machines can reach the address"`
	ViewTokenFile *string  `yaml:"view_token_file" flag:"http-view-token-file" restart:"yes" help:"file with a second token, which only allows reading"`
}

// Alerts are the receivers of alerts.
type Alerts struct {
	Command   *string `yaml:"command" flag:"alert-command" restart:"yes" help:"absolute path of a program that gets each alert as JSON on its standard input"`
	URL       *string `yaml:"url" flag:"alert-url" restart:"yes" help:"http or https address that gets each alert in a POST"`
	TokenFile *string `yaml:"token_file" flag:"alert-token-file" restart:"yes" help:"file with the bearer token for the address"`
}

// Log is the daemon's log.
type Log struct {
	Level  *string `yaml:"level" flag:"log-level" enum:"debug,info,warn,error" help:"least severe level in the log"`
	Format *string `yaml:"format" flag:"log-json" enum:"text,json" restart:"yes" help:"form of a line"`
}

// Caps are the limits of the users of root's daemon. The entry of a user counts first, then the
// highest of the user's groups, then Default.
type Caps struct {
	Default *Cap         `yaml:"default" help:"all other users"`
	Users   map[Name]Cap `yaml:"users" help:"by user name or uid"`
	Groups  map[Name]Cap `yaml:"groups" help:"by group name or gid"`
}

// Cap limits what a program of a user can reach by itself.
type Cap struct {
	Priority *int `yaml:"priority" range:"-255..255" help:"highest rank, whatever hint it follows from"`
	Share    *int `yaml:"share" range:"1..100" help:"largest share of each program in percent, under policies with shares"`
}

// Rule gives hints to the programs that match.
type Rule struct {
	Name  string `yaml:"name" help:"name in messages and in the output of xsched config show"`
	Match Match  `yaml:"match" help:"all conditions must hold; a program in a container matches by cgroup or container"`
	Hints Hints  `yaml:"hints" help:"hints of the command line, such as priority, share, slo, deadline"`

	line, column int
}

// Match are the conditions of a rule. In a pattern, * stands for any text and ? for one character.
type Match struct {
	Command    *Pattern `yaml:"command" help:"pattern for the command line, its first word, or the last path element of that word; a program chooses it"`
	Executable *Pattern `yaml:"executable" help:"pattern for the path of the executable on the host, without symbolic links"`
	User       *Name    `yaml:"user" help:"user name or uid, outside of containers"`
	Group      *Name    `yaml:"group" help:"group name or gid, outside of containers"`
	Unit       *Pattern `yaml:"unit" help:"pattern for the systemd unit, such as triton.service"`
	Cgroup     *Pattern `yaml:"cgroup" help:"pattern for the cgroup's path"`
	Container  *Pattern `yaml:"container" help:"pattern for the last path element of the container's cgroup, such as docker-*"`
}

// Policy is the name of a policy, as the policies spell it.
type Policy string

// Mode is a mode, with its level for mode level.
type Mode struct {
	Mode  model.Mode
	Level model.Level
}

// ParseMode reads "live" or "level 2".
func ParseMode(text string) (Mode, error) {
	name, level, has := strings.Cut(text, " ")
	m := Mode{Mode: model.Mode(name)}
	known := false
	for _, k := range model.Modes {
		known = known || k == m.Mode
	}
	switch n, err := strconv.Atoi(level); {
	case !known:
		return m, fmt.Errorf("unknown mode %q; use off, timeslice, suspend, level 1, level 2, level 3 or live", text)
	case m.Mode != model.ModeLevel && has:
		return m, fmt.Errorf("mode %s takes no level; use `level %s`", name, level)
	case m.Mode == model.ModeLevel && (err != nil || n < int(model.LevelBlock) || n > int(model.LevelInterrupt)):
		return m, fmt.Errorf("mode %q needs a level; use level 1, level 2 or level 3", text)
	default:
		m.Level = model.Level(n)
	}
	return m, nil
}

func (m Mode) String() string {
	if m.Mode == model.ModeLevel {
		return fmt.Sprintf("%s %d", m.Mode, m.Level)
	}
	return string(m.Mode)
}

// Duration is a time such as 20ms.
type Duration time.Duration

func (d Duration) String() string { return time.Duration(d).String() }

// Amount is an amount of memory, such as 40GiB.
type Amount model.Bytes

func (a Amount) String() string { return model.Bytes(a).String() }

// GPU is the PCI address of a GPU.
type GPU model.DeviceID

func (g GPU) String() string { return model.DeviceID(g).String() }

// Address is HOST:PORT, or off.
type Address string

// Name is a user or group, by name or number.
type Name string

// Pattern is text in which * stands for any text and ? for one character.
type Pattern struct {
	text  string
	match func(string) bool
}

func (p Pattern) String() string { return p.text }

// Hints are hints by their names on the command line of `xsched run`.
type Hints struct{ model.HintChange }

// Value is the value of one key.
type Value struct {
	Key, Value string
	Flag       string // of `xsched serve`; empty: none
	Restart    bool   // a change takes effect at the next start
}

// Values returns the plain values of a file in the order of the schema: not those of caps and rules.
// Keys of nested mappings are joined by dots.
func (f *File) Values() []Value {
	var out []Value
	each(reflect.ValueOf(f).Elem(), "", func(key string, field reflect.StructField, v reflect.Value) {
		if v.Kind() == reflect.Pointer && !v.IsNil() {
			out = append(out, valueOf(key, field, fmt.Sprint(v.Elem().Interface())))
		}
	})
	return out
}

// Keys returns all plain keys of the schema, without values.
func Keys() []Value {
	var out []Value
	each(reflect.ValueOf(&File{}).Elem(), "", func(key string, field reflect.StructField, v reflect.Value) {
		if v.Kind() == reflect.Pointer {
			out = append(out, valueOf(key, field, ""))
		}
	})
	return out
}

func valueOf(key string, field reflect.StructField, text string) Value {
	return Value{Key: key, Value: text, Flag: field.Tag.Get("flag"), Restart: field.Tag.Get("restart") != ""}
}

// each visits the fields of a struct and of its nested mappings, but not of caps.
func each(v reflect.Value, prefix string, f func(string, reflect.StructField, reflect.Value)) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name := field.Tag.Get("yaml")
		if name == "" || field.Type == reflect.TypeFor[Caps]() {
			continue
		}
		if field.Type.Kind() == reflect.Struct {
			each(v.Field(i), prefix+name+".", f)
			continue
		}
		f(prefix+name, field, v.Field(i))
	}
}
