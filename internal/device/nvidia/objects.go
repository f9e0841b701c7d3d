// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"xsched/internal/device"
	"xsched/internal/model"
)

// Limits bound what one process can make the daemon remember.
type Limits struct {
	Clients, Objects int
	// Files bounds the files of many processes together, a user's say; nil: no bound.
	Files *Budget
}

// Budget is a number of files that several processes share.
type Budget struct {
	Most int
	used atomic.Int64
}

func (b *Budget) take() bool {
	if b == nil {
		return true
	}
	if b.used.Add(1) > int64(b.Most) {
		b.used.Add(-1)
		return false
	}
	return true
}

func (b *Budget) give() {
	if b != nil {
		b.used.Add(-1)
	}
}

// InUse says that the budget is not untouched.
func (b *Budget) InUse() bool { return b.used.Load() > 0 }

// proof is what a probe on the client's own file has shown about a handle.
type proof uint8

const (
	unproved proof = iota
	proved
	refuted
)

// object is one handle of a client, as claimed; nothing is done to it before
// it is proved.
type object struct {
	handle, parent, class uint32
	order                 uint64 // of appearance
	proof                 proof

	gpu model.DeviceID // subdevice, proved: where it is

	// stale: somebody else may have changed what is noted here.
	stale bool
	// hidden: found by a later look at an attached process, and nothing is done to it
	// before the guardian knows of it.
	hidden bool

	// Channel: how it is stopped.
	stopped model.Level

	// Group: the application's own timeslice, and the one we set (0: its own).
	ownUS, setUS uint64
	ownKnown     bool
}

func (o *object) isChannel() bool { return o.class > 0xFFF && o.class&0xFF == classEndChannel }
func (o *object) isCompute() bool { return o.class > 0xFFF && o.class&0xFF == classEndCompute }
func (o *object) isGroup() bool   { return o.class == KEPLER_CHANNEL_GROUP_A }

func wanted(class uint32) bool {
	o := object{class: class}
	return o.isChannel() || o.isCompute() || o.isGroup() || class == NV01_DEVICE_0 || class == NV20_SUBDEVICE_0
}

type rmClient struct {
	handle  uint32
	file    *File
	objects map[uint32]*object
}

// Objects is what is known of one process's RM objects, from what it said (or
// from what an attach found) and from probes. Events only write down; probes
// and operations, which block, are Resolve's and Apply's.
type Objects struct {
	driver  *Driver
	limits  Limits
	metrics *device.Metrics
	// everyChannel: found by probing. Which group a channel is in is not known, so all of
	// a GPU are stopped; the parent of groups and channels is a name for their GPU.
	everyChannel bool

	ops sync.Mutex // at most one operation in flight for a process

	mu      sync.Mutex
	clients map[uint32]*rmClient
	count   int
	order   uint64
	closed  bool
	lie     string // why a client of this process was not accepted
}

// NewObjects knows nothing yet.
func NewObjects(d *Driver, l Limits, m *device.Metrics) *Objects {
	return &Objects{driver: d, limits: l, metrics: m, clients: map[uint32]*rmClient{}}
}

var (
	errTooMany = errors.New("too many RM objects")
	errUnknown = errors.New("unknown RM client")
)

// AddClient takes over fd, the file that made an RM client.
func (s *Objects) AddClient(handle uint32, fd int) error {
	f := NewFile(fd)
	err := s.driver.Accept(fd)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		s.lie = err.Error()
	case s.closed:
		err = errClosed
	case len(s.clients) >= s.limits.Clients || !s.limits.Files.take():
		err = errTooMany
	}
	if err != nil {
		_ = f.Close()
		return fmt.Errorf("add RM client %#x: %w", handle, err)
	}
	if old := s.clients[handle]; old != nil {
		s.dropClient(old)
	}
	s.clients[handle] = &rmClient{handle: handle, file: f, objects: map[uint32]*object{}}
	return nil
}

// Alloc writes down an object; classes that don't matter are ignored.
func (s *Objects) Alloc(client, parent, handle, class uint32) error {
	return s.enter(client, object{handle: handle, parent: parent, class: class})
}

func (s *Objects) enter(client uint32, o object) error {
	handle, class := o.handle, o.class
	if !wanted(class) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clients[client]
	if c == nil {
		return fmt.Errorf("add object %#x of %#x: %w", handle, client, errUnknown)
	}
	if c.objects[handle] == nil {
		if s.count >= s.limits.Objects {
			return fmt.Errorf("add object %#x of %#x: %w", handle, client, errTooMany)
		}
		s.count++
	}
	s.order++
	o.order = s.order
	c.objects[handle] = &o
	return nil
}

// Free forgets an object and what is below it; the client itself when they are the same.
func (s *Objects) Free(client, handle uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clients[client]
	if c == nil {
		return
	}
	if client == handle {
		s.dropClient(c)
		return
	}
	// The tree is at most four deep, so a few passes find all descendants.
	gone := map[uint32]bool{handle: true}
	for again := true; again; {
		again = false
		for h, o := range c.objects {
			if gone[o.parent] && !gone[h] {
				gone[h], again = true, true
			}
		}
	}
	for h := range gone {
		if c.objects[h] != nil {
			delete(c.objects, h)
			s.count--
		}
	}
}

// Timeslice notes that the application set a group's timeslice itself: ours is
// gone from the hardware, and theirs is the one to restore.
func (s *Objects) Timeslice(client, group uint32, us uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.clients[client]; c != nil {
		if o := c.objects[group]; o != nil && o.isGroup() {
			o.ownUS, o.ownKnown, o.setUS, o.stale = us, true, 0, false
		}
	}
}

// dropClient closes a client's file. Preconditions: s.mu is held.
func (s *Objects) dropClient(c *rmClient) {
	_ = c.file.Close()
	s.limits.Files.give()
	s.count -= len(c.objects)
	delete(s.clients, c.handle)
}

// Close lets go of every file, at once.
func (s *Objects) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, c := range s.clients {
		s.dropClient(c)
	}
}

// Resolve probes what has appeared since the last time and returns what can be
// done on which GPU. It blocks as long as the device does.
func (s *Objects) Resolve(ctx context.Context) (map[model.DeviceID]device.Capability, error) {
	err := s.prove(ctx)
	s.driver.mps.look()
	err = errors.Join(err, s.probeLevels(ctx))
	return s.capabilities(), err
}

// prove probes every handle that has appeared since the last time.
func (s *Objects) prove(ctx context.Context) error {
	for {
		c, o := s.unproved()
		if o == nil {
			return nil
		}
		if err := s.probe(ctx, c, o); err != nil {
			return err
		}
	}
}

// unproved finds a handle that has to be probed.
func (s *Objects) unproved() (*rmClient, *object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.clients {
		for _, o := range c.objects {
			if o.proof == unproved && (o.isChannel() || o.isGroup() || o.class == NV20_SUBDEVICE_0) {
				return c, o
			}
		}
	}
	return nil, nil
}

// probe asks RM, on the client's own file, whether the handle is what the
// process says. The error is one after which probing again makes sense.
func (s *Objects) probe(ctx context.Context, c *rmClient, o *object) error {
	s.ops.Lock()
	defer s.ops.Unlock()
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

// probeObject makes the cheap control that only succeeds on the right kind of object.
func (d *Driver) probeObject(ctx context.Context, f *File, client, handle, class uint32) (model.DeviceID, error) {
	o := object{class: class}
	params := make([]byte, 4)
	switch {
	case o.isChannel():
		return 0, d.control(ctx, f, client, handle, NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, params)
	case o.isGroup():
		return 0, d.control(ctx, f, client, handle, NVA06C_CTRL_CMD_GET_INFO, params)
	default:
		if err := d.control(ctx, f, client, handle, NV2080_CTRL_CMD_GPU_GET_ID, params); err != nil {
			return 0, err
		}
		return decodeGPUID(binary.NativeEndian.Uint32(params)), nil
	}
}

// decodeGPUID unpacks domain<<16 | bus<<8 | device: RM leaves the function out.
func decodeGPUID(id uint32) model.DeviceID {
	return model.MakeDeviceID(id>>16, id>>8&0xFF, id&0xFF, 0)
}
