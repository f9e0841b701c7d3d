// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// Config configures an engine. Zero values mean the defaults, except for
// StarvationBound and Hold, where zero means none. Start from DefaultConfig.
type Config struct {
	Policy     string
	Mode       model.Mode
	ForceLevel model.Level // with ModeLevel only

	policy.Knobs

	// InFlight and Batch are the Lv1 limits of a queue whose hint sets none.
	InFlight, Batch int

	// Strategies are those that the policies have beside their own.
	Strategies policy.Strategies `json:"-"`

	// Devices are the settings of devices that differ from the ones above.
	Devices map[model.DeviceID]Setting `json:",omitempty"`
}

// Setting is the policy and the mode of one device. Empty fields mean the engine's own.
type Setting struct {
	Policy     string      `json:"policy,omitempty"`
	Mode       model.Mode  `json:"mode,omitempty"`
	ForceLevel model.Level `json:"level,omitempty"` // with ModeLevel only
}

// maxSettings bounds the devices with settings of their own.
const maxSettings = 256

// On returns the configuration of one device.
func (c *Config) On(id model.DeviceID) Config {
	out := *c
	s := c.Devices[id]
	out.Devices = nil
	if s.Policy != "" {
		out.Policy = s.Policy
	}
	if s.Mode != "" {
		out.Mode, out.ForceLevel = s.Mode, s.ForceLevel
	}
	return out
}

// set changes the setting of one device; a zero setting removes it.
func (c *Config) set(id model.DeviceID, s Setting) error {
	if _, known := c.Devices[id]; !known && len(c.Devices) >= maxSettings && s != (Setting{}) {
		return fmt.Errorf("set device %s: %d devices have settings of their own, which is the limit", id, maxSettings)
	}
	c.Devices = maps.Clone(c.Devices) // a caller of Engine.Config may hold the old one
	if c.Devices == nil {
		c.Devices = map[model.DeviceID]Setting{}
	}
	if c.Devices[id] = s; s == (Setting{}) {
		delete(c.Devices, id)
	}
	return nil
}

// Suspends reports that the mode suspends queues.
func (c *Config) Suspends() bool { return c.suspends() }

func (c *Config) suspends() bool { return c.Mode != model.ModeOff && c.Mode != model.ModeTimeslice }

// DefaultConfig returns the defaults. policy.Knobs gives the reasons for them.
func DefaultConfig() Config {
	return Config{Policy: "HPF", Mode: model.ModeLive, Knobs: policy.DefaultKnobs(), InFlight: 4, Batch: 2}
}

// complete fills in the defaults and checks the rest.
func (c Config) complete() (Config, error) {
	d := DefaultConfig()
	if c.Policy == "" {
		c.Policy = d.Policy
	}
	if c.Mode == "" {
		c.Mode = d.Mode
	}
	for _, f := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{
		{"quantum", &c.Quantum, d.Quantum},
		{"starvation bound", &c.StarvationBound, 0},
		{"hold", &c.Hold, 0},
		{"high slice", &c.HighSlice, d.HighSlice},
		{"low slice", &c.LowSlice, d.LowSlice},
		{"peer slice", &c.PeerSlice, d.PeerSlice},
		{"grant slice", &c.GrantSlice, d.GrantSlice},
		{"native slice", &c.NativeSlice, d.NativeSlice},
		{"timeslice", &c.Timeslice, d.Timeslice},
		{"largest share's slice", &c.ShareMax, d.ShareMax},
		{"window", &c.Window, d.Window},
		{"boost", &c.Boost, d.Boost},
	} {
		if *f.value < 0 {
			return c, fmt.Errorf("check configuration: %s is %v: must not be negative", f.name, *f.value)
		}
		if *f.value == 0 {
			*f.value = f.def
		}
	}
	if c.InFlight < 0 || c.Batch < 0 {
		return c, errors.New("check configuration: limits must not be negative")
	}
	if c.InFlight == 0 {
		c.InFlight = d.InFlight
	}
	if c.Batch == 0 {
		c.Batch = min(d.Batch, c.InFlight)
	}
	for id, s := range c.Devices {
		if s.Mode == "" {
			continue
		}
		if err := checkMode(s.Mode, s.ForceLevel); err != nil {
			return c, fmt.Errorf("check configuration of device %s: %w", id, err)
		}
	}
	return c, checkMode(c.Mode, c.ForceLevel)
}

func checkMode(mode model.Mode, level model.Level) error {
	names := make([]string, 0, len(model.Modes))
	for _, m := range model.Modes {
		if m == mode {
			if m == model.ModeLevel && (level < model.LevelBlock || level > model.LevelInterrupt) {
				return fmt.Errorf("mode %q: level %d: must be 1, 2 or 3", m, level)
			}
			return nil
		}
		names = append(names, string(m))
	}
	return fmt.Errorf("unknown mode %q: known are %s", mode, strings.Join(names, ", "))
}
