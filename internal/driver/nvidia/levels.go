// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"xsched/internal/driver"
	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

// Verdict is what a GPU with this driver really does, as a probe on a process's
// own objects has shown.
type Verdict struct {
	Stop    bool   `json:"stop"`   // levels 2 and 3
	Slices  bool   `json:"slices"` // timeslices can be read; setting is the same right
	Reason  string `json:"reason,omitempty"`
	Compute string `json:"compute_mode,omitempty"` // default, exclusive, prohibited; empty: not said
}

// From ctrl2080gpu.h: NV2080_CTRL_GPU_COMPUTE_MODE_RULES_*.
var computeModes = map[uint32]string{0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}

// levelCache holds one verdict a GPU, for one version of the driver. On disk it
// outlives the daemon; only what works is read back, so that a failure whose cause
// is gone is not remembered for ever.
type levelCache struct {
	mu    sync.Mutex
	path  string
	known map[model.DeviceID]Verdict
}

// cacheFile is the cache on disk.
type cacheFile struct {
	Driver string             `json:"driver"`
	GPUs   map[string]Verdict `json:"gpus"` // by PCI address
}

// CacheLevels keeps what probes show in a file of the daemon's folder, one for
// each version of the driver.
func (d *Driver) CacheLevels(dir string) error {
	c := d.levels
	c.mu.Lock()
	defer c.mu.Unlock()
	c.path = filepath.Join(dir, "levels-"+d.Version+".json")
	b, err := os.ReadFile(c.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read probed levels: %w", err)
	}
	var file cacheFile
	if err := json.Unmarshal(b, &file); err != nil || file.Driver != d.Version {
		return fmt.Errorf("read probed levels: %s is not one of ours for driver %s (%w)", c.path, d.Version, err)
	}
	for name, v := range file.GPUs {
		if gpu, err := model.ParseDeviceID(name); err == nil && v.Stop && v.Slices {
			c.put(gpu, v)
		}
	}
	return nil
}

// put enters a verdict. Preconditions: c.mu is held.
func (c *levelCache) put(gpu model.DeviceID, v Verdict) {
	if c.known == nil {
		c.known = map[model.DeviceID]Verdict{}
	}
	c.known[gpu] = v
}

// Verdict returns what is known of a GPU.
func (d *Driver) Verdict(gpu model.DeviceID) (Verdict, bool) {
	if d.levels == nil {
		return Verdict{Stop: true, Slices: true}, true
	}
	d.levels.mu.Lock()
	defer d.levels.mu.Unlock()
	v, ok := d.levels.known[gpu]
	return v, ok
}

// learn keeps a verdict, here and on disk.
func (d *Driver) learn(gpu model.DeviceID, v Verdict) error {
	c := d.levels
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(gpu, v)
	if c.path == "" {
		return nil
	}
	file := cacheFile{Driver: d.Version, GPUs: map[string]Verdict{}}
	for id, v := range c.known {
		file.GPUs[id.String()] = v
	}
	b, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return fmt.Errorf("write probed levels: %w", err)
	}
	// In one step: a daemon that dies here leaves the old file or the new one.
	next := c.path + ".new"
	if err := os.WriteFile(next, b, 0o644); err != nil {
		return fmt.Errorf("write probed levels: %w", err)
	}
	if err := os.Rename(next, c.path); err != nil {
		return fmt.Errorf("write probed levels: %w", err)
	}
	return nil
}

// capability is what can be done to a process that has channels on a GPU.
func (d *Driver) capability(gpu model.DeviceID) driver.Capability {
	v, ok := d.Verdict(gpu)
	switch {
	case !ok:
		return driver.Capability{MaxLevel: model.LevelBlock, Reason: "what this GPU does is being probed"}
	case !v.Stop:
		return driver.Capability{MaxLevel: model.LevelBlock, Slices: v.Slices, Reason: v.Reason}
	}
	return driver.Capability{MaxLevel: model.LevelInterrupt, Slices: v.Slices, Reason: v.Reason, Route: RouteChannels}
}

// MPSReason says that MPS owns the channels of programs that start now; empty: it does not.
func (d *Driver) MPSReason() string {
	d.mps.look()
	return d.mps.reason()
}

// probeLevels finds out what each GPU does on which the process has channels
// and nobody had before. The error is one after which asking again makes sense.
func (s *Objects) probeLevels(ctx context.Context) error {
	if s.driver.levels == nil {
		return nil
	}
	var failed error
	for gpu, u := range s.unjudged() {
		s.ops.Lock()
		v, err := s.driver.judge(ctx, u)
		s.ops.Unlock()
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("probe levels of %s: %w", gpu, err))
			continue
		}
		if err := s.driver.learn(gpu, v); err != nil {
			// The verdict holds; only the next daemon has to ask again.
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// unjudged returns a unit with channels for each GPU that has no verdict.
func (s *Objects) unjudged() map[model.DeviceID]unit {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[model.DeviceID]unit{}
	for gpu := range s.gpus() {
		if _, ok := s.driver.Verdict(gpu); ok {
			continue
		}
		for _, u := range s.units(gpu) {
			if len(u.stop) > 0 {
				out[gpu] = u
			}
		}
	}
	return out
}

// judge asks for what nobody notices: it reads the timeslice of a group, and enables
// channels that run already, with the very request that stops them.
func (d *Driver) judge(ctx context.Context, u unit) (Verdict, error) {
	var v Verdict
	ask := func(object, cmd uint32, params []byte) (bool, error) {
		err := d.control(ctx, u.client.file, u.client.handle, object, cmd, params)
		st, answered := statusOf(err)
		switch {
		case err == nil:
			return true, nil
		case !answered || st.transient() || st.gone():
			return false, err // says nothing about the GPU
		}
		v.Reason = err.Error()
		return false, nil
	}
	var err error
	if v.Slices, err = ask(u.compute[0].handle, abi.NVA06C_CTRL_CMD_GET_TIMESLICE, make([]byte, 8)); err != nil {
		return v, err
	}
	if !v.Slices {
		v.Reason = fmt.Sprintf("driver %s does not tell timeslices here: %s", d.Version, v.Reason)
	}
	one := disableChannels(false, false, u.client.handle, []uint32{u.stop[0].handle})
	if v.Stop, err = ask(u.subdevice, abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, one); err != nil {
		return v, err
	}
	if !v.Stop {
		v.Reason = fmt.Sprintf("driver %s does not stop channels here: %s", d.Version, v.Reason)
	}
	// Only for people to read: whatever the answer, nothing depends on it.
	rules := make([]byte, 4)
	if d.control(ctx, u.client.file, u.client.handle, u.subdevice, abi.NV2080_CTRL_CMD_GPU_QUERY_COMPUTE_MODE_RULES, rules) == nil {
		v.Compute = computeModes[binary.NativeEndian.Uint32(rules)]
	}
	return v, nil
}
