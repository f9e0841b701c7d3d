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
	"time"

	"xsched/internal/driver"
	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

// Verdict is what a GPU with this driver does, as a probe on a process's own objects has shown.
type Verdict struct {
	Stop    bool   `json:"stop"`   // levels 2 and 3
	Slices  bool   `json:"slices"` // timeslices can be read; setting needs the same right
	Reason  string `json:"reason,omitempty"`
	Compute string `json:"compute_mode,omitempty"` // default, exclusive, prohibited; empty: unknown
}

// From ctrl2080gpu.h: NV2080_CTRL_GPU_COMPUTE_MODE_RULES_*.
var computeModes = map[uint32]string{0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}

// levelCache is the evidence about each GPU under one driver release: what probes on
// processes' own objects have shown, and the self-test. Positive verdicts of probes outlive the
// daemon on disk. A negative one may have its cause in the process: it counts for that process at
// once, for all only when several processes agree, and it expires.
type levelCache struct {
	mu       sync.Mutex
	path     string
	known    map[model.DeviceID]Verdict // positive
	refusals map[model.DeviceID]map[int]refusal
	tests    map[model.DeviceID]driver.SelfTest
}

// refusal is a negative verdict of one process.
type refusal struct {
	at      time.Time
	verdict Verdict
}

// holds says that it has not expired; the zero refusal never holds.
func (r refusal) holds() bool { return time.Since(r.at) <= refusalAge }

// works says that nothing is missing.
func (v Verdict) works() bool { return v.Stop && v.Slices }

// cacheFile is the cache on disk.
type cacheFile struct {
	Driver string             `json:"driver"`
	GPUs   map[string]Verdict `json:"gpus"` // by PCI address
}

// CacheLevels keeps what probes show in a file of the daemon's folder, one for
// each version of the driver.
func (d *Driver) CacheLevels(dir string) error {
	d.refresh.Lock()
	defer d.refresh.Unlock()
	d.dir = dir
	return d.loadLevels(d.release.Load())
}

// loadLevels reads what earlier daemons have learnt about a release. Preconditions: d.refresh is held.
func (d *Driver) loadLevels(r *release) error {
	if d.dir == "" {
		return nil
	}
	c := r.levels
	c.mu.Lock()
	defer c.mu.Unlock()
	c.path = filepath.Join(d.dir, "levels-"+r.version+".json")
	b, err := os.ReadFile(c.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read probed levels: %w", err)
	}
	var file cacheFile
	if err := json.Unmarshal(b, &file); err != nil || file.Driver != r.version {
		return fmt.Errorf("read probed levels: %s is not a cache for driver %s (%w)", c.path, r.version, err)
	}
	for name, v := range file.GPUs {
		if gpu, err := model.ParseDeviceID(name); err == nil && v.works() {
			c.put(gpu, v)
		}
	}
	return nil
}

// put enters a positive verdict. Preconditions: c.mu is held.
func (c *levelCache) put(gpu model.DeviceID, v Verdict) {
	if c.known == nil {
		c.known = map[model.DeviceID]Verdict{}
	}
	c.known[gpu] = v
}

// verdict is what probes have shown about a GPU.
func (c *levelCache) verdict(gpu model.DeviceID) (Verdict, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v, ok := c.known[gpu]; ok {
		return v, true
	}
	var newest refusal
	for process, r := range c.refusals[gpu] {
		switch {
		case !r.holds():
			delete(c.refusals[gpu], process)
		case r.at.After(newest.at):
			newest = r
		}
	}
	if len(c.refusals[gpu]) < refusalsNeeded {
		return Verdict{}, false
	}
	v := newest.verdict
	v.Reason = fmt.Sprintf("%s (%d processes agree; asked again within %v)", v.Reason, len(c.refusals[gpu]), refusalAge)
	return v, true
}

// tested returns the self-test of a GPU.
func (c *levelCache) tested(gpu model.DeviceID) (driver.SelfTest, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, ok := c.tests[gpu]
	return t, ok
}

// anyPassed says that a self-test has passed on some GPU.
func (c *levelCache) anyPassed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.tests {
		if t.Outcome == driver.OutcomePassed {
			return true
		}
	}
	return false
}

// Verdict returns what is known of a GPU: probed is false where no process has shown it.
func (d *Driver) Verdict(gpu model.DeviceID) (v Verdict, probed bool) {
	if d.ungated {
		return Verdict{Stop: true, Slices: true}, true
	}
	r := d.release.Load()
	v, probed = r.levels.verdict(gpu)
	stop, slices, reason := r.allowed(gpu)
	if !stop {
		return Verdict{Slices: slices, Reason: reason, Compute: v.Compute}, true
	}
	v.Slices = v.Slices && slices
	return v, probed
}

// learn keeps what the probe of a process has shown; positive verdicts also on disk.
func (d *Driver) learn(gpu model.DeviceID, process int, v Verdict) error {
	r := d.release.Load()
	c := r.levels
	c.mu.Lock()
	defer c.mu.Unlock()
	if !v.works() {
		if c.refusals == nil {
			c.refusals = map[model.DeviceID]map[int]refusal{}
		}
		if c.refusals[gpu] == nil {
			c.refusals[gpu] = map[int]refusal{}
		}
		c.refusals[gpu][process] = refusal{time.Now(), v}
		return nil
	}
	c.put(gpu, v)
	delete(c.refusals, gpu)
	if c.path == "" {
		return nil
	}
	file := cacheFile{Driver: r.version, GPUs: map[string]Verdict{}}
	for id, v := range c.known {
		file.GPUs[id.String()] = v
	}
	if err := writeJSON(c.path, file); err != nil {
		return fmt.Errorf("write probed levels: %w", err)
	}
	return nil
}

// writeJSON replaces a file in one step: a daemon that dies here leaves the old file or the new one.
func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	next := fmt.Sprintf("%s.%d.new", path, os.Getpid())
	if err := os.WriteFile(next, append(b, '\n'), 0o644); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		_ = os.Remove(next)
		return err
	}
	return nil
}

// capability is what can be done to a process that has channels on a GPU. own is what
// its own probe has shown, if that was negative.
func (d *Driver) capability(gpu model.DeviceID, own refusal) driver.Capability {
	v, ok := d.Verdict(gpu)
	if !ok && own.holds() {
		v, ok = own.verdict, true
	}
	switch {
	case !ok:
		return driver.Capability{MaxLevel: model.LevelBlock, Reason: "the levels of this GPU are being probed"}
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
	if s.driver.ungated {
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
		s.mu.Lock()
		delete(s.refused, gpu)
		if !v.works() {
			if s.refused == nil {
				s.refused = map[model.DeviceID]refusal{}
			}
			s.refused[gpu] = refusal{time.Now(), v}
		}
		s.mu.Unlock()
		if err := s.driver.learn(gpu, s.process, v); err != nil {
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
		if _, ok := s.driver.Verdict(gpu); ok || s.refused[gpu].holds() {
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
		v.Reason = fmt.Sprintf("driver %s does not tell timeslices here: %s", d.Version(), v.Reason)
	}
	one := disableChannels(false, false, u.client.handle, []uint32{u.stop[0].handle})
	if v.Stop, err = ask(u.subdevice, abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, one); err != nil {
		return v, err
	}
	if !v.Stop {
		v.Reason = fmt.Sprintf("driver %s does not stop channels here: %s", d.Version(), v.Reason)
	}
	// Only for people to read: whatever the answer, nothing depends on it.
	rules := make([]byte, 4)
	if d.control(ctx, u.client.file, u.client.handle, u.subdevice, abi.NV2080_CTRL_CMD_GPU_QUERY_COMPUTE_MODE_RULES, rules) == nil {
		v.Compute = computeModes[binary.NativeEndian.Uint32(rules)]
	}
	return v, nil
}
