// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"xsched/internal/driver"
	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
	"xsched/internal/planted"
)

// Target is one process's channels on one GPU.
type Target struct {
	objects *Objects
	gpu     model.DeviceID
}

var _ driver.Target = (*Target)(nil)

// Target returns the process's target on a GPU; the caller closes the objects.
func (s *Objects) Target(gpu model.DeviceID) driver.Target { return &Target{s, gpu} }

// Close does nothing: the files belong to the session.
func (t *Target) Close() error { return nil }

// Invalidate forgets the stopped channels and the timeslices in effect.
func (t *Target) Invalidate() {
	t.objects.mu.Lock()
	defer t.objects.mu.Unlock()
	for _, u := range t.objects.units(t.gpu) {
		for _, o := range append(u.stop, u.others...) {
			o.stale = true
		}
		for _, g := range u.compute {
			g.stale = true
		}
	}
}

// Apply stops or resumes the compute channels and sets their groups' timeslices, including new
// channels. Copy channels run on. Stopping comes first, because a latency-critical tenant may be waiting.
func (t *Target) Apply(ctx context.Context, want model.Desired) error {
	level := want.Suspend
	if level < model.LevelDeactivate {
		level = 0
	}
	// Prove handles that arrived since the last Resolve.
	s := t.objects
	err := s.proveOn(ctx, t.gpu)
	defer s.locks.lock(t.gpu)()
	s.mu.Lock()
	us := s.units(t.gpu)
	s.mu.Unlock()
	s.together(ctx, us, t.gpu, level)
	for _, u := range us {
		err = errors.Join(err, s.stopChannels(ctx, u, level))
	}
	if level != 0 && want.Slice == 0 {
		return err // the next resume restores the application's own, if it still has to
	}
	for _, u := range us {
		for _, g := range u.compute {
			err = errors.Join(err, s.setSlice(ctx, u, g, want.Slice))
		}
	}
	return err
}

// Enable sequences, measured on an H200 (docs/platforms/nvidia.md). RM counts disables: a channel
// stopped twice needs two enables, and enabling a running channel is a no-op. A channel that left
// at Lv2 while alone on the GPU ignores an enable until a full stop and another enable.
var (
	enableOnce   = []model.Level{0}
	enableParked = []model.Level{0, model.LevelInterrupt, 0}
	enableFully  = []model.Level{0, 0, model.LevelInterrupt, 0} // whatever happened before
)

// plan is what brings channels to a level, in this order.
type plan struct{ once, parked, fully, stop []*object }

// stopChannels brings a unit's channels to a level; 0 resumes.
func (s *Objects) stopChannels(ctx context.Context, u unit, level model.Level) error {
	p := s.plan(u, level)
	err := errors.Join(s.apply(ctx, u, p.once, enableOnce...), s.apply(ctx, u, p.parked, enableParked...), s.apply(ctx, u, p.fully, enableFully...))
	if err != nil {
		s.mu.Lock()
		p.stop = slices.DeleteFunc(p.stop, func(o *object) bool { return o.stale }) // its enable failed
		s.mu.Unlock()
	}
	return errors.Join(err, s.apply(ctx, u, p.stop, level))
}

// plan returns what brings a unit's channels to a level. A channel already stopped at the level or
// harder stays as is, because RM counts disables.
func (s *Objects) plan(u unit, level model.Level) (p plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	free := func(o *object, again bool) {
		switch {
		case o.stale:
			p.fully = append(p.fully, o)
		case o.stopped == model.LevelDeactivate && !again:
			p.parked = append(p.parked, o)
		default:
			p.once = append(p.once, o)
		}
	}
	for _, o := range u.stop {
		runs := o.stopped == 0 && !o.stale
		switch {
		case level == 0 && !runs:
			free(o, false)
		case level == 0, !o.stale && o.stopped >= level:
		default:
			if !runs && !planted.Resume {
				free(o, true)
			}
			p.stop = append(p.stop, o)
		}
	}
	for _, o := range u.others {
		if o.stopped != 0 || o.stale {
			free(o, false)
		}
	}
	return p
}

// apply runs the level steps on channels in chunks of RM's maximum. A stop follows only successful
// enables: disables that add up would outnumber the enables of the next resume.
func (s *Objects) apply(ctx context.Context, u unit, list []*object, steps ...model.Level) error {
	var failed error
	for len(list) > 0 {
		n := min(len(list), abi.NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES)
		last, start := steps[len(steps)-1], time.Now()
		var err error
		for _, level := range steps {
			if level != 0 && err != nil {
				break
			}
			err = errors.Join(err, s.stopChunk(ctx, u, list[:n], level))
		}
		if err == nil && last == 0 && s.wereTwice(list[:n]) {
			err = s.stopChunk(ctx, u, list[:n], 0) // enabling a running channel changes nothing
		}
		if err != nil {
			s.unsure(list[:n])
		} else {
			s.counted(last, time.Since(start))
		}
		failed = errors.Join(failed, err)
		list = list[n:]
	}
	return failed
}

// unsure marks channels after a failure: a request that timed out may still have taken effect.
func (s *Objects) unsure(chunk []*object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range chunk {
		o.stale = true
	}
}

// wereTwice reports whether a channel may have been stopped twice, and forgets it.
func (s *Objects) wereTwice(chunk []*object) (any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range chunk {
		any = any || o.twice
		o.twice = false
	}
	return any
}

// twice marks channels that a failed request may have stopped, and that are stopped again.
func (s *Objects) twice(chunk []*object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range chunk {
		o.twice = true
	}
}

func (s *Objects) stopChunk(ctx context.Context, u unit, chunk []*object, level model.Level) error {
	err := s.disable(ctx, u, chunk, level)
	if st, ok := statusOf(err); ok && st.gone() {
		// RM rejects the whole list if one channel was just freed. Filter the list and retry.
		if chunk = s.stillThere(ctx, u, chunk); len(chunk) == 0 {
			return nil
		}
		if level != 0 {
			s.twice(chunk)
		}
		err = s.disable(ctx, u, chunk, level)
	}
	if err != nil {
		return fmt.Errorf("stop %d channels of %#x at level %d: %w", len(chunk), u.client.handle, level, err)
	}
	s.reached(chunk, level)
	return nil
}

// reached records the state of channels.
func (s *Objects) reached(chunk []*object, level model.Level) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range chunk {
		o.stopped, o.stale = level, false
	}
}

func (s *Objects) disable(ctx context.Context, u unit, chunk []*object, level model.Level) error {
	handles := make([]uint32, len(chunk))
	for i, o := range chunk {
		handles[i] = o.handle
	}
	params := disableChannels(level != 0, level == model.LevelDeactivate, u.client.handle, handles)
	return s.driver.control(ctx, u.client.file, u.client.handle, u.subdevice, abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, params)
}

// counted counts one operation. A sequence that resumes is one resume, with the stop inside it.
func (s *Objects) counted(level model.Level, d time.Duration) {
	if level != 0 {
		s.metrics.Suspends.Add(1)
		s.metrics.SuspendTime.Record(d)
	} else {
		s.metrics.Resumes.Add(1)
		s.metrics.ResumeTime.Record(d)
	}
}

func (s *Objects) stillThere(ctx context.Context, u unit, chunk []*object) []*object {
	var keep []*object
	for _, o := range chunk {
		_, err := s.driver.probeObject(ctx, u.client.file, u.client.handle, o.handle, o.class)
		s.mu.Lock()
		if st, ok := statusOf(err); ok && !st.transient() {
			o.proof = refuted
		} else {
			keep = append(keep, o)
		}
		s.mu.Unlock()
	}
	return keep
}

// setSlice sets a group's timeslice; 0 restores the application's. The application's value is read
// before the first change.
func (s *Objects) setSlice(ctx context.Context, u unit, g *object, slice time.Duration) error {
	us := uint64((slice + time.Microsecond - 1) / time.Microsecond)
	s.mu.Lock()
	done := g.setUS == us && !g.stale || us == 0 && !g.ownKnown
	known := g.ownKnown
	s.mu.Unlock()
	if done {
		return nil
	}
	params := make([]byte, 8)
	if !known {
		if err := s.driver.control(ctx, u.client.file, u.client.handle, g.handle, abi.NVA06C_CTRL_CMD_GET_TIMESLICE, params); err != nil {
			return s.groupFailed(g, "read timeslice", err)
		}
	}
	// Record the value before the call. A concurrent event about the application's own setting then
	// overrides the record.
	s.mu.Lock()
	if !g.ownKnown {
		g.ownUS, g.ownKnown = s.ownFrom(binary.NativeEndian.Uint64(params)), true
		s.showSlices()
	}
	value := us
	if us == 0 {
		value = g.ownUS
	}
	g.setUS, g.stale = us, false
	s.mu.Unlock()
	binary.NativeEndian.PutUint64(params, value)
	if err := s.driver.control(ctx, u.client.file, u.client.handle, g.handle, abi.NVA06C_CTRL_CMD_SET_TIMESLICE, params); err != nil {
		return s.groupFailed(g, "set timeslice", err)
	}
	s.metrics.TimesliceSets.Add(1)
	return nil
}

// groupFailed drops a freed group and returns every other error.
func (s *Objects) groupFailed(g *object, what string, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.stale = true
	if st, ok := statusOf(err); ok && st.gone() {
		g.proof = refuted
		return nil
	}
	return fmt.Errorf("%s of group %#x: %w", what, g.handle, err)
}
