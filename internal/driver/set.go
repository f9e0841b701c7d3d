// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"xsched/internal/model"
)

// Set holds the drivers present on this host.
type Set struct {
	present []opened
	absent  []string // why the other drivers are absent
}

type opened struct {
	driver   Driver
	instance Instance
}

// OpenAll detects each driver, or only the one named by --virtual.
func OpenAll(all []Driver, o Options, virtual string) *Set {
	s := &Set{}
	for _, d := range all {
		if o.Virtual && d.Name() != virtual {
			continue
		}
		i, err := d.Open(o)
		if err != nil {
			s.absent = append(s.absent, err.Error())
			continue
		}
		s.present = append(s.present, opened{d, i})
	}
	return s
}

// Empty reports that no driver is present.
func (s *Set) Empty() bool { return len(s.present) == 0 }

// Absent explains which drivers are missing and why.
func (s *Set) Absent() string { return strings.Join(s.absent, "; ") }

// NewSession prepares every driver for a process that connected.
func (s *Set) NewSession(o SessionOptions) Session {
	var parts []Part
	for _, p := range s.present {
		parts = append(parts, Part{p.driver.Frames(), p.instance.NewSession(o)})
	}
	return Combine(s.Absent(), parts...)
}

// SelfTesters returns the drivers that support self-tests.
func (s *Set) SelfTesters() []SelfTester {
	var out []SelfTester
	for _, p := range s.present {
		if t, ok := p.instance.(SelfTester); ok {
			out = append(out, t)
		}
	}
	return out
}

// Devices lists the GPUs of all drivers.
func (s *Set) Devices() []model.DeviceID {
	seen := map[model.DeviceID]bool{}
	for _, p := range s.present {
		for _, id := range p.instance.Devices() {
			seen[id] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// Describe asks the driver that lists the GPU, or else the first one.
func (s *Set) Describe(id model.DeviceID, owned bool) Device {
	out := Device{MaxLevel: model.LevelBlock, Reason: s.Absent()}
	for n, p := range s.present {
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
	for _, p := range s.present {
		for gpu, pids := range p.instance.Users(managed) {
			out[gpu] = append(out[gpu], pids...)
		}
	}
	return out
}

// Attach tries each driver until one recognizes the process.
func (s *Set) Attach(ctx context.Context, r AttachRequest) (Attached, error) {
	first := error(&AttachError{
		Refusal: RefusedSupport, Remedy: "start it with `xsched run`", Err: errors.New("no driver: " + s.Absent()),
	})
	for n, p := range s.present {
		a, err := p.instance.Attach(ctx, r)
		if err == nil {
			return a, nil
		}
		var refused *AttachError
		if !errors.As(err, &refused) || refused.Refusal != RefusedNotUsed {
			return nil, err
		}
		if n == 0 {
			first = err
		}
	}
	return nil, first
}
