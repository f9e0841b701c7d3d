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

// Set is the drivers that this host has.
type Set struct {
	present []opened
	absent  []string // why the others are not there
}

type opened struct {
	driver   Driver
	instance Instance
}

// OpenAll detects each driver. Under --virtual only the named one is opened.
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

// Empty reports that there is no driver at all.
func (s *Set) Empty() bool { return len(s.present) == 0 }

// Absent says why drivers are missing; empty: none is.
func (s *Set) Absent() string { return strings.Join(s.absent, "; ") }

// NewSession prepares every driver for a process that joined.
func (s *Set) NewSession(o SessionOptions) Session {
	var parts []Part
	for _, p := range s.present {
		parts = append(parts, Part{p.driver.Frames(), p.instance.NewSession(o)})
	}
	return Combine(s.Absent(), parts...)
}

// SelfTesters returns the drivers that can test themselves.
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

// Users joins what the drivers find.
func (s *Set) Users(managed map[int]bool) map[model.DeviceID][]int {
	out := map[model.DeviceID][]int{}
	for _, p := range s.present {
		for gpu, pids := range p.instance.Users(managed) {
			out[gpu] = append(out[gpu], pids...)
		}
	}
	return out
}

// Attach asks each driver in turn until one says that the process uses it.
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
