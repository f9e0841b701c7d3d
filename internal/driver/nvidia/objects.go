// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"xsched/internal/driver"
	"xsched/internal/driver/nvidia/abi"
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
	Most  int
	used  atomic.Int64
	users atomic.Int64 // processes that may take files from it
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

func (b *Budget) use(by int64) {
	if b != nil {
		b.users.Add(by)
	}
}

// InUse says that a process has files of the budget, or may yet take some.
func (b *Budget) InUse() bool { return b.users.Load() > 0 || b.used.Load() > 0 }

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
	depth                 int    // claimed parents above it, itself included
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

func (o *object) isChannel() bool { return o.class > 0xFFF && o.class&0xFF == abi.ClassEndChannel }
func (o *object) isCompute() bool { return o.class > 0xFFF && o.class&0xFF == abi.ClassEndCompute }
func (o *object) isGroup() bool   { return o.class == abi.KEPLER_CHANNEL_GROUP_A }

func wanted(class uint32) bool {
	o := object{class: class}
	return o.isChannel() || o.isCompute() || o.isGroup() || class == abi.NV01_DEVICE_0 || class == abi.NV20_SUBDEVICE_0
}

type rmClient struct {
	handle  uint32
	file    *File
	objects map[uint32]*object
	below   map[uint32]map[uint32]*object // by the parent they claim, known or not
}

// Objects is what is known of one process's RM objects, from what it said (or
// from what an attach found) and from probes. Events only write down; probes
// and operations, which block, are Resolve's and Apply's.
type Objects struct {
	driver  *Driver
	limits  Limits
	metrics *driver.Metrics
	// everyChannel: found by probing. Which group a channel is in is not known, so all of
	// a GPU are stopped; the parent of groups and channels is a name for their GPU.
	everyChannel bool

	process int // its pid, to tell the evidence of one process from that of another

	ops sync.Mutex // at most one operation in flight for a process

	mu      sync.Mutex
	clients map[uint32]*rmClient
	count   int
	order   uint64
	closed  bool
	lie     string                     // why a client of this process was not accepted
	refused map[model.DeviceID]refusal // what its own probes have shown, where that is negative

	caught atomic.Uint64 // channels that appeared while others were stopped

	// What the engine loop asks for. It never waits for mu, which what a process sends decides
	// how long is held.
	shown atomic.Pointer[shown]
}

// NewObjects knows nothing yet.
func NewObjects(d *Driver, l Limits, m *driver.Metrics) *Objects {
	l.Files.use(1)
	s := &Objects{driver: d, limits: l, metrics: m, clients: map[uint32]*rmClient{}}
	s.shown.Store(&shown{})
	return s
}

// maxDepth is how deep objects may claim to be: device, group, channel and compute object are four.
const maxDepth = 6

var (
	errTooMany = errors.New("too many RM objects")
	errUnknown = errors.New("unknown RM client")
	errTooDeep = fmt.Errorf("RM objects are at most %d deep", maxDepth)
)

// AddClient takes over fd, the file that made an RM client.
func (s *Objects) AddClient(handle uint32, fd int) error {
	f := NewFile(fd)
	err := s.driver.Accept(fd)
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.showClients()
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
	s.clients[handle] = &rmClient{handle: handle, file: f, objects: map[uint32]*object{}, below: map[uint32]map[uint32]*object{}}
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
	if old := c.objects[handle]; old != nil {
		if old.parent != o.parent || old.class != o.class {
			s.forget(c, handle) // its number has gone to something else
		} else {
			c.remove(old)
			s.count--
		}
	}
	if s.count >= s.limits.Objects {
		return fmt.Errorf("add object %#x of %#x: %w", handle, client, errTooMany)
	}
	if !c.settle(&o) {
		return fmt.Errorf("add object %#x of %#x: %w", handle, client, errTooDeep)
	}
	s.catch(c, &o)
	s.order++
	o.order = s.order
	c.add(&o)
	s.count++
	return nil
}

func (c *rmClient) add(o *object) {
	c.objects[o.handle] = o
	if c.below[o.parent] == nil {
		c.below[o.parent] = map[uint32]*object{}
	}
	c.below[o.parent][o.handle] = o
}

func (c *rmClient) remove(o *object) {
	delete(c.objects, o.handle)
	delete(c.below[o.parent], o.handle)
	if len(c.below[o.parent]) == 0 {
		delete(c.below, o.parent)
	}
}

// settle says how deep a new object is, and then what claims to be below it; false: too deep,
// and nothing is changed. A circle is too deep.
func (c *rmClient) settle(o *object) bool {
	o.depth = 1
	if up := c.objects[o.parent]; up != nil && o.parent != o.handle { // an attached process's subdevice names itself
		o.depth = up.depth + 1
	}
	if o.depth > maxDepth {
		return false
	}
	level, depth := c.below[o.handle], o.depth+1
	if len(level) == 0 {
		return true
	}
	deeper := map[*object]int{}
	for len(level) > 0 {
		if depth > maxDepth {
			return false
		}
		next := map[uint32]*object{}
		for _, child := range level {
			if child.handle == o.parent {
				return false // a circle
			}
			deeper[child] = depth
			maps.Copy(next, c.below[child.handle])
		}
		level, depth = next, depth+1
	}
	for child, depth := range deeper {
		child.depth = depth
	}
	return true
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
		s.showClients()
		return
	}
	s.forget(c, handle)
}

// forget removes an object and all below it, and returns how many handles it
// visited. Preconditions: s.mu is held.
func (s *Objects) forget(c *rmClient, handle uint32) (visits int) {
	for gone := []uint32{handle}; len(gone) > 0; visits++ {
		h := gone[len(gone)-1]
		gone = gone[:len(gone)-1]
		if o := c.objects[h]; o != nil {
			c.remove(o)
			s.count--
		}
		for child := range c.below[h] {
			gone = append(gone, child)
		}
	}
	return visits
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
	if s.closed {
		return
	}
	s.closed = true
	for _, c := range s.clients {
		s.dropClient(c)
	}
	s.showClients()
	s.limits.Files.use(-1)
}

// Resolve probes what has appeared since the last time and returns what can be
// done on which GPU. It blocks as long as the device does.
func (s *Objects) Resolve(ctx context.Context) (map[model.DeviceID]driver.Capability, error) {
	if s.driver.untouchable() != "" {
		return nil, nil
	}
	err := s.prove(ctx)
	s.driver.mps.look()
	err = errors.Join(err, s.probeLevels(ctx))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.showSlices()
	return s.capabilities(), err
}

// prove probes every handle that has appeared since the last time.
func (s *Objects) prove(ctx context.Context) error {
	for {
		list := s.unproved()
		if len(list) == 0 {
			return nil
		}
		for _, u := range list {
			if !s.has(u.c, u.o) {
				continue
			}
			if err := s.probe(ctx, u.c, u.o); err != nil {
				return err
			}
		}
	}
}

type claim struct {
	c *rmClient
	o *object
}

// unproved finds the handles that have to be probed.
func (s *Objects) unproved() []claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []claim
	for _, c := range s.clients {
		for _, o := range c.objects {
			if o.proof == unproved && (o.isChannel() || o.isGroup() || o.class == abi.NV20_SUBDEVICE_0) {
				out = append(out, claim{c, o})
			}
		}
	}
	return out
}

// has says that an object was not freed since.
func (s *Objects) has(c *rmClient, o *object) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clients[c.handle] == c && c.objects[o.handle] == o
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
		return 0, d.control(ctx, f, client, handle, abi.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, params)
	case o.isGroup():
		return 0, d.control(ctx, f, client, handle, abi.NVA06C_CTRL_CMD_GET_INFO, params)
	default:
		if err := d.control(ctx, f, client, handle, abi.NV2080_CTRL_CMD_GPU_GET_ID, params); err != nil {
			return 0, err
		}
		return decodeGPUID(binary.NativeEndian.Uint32(params)), nil
	}
}

// decodeGPUID unpacks domain<<16 | bus<<8 | device: RM leaves the function out.
func decodeGPUID(id uint32) model.DeviceID {
	return model.MakeDeviceID(id>>16, id>>8&0xFF, id&0xFF, 0)
}
