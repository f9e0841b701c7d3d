// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"xsched/internal/model"
	"xsched/internal/quarantine"
	"xsched/internal/wire"
)

// Part is one driver's session in a combined one.
type Part struct {
	Frames  uint32 // group of frame types
	Session Session
}

// Combine joins the sessions of a process that may use several drivers. absent is the reason to
// report on a host without any driver.
func Combine(absent string, parts ...Part) Session {
	return combine(absent, func() *listing { return &listing{} }, parts)
}

func combine(absent string, list func() *listing, parts []Part) *combined {
	c := &combined{absent: absent, parts: parts, list: list}
	c.listed.Store(list())
	return c
}

type combined struct {
	absent string
	parts  []Part
	list   func() *listing         // reads the host's files
	listed atomic.Pointer[listing] // as of the last Resolve

	mu    sync.Mutex
	owner map[model.DeviceID]Session // as of the last Resolve
}

// of returns the session that a packet belongs to; nil: its driver is absent from this host.
func (c *combined) of(packet []byte) (Session, error) {
	f, err := wire.DecodeFrame(packet)
	if err != nil {
		return nil, err
	}
	for _, p := range c.parts {
		if p.Frames == wire.GroupOf(f.Type) {
			return p.Session, nil
		}
	}
	if wire.GroupOf(f.Type) == 0 {
		return nil, fmt.Errorf("%w: type %d belongs to no driver", wire.ErrFrame, f.Type)
	}
	return nil, nil
}

// Frame routes a packet to its driver and drops packets for drivers absent from this host.
func (c *combined) Frame(packet []byte, fds []int) (awaited bool, err error) {
	s, err := c.of(packet)
	if s == nil {
		return false, err
	}
	return s.Frame(packet, fds)
}

// Wants implements Receiver.
func (c *combined) Wants(packet []byte) (quarantine.Want, bool) {
	s, err := c.of(packet)
	if r, ok := s.(Receiver); ok {
		return r.Wants(packet)
	}
	return quarantine.Want{}, s == nil && err == nil // nothing matches: Frame drops the packet
}

// Refused implements Receiver.
func (c *combined) Refused(packet []byte, err error) {
	s, _ := c.of(packet)
	if r, ok := s.(Receiver); ok {
		r.Refused(packet, err)
	}
}

// Resolve merges the capabilities of all drivers; for a shared GPU the last driver wins.
func (c *combined) Resolve(ctx context.Context) (map[model.DeviceID]Capability, error) {
	all, owner := map[model.DeviceID]Capability{}, map[model.DeviceID]Session{}
	var failed error
	for _, p := range c.parts {
		caps, err := p.Session.Resolve(ctx)
		failed = errors.Join(failed, err)
		maps.Copy(all, caps)
		for gpu := range caps {
			owner[gpu] = p.Session
		}
	}
	c.listed.Store(c.list())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owner = owner
	return all, failed
}

// Target returns the process's target on a GPU. While Resolve does not report the GPU, the target
// refuses to suspend.
func (c *combined) Target(gpu model.DeviceID) Target {
	if t := c.find(gpu); t != nil {
		return t
	}
	return &lateTarget{session: c, gpu: gpu}
}

func (c *combined) find(gpu model.DeviceID) Target {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.owner[gpu]; s != nil {
		return s.Target(gpu)
	}
	return nil
}

// Claim implements Claimer.
func (c *combined) Claim(gpu model.DeviceID) Claim {
	return c.listed.Load().claim(gpu, func(n int) bool {
		if n >= len(c.parts) { // the driver appeared after the process joined
			return false
		}
		v, ok := c.parts[n].Session.(Verifier)
		return ok && v.Verifies(gpu)
	})
}

// Why prefers the driver whose objects the process has shown.
func (c *combined) Why() (string, bool) {
	reason := ""
	for _, p := range c.parts {
		why, known := p.Session.Why()
		if known {
			return why, true
		}
		if reason == "" {
			reason = why
		}
	}
	switch {
	case reason == "" && len(c.parts) == 0:
		reason = c.absent
	case reason == "":
		reason = "the program has no hardware queue yet"
	}
	return reason, false
}

func (c *combined) OwnSlice(gpu model.DeviceID) int64 {
	for _, p := range c.parts {
		if us := p.Session.OwnSlice(gpu); us != 0 {
			return us
		}
	}
	return 0
}

func (c *combined) HardwareQueues(ctx context.Context) ([]HardwareQueue, error) {
	var all []HardwareQueue
	for _, p := range c.parts {
		more, err := p.Session.HardwareQueues(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return all, nil
}

func (c *combined) Caught() (n uint64) {
	for _, p := range c.parts {
		n += p.Session.Caught()
	}
	return n
}

func (c *combined) Disconnect() {
	for _, p := range c.parts {
		p.Session.Disconnect()
	}
}

func (c *combined) Close() {
	for _, p := range c.parts {
		p.Session.Close()
	}
}

// lateTarget is a target on a GPU that Resolve has not reported yet, or no longer reports. One
// worker uses it.
type lateTarget struct {
	session *combined
	gpu     model.DeviceID
	target  Target // nil: the GPU was not reported so far
}

func (t *lateTarget) Apply(ctx context.Context, want model.Desired) error {
	if t.target == nil {
		t.target = t.session.find(t.gpu)
	}
	switch {
	case t.target != nil:
		return t.target.Apply(ctx, want)
	case hardware(want):
		return fmt.Errorf("suspend on %v: no driver reports this GPU for the process", t.gpu)
	}
	return nil
}

func (t *lateTarget) Invalidate() {
	if t.target != nil {
		t.target.Invalidate()
	}
}

func (t *lateTarget) Close() error {
	if t.target != nil {
		return t.target.Close()
	}
	return nil
}
