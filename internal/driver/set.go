// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"xsched/internal/model"
)

// retryOpen is the least time between two attempts to open the absent drivers.
const retryOpen = 5 * time.Second

// Set holds the drivers present on this host. A module may be loaded after the daemon started, so
// absent drivers are tried again when a process joins, and when the GPUs are listed.
type Set struct {
	options Options
	lister  lister

	mu      sync.Mutex
	present []opened
	absent  []missing
	tried   time.Time // last attempt to open the absent drivers
	onFound func(Instance)
}

type missing struct {
	driver Driver
	reason string
	onBus  bool // this host has a GPU for the driver
}

// Finder is a Driver that finds its GPUs on the bus, also without its kernel module.
type Finder interface {
	// OnBus returns the PCI addresses of the driver's GPUs on a host.
	OnBus(root string) []string
}

type opened struct {
	driver   Driver
	instance Instance
}

// OpenAll detects each driver, or only the one named by --virtual.
func OpenAll(all []Driver, o Options, virtual string) *Set {
	s := &Set{options: o, onFound: func(Instance) {}}
	for _, d := range all {
		if !o.Virtual || d.Name() == virtual {
			s.absent = append(s.absent, missing{driver: d})
		}
	}
	s.open()
	return s
}

// open tries the absent drivers, within retryOpen once.
func (s *Set) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.absent) == 0 || time.Since(s.tried) < retryOpen {
		return
	}
	var still []missing
	for _, m := range s.absent {
		i, err := m.driver.Open(s.options)
		if err != nil {
			f, ok := m.driver.(Finder)
			still = append(still, missing{m.driver, err.Error(), ok && len(f.OnBus(s.options.Root)) > 0})
			continue
		}
		s.present = append(slices.Clone(s.present), opened{m.driver, i})
		s.onFound(i)
	}
	s.absent, s.tried = still, time.Now()
}

// Found calls f once for each driver, now or when it appears. f must not call the set.
func (s *Set) Found(f func(Instance)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onFound = f
	for _, p := range s.present {
		f(p.instance)
	}
}

// drivers returns the present drivers; the caller must not change the list.
func (s *Set) drivers() []opened {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.present
}

// Empty reports that no driver is present.
func (s *Set) Empty() bool { return len(s.drivers()) == 0 }

// Absent explains which drivers are missing and why: those for GPUs of this host, or all if it
// shows none.
func (s *Set) Absent() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	some := slices.ContainsFunc(s.absent, func(m missing) bool { return m.onBus })
	var why []string
	for _, m := range s.absent {
		if m.onBus || !some {
			why = append(why, m.reason)
		}
	}
	return strings.Join(why, "; ")
}

// NewSession prepares every driver for a process that connected.
func (s *Set) NewSession(o SessionOptions) Session {
	s.open()
	var parts []Part
	for _, p := range s.drivers() {
		parts = append(parts, Part{p.driver.Frames(), p.instance.NewSession(o)})
	}
	return combine(s.Absent(), func() *listing { return s.lister.list(s.drivers(), &s.options) }, parts)
}

// Devices lists the GPUs of all drivers.
func (s *Set) Devices() []model.DeviceID {
	s.open()
	seen := map[model.DeviceID]bool{}
	for _, p := range s.drivers() {
		for _, id := range p.instance.Devices() {
			seen[id] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// Describe asks the driver that lists the GPU, or else the first one.
func (s *Set) Describe(id model.DeviceID, owned bool) Device {
	out := Device{MaxLevel: model.LevelBlock, Reason: s.Absent()}
	for n, p := range s.drivers() {
		d, listed := p.instance.Describe(id, owned)
		if listed {
			return d
		}
		if n == 0 {
			out = d
		}
	}
	return out
}

// Users merges the users that each driver finds.
func (s *Set) Users(managed map[int]bool) map[model.DeviceID][]int {
	out := map[model.DeviceID][]int{}
	for _, p := range s.drivers() {
		for gpu, pids := range p.instance.Users(managed) {
			out[gpu] = append(out[gpu], pids...)
		}
	}
	return out
}

// UsedBy merges the GPUs that a process uses.
func (s *Set) UsedBy(pid int) []model.DeviceID {
	var out []model.DeviceID
	for _, p := range s.drivers() {
		out = append(out, p.instance.UsedBy(pid)...)
	}
	return out
}

// Attach tries each driver until one recognizes the process. A driver that is not supported
// does not know, so the next one is tried too.
func (s *Set) Attach(ctx context.Context, r AttachRequest) (Attached, error) {
	s.open()
	first := error(&AttachError{
		Refusal: RefusedSupport, Remedy: "start it with `xsched run`", Err: errors.New("no driver: " + s.Absent()),
	})
	for n, p := range s.drivers() {
		a, err := p.instance.Attach(ctx, r)
		if err == nil {
			return a, nil
		}
		var refused *AttachError
		if !errors.As(err, &refused) || refused.Refusal != RefusedNotUsed && refused.Refusal != RefusedSupport {
			return nil, err
		}
		if n == 0 {
			first = err
		}
	}
	return nil, first
}
