// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"xsched/internal/driver"
	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

// This file probes what a process announced. A GPU may never answer, so each GPU is probed by its own
// goroutine, and calls on one GPU wait only for calls on the same one.

const (
	// patience bounds the wait for a GPU while others of the process have answered.
	patience = 250 * time.Millisecond
	// unknownWait bounds how long an operation on one GPU waits for handles of an unknown GPU.
	unknownWait = 20 * time.Millisecond
)

// errSilent asks for a retry: a GPU has not answered yet.
var errSilent = errors.New("a GPU has not answered yet")

// gpuLocks serializes operations per GPU.
type gpuLocks struct {
	mu  sync.Mutex
	gpu map[model.DeviceID]*sync.Mutex
}

// lock waits for the operation in flight on a GPU. GPUs were proved, so their number is bounded.
func (l *gpuLocks) lock(gpu model.DeviceID) (unlock func()) {
	l.mu.Lock()
	m := l.gpu[gpu]
	if m == nil {
		if l.gpu == nil {
			l.gpu = map[model.DeviceID]*sync.Mutex{}
		}
		m = &sync.Mutex{}
		l.gpu[gpu] = m
	}
	l.mu.Unlock()
	m.Lock()
	return m.Unlock
}

// branch identifies the objects below one device object of a client: those of one GPU.
type branch struct {
	client *rmClient
	device uint32
}

// branchOf returns the branch of an object. Preconditions: s.mu is held.
func (c *rmClient) branchOf(o *object) branch {
	for range maxDepth {
		up := c.objects[o.parent]
		if o.class == abi.NV01_DEVICE_0 || up == nil || up == o {
			break
		}
		o = up
	}
	if o.class == abi.NV01_DEVICE_0 {
		return branch{c, o.handle}
	}
	return branch{c, o.parent}
}

// flights are probes in progress, by GPU or branch. A probe that hangs is not started again.
type flights struct {
	mu     sync.Mutex
	flying map[any]*flight
}

type flight struct {
	done chan struct{}
	err  error
	late bool // an earlier call has waited for it in vain
}

// all runs f for each key, at most once at a time, and joins the errors of those that end in time.
func all[K comparable](fs *flights, wait time.Duration, keys []K, f func(K) error) error {
	var mine []*flight
	for _, k := range keys {
		mine = append(mine, start(fs, k, f))
	}
	limit := time.NewTimer(wait)
	defer limit.Stop()
	var failed error
	expired := false
	for _, l := range mine {
		fs.mu.Lock()
		late := l.late
		fs.mu.Unlock()
		if !late && !expired {
			select {
			case <-l.done:
			case <-limit.C:
				expired = true
			}
		}
		select {
		case <-l.done:
			failed = errors.Join(failed, l.err)
		default:
			fs.mu.Lock()
			l.late = true
			fs.mu.Unlock()
			failed = errors.Join(failed, errSilent)
		}
	}
	return failed
}

func start[K comparable](fs *flights, k K, f func(K) error) *flight {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if l := fs.flying[k]; l != nil {
		return l
	}
	l := &flight{done: make(chan struct{})}
	if fs.flying == nil {
		fs.flying = map[any]*flight{}
	}
	fs.flying[k] = l
	go func() {
		l.err = f(k)
		fs.mu.Lock()
		delete(fs.flying, k)
		fs.mu.Unlock()
		close(l.done)
	}()
	return l
}

// Resolve probes new objects and returns the capability per GPU. A GPU that does not answer within
// patience makes an error, and the others are reported nevertheless.
func (s *Objects) Resolve(ctx context.Context) (map[model.DeviceID]driver.Capability, error) {
	return s.resolve(ctx, patience)
}

func (s *Objects) resolve(ctx context.Context, wait time.Duration) (map[model.DeviceID]driver.Capability, error) {
	if s.driver.untouchable() != "" {
		return nil, nil
	}
	err := s.prove(ctx, wait)
	s.driver.mps.look()
	err = errors.Join(err, s.probeLevels(ctx, wait))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.showSlices()
	return s.capabilities(), err
}

// prove probes every handle that is new since the last call, the branches in parallel.
func (s *Objects) prove(ctx context.Context, wait time.Duration) error {
	return all(&s.proving, wait, s.branches(func(branch) bool { return true }), func(b branch) error { return s.proveBranch(ctx, b) })
}

// proveOn probes the new handles on one GPU, and those of an unknown GPU: they may belong to it. For
// the latter it waits a short time only, because Resolve proves them, too.
func (s *Objects) proveOn(ctx context.Context, gpu model.DeviceID) error {
	prove := func(b branch) error { return s.proveBranch(ctx, b) }
	if unknown := s.branches(func(b branch) bool { return b.gpu() == 0 }); len(unknown) > 0 {
		if err := all(&s.proving, unknownWait, unknown, prove); err != nil && !errors.Is(err, errSilent) {
			return err
		}
	}
	var failed error
	for _, b := range s.branches(func(b branch) bool { return b.gpu() == gpu }) {
		l := start(&s.proving, b, prove)
		select {
		case <-l.done:
			failed = errors.Join(failed, l.err)
		case <-ctx.Done():
			failed = errors.Join(failed, ctx.Err())
		}
	}
	return failed
}

// gpu returns the GPU of a branch; 0: not proved yet. Preconditions: s.mu is held.
func (b branch) gpu() model.DeviceID {
	for _, o := range b.client.below[b.device] {
		if o.class == abi.NV20_SUBDEVICE_0 && o.proof == proved {
			return o.gpu
		}
	}
	return 0
}

// branches returns those with handles that need a probe.
func (s *Objects) branches(is func(branch) bool) []branch {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[branch]bool{}
	var out []branch
	for _, c := range s.clients {
		for _, o := range c.objects {
			if !o.needsProbe() {
				continue
			}
			if b := c.branchOf(o); !seen[b] {
				seen[b] = true
				if is(b) {
					out = append(out, b)
				}
			}
		}
	}
	return out
}

func (o *object) needsProbe() bool {
	return o.proof == unproved && (o.isChannel() || o.isGroup() || o.class == abi.NV20_SUBDEVICE_0)
}

// proveBranch probes the new handles of a branch, those that arrive meanwhile included.
func (s *Objects) proveBranch(ctx context.Context, b branch) error {
	for {
		list := s.unproved(b)
		if len(list) == 0 {
			return nil
		}
		for _, o := range list {
			if !s.has(b.client, o) {
				continue
			}
			if err := s.probe(ctx, b.client, o); err != nil {
				return err
			}
		}
	}
}

// unproved returns the handles of a branch that need a probe.
func (s *Objects) unproved(b branch) []*object {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*object
	if s.clients[b.client.handle] != b.client {
		return nil
	}
	for _, o := range b.client.objects {
		if o.needsProbe() && b.client.branchOf(o) == b {
			out = append(out, o)
		}
	}
	return out
}

// has reports whether an object still exists.
func (s *Objects) has(c *rmClient, o *object) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clients[c.handle] == c && c.objects[o.handle] == o
}

// probe asks RM, on the client's own file, whether the handle is what the process claims. An error
// asks for a retry.
func (s *Objects) probe(ctx context.Context, c *rmClient, o *object) error {
	gpu, err := s.driver.probeObject(ctx, c.file, c.handle, o.handle, o.class)
	st, answered := statusOf(err)
	if err != nil && (!answered || st.transient()) {
		return fmt.Errorf("probe object %#x of %#x: %w", o.handle, c.handle, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o.proof, o.gpu = proved, gpu
	if err != nil {
		o.proof = refuted
	}
	return nil
}
