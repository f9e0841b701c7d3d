// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"xsched/internal/atomicfile"
	"xsched/internal/driver"
	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

// Verdict is what a GPU supports under this driver, as probed on a process's own objects.
type Verdict struct {
	Stop    bool   `json:"stop"`   // levels 2 and 3
	Slices  bool   `json:"slices"` // timeslices are readable; setting needs the same right
	Reason  string `json:"reason,omitempty"`
	Compute string `json:"compute_mode,omitempty"` // default, exclusive, prohibited; empty: unknown
	Memory  uint64 `json:"memory_bytes,omitempty"` // of the GPU, for programs; 0: unknown
}

// From ctrl2080gpu.h: NV2080_CTRL_GPU_COMPUTE_MODE_RULES_*.
var computeModes = map[uint32]string{0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}

// levelCache is the evidence about each GPU under one driver release: probes and the self-test.
// Positive verdicts persist on disk. A negative verdict may be specific to a process: it applies to
// that process at once, to all when several processes agree, and expires.
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

// holds reports whether the refusal is unexpired; the zero refusal never holds.
func (r refusal) holds() bool { return time.Since(r.at) <= refusalAge }

// works reports full support.
func (v Verdict) works() bool { return v.Stop && v.Slices }

// cacheFile is the cache on disk.
type cacheFile struct {
	Driver string             `json:"driver"`
	GPUs   map[string]Verdict `json:"gpus"` // by PCI address
}

// CacheLevels persists probe results in the daemon's directory, one file per driver version.
func (d *Driver) CacheLevels(dir string) error {
	d.refresh.Lock()
	defer d.refresh.Unlock()
	d.dir = dir
	return d.loadLevels(d.release.Load())
}

// loadLevels reads the persisted verdicts of a release. Preconditions: d.refresh is held.
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

// put stores a positive verdict. Preconditions: c.mu is held.
func (c *levelCache) put(gpu model.DeviceID, v Verdict) {
	if c.known == nil {
		c.known = map[model.DeviceID]Verdict{}
	}
	c.known[gpu] = v
}

// verdict returns the probe result for a GPU.
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
	v.Reason = fmt.Sprintf("%s (%d processes agree; probed again within %v)", v.Reason, len(c.refusals[gpu]), refusalAge)
	return v, true
}

// tested returns the self-test of a GPU.
func (c *levelCache) tested(gpu model.DeviceID) (driver.SelfTest, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, ok := c.tests[gpu]
	return t, ok
}

// anyPassed reports whether a self-test passed on some GPU.
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

// Verdict returns the evidence about a GPU; probed is false without a probe by any process.
func (d *Driver) Verdict(gpu model.DeviceID) (v Verdict, probed bool) {
	if d.ungated {
		return Verdict{Stop: true, Slices: true}, true
	}
	r := d.release.Load()
	v, probed = r.levels.verdict(gpu)
	stop, slices, reason := r.allowed(gpu)
	if !stop {
		return Verdict{Slices: slices, Reason: reason, Compute: v.Compute, Memory: v.Memory}, true
	}
	v.Slices = v.Slices && slices
	return v, probed
}

// learn records a process's probe result and persists positive verdicts.
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

// writeJSON replaces a file atomically.
func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(path, 0o644, func(w io.Writer) error { _, err := w.Write(append(b, '\n')); return err })
}

// capability returns what a process with channels on a GPU supports. own is its own negative probe
// result, if any.
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

// MPSReason explains that MPS owns the channels of new programs; empty without MPS.
func (d *Driver) MPSReason() string {
	d.mps.look()
	return d.mps.reason()
}

// probeLevels probes each GPU that the process has channels on and that has no verdict, the GPUs in
// parallel. An error asks for a retry.
func (s *Objects) probeLevels(ctx context.Context, wait time.Duration) error {
	if s.driver.ungated {
		return nil
	}
	units := s.unjudged()
	return all(&s.judging, wait, slices.Collect(maps.Keys(units)), func(gpu model.DeviceID) error {
		return s.judge(ctx, gpu, units[gpu])
	})
}

// judge probes one GPU and records the verdict.
func (s *Objects) judge(ctx context.Context, gpu model.DeviceID, u unit) error {
	unlock := s.locks.lock(gpu)
	// The probe enables a channel, so it must not follow a stop.
	_, known := s.driver.Verdict(gpu)
	s.mu.Lock()
	runs := u.stop[0].stopped == 0 && !u.stop[0].stale
	s.mu.Unlock()
	if known || !runs {
		unlock()
		return nil
	}
	v, err := s.driver.judge(ctx, gpu, u)
	unlock()
	if err != nil {
		return fmt.Errorf("probe levels of %s: %w", gpu, err)
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
	return s.driver.learn(gpu, s.process, v) // the verdict stands even if persisting it fails
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

// judge probes without side effects: it reads a timeslice and enables channels that already run,
// with the request that also stops them.
func (d *Driver) judge(ctx context.Context, gpu model.DeviceID, u unit) (Verdict, error) {
	var v Verdict
	ask := func(object, cmd uint32, params []byte) (bool, error) {
		err := d.control(ctx, u.client.file, u.client.handle, object, cmd, params)
		st, answered := statusOf(err)
		switch {
		case err == nil:
			return true, nil
		case !answered || st.transient() || st.gone():
			return false, err // no evidence about the GPU
		}
		v.Reason = err.Error()
		return false, nil
	}
	var err error
	if v.Slices, err = ask(u.compute[0].handle, abi.NVA06C_CTRL_CMD_GET_TIMESLICE, make([]byte, 8)); err != nil {
		return v, err
	}
	if !v.Slices {
		v.Reason = fmt.Sprintf("driver %s does not report timeslices here: %s", d.Version(), v.Reason)
	}
	one := disableChannels(false, false, u.client.handle, []uint32{u.stop[0].handle})
	if v.Stop, err = ask(u.subdevice, abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, one); err != nil {
		return v, err
	}
	if !v.Stop {
		v.Reason = fmt.Sprintf("driver %s does not stop channels here: %s", d.Version(), v.Reason)
	}
	// Informational only; no decision depends on it.
	rules := make([]byte, 4)
	if d.control(ctx, u.client.file, u.client.handle, u.subdevice, abi.NV2080_CTRL_CMD_GPU_QUERY_COMPUTE_MODE_RULES, rules) == nil {
		v.Compute = computeModes[binary.NativeEndian.Uint32(rules)]
	}
	v.Memory = d.memory(ctx, u, gpu)
	return v, nil
}
