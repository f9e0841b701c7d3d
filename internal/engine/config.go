// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
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
}

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
