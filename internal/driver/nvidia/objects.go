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

// Limits bound the state the daemon keeps for one process.
type Limits struct {
	Clients, Objects int
	// Files bounds the files of several processes together, such as a user's; nil: unbounded.
	Files *Budget
	// Handles bounds the objects of several processes together; nil: unbounded.
	Handles *Budget
}

// Budget is a number of files, or of objects, that several processes share.
type Budget struct {
	Most  int
	used  atomic.Int64
	users atomic.Int64 // processes that may draw on the budget
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

func (b *Budget) give() { b.giveBack(1) }

func (b *Budget) giveBack(n int) {
	if b != nil {
		b.used.Add(-int64(n))
	}
}

func (b *Budget) use(by int64) {
	if b != nil {
		b.users.Add(by)
	}
}

// InUse reports whether a process holds files of the budget or may still take some.
func (b *Budget) InUse() bool { return b.users.Load() > 0 || b.used.Load() > 0 }

// proof is the result of probing a handle on the client's own file.
type proof uint8

const (
	unproved proof = iota
	proved
	refuted
)

// object is one handle of a client, as claimed. The daemon acts on it only after a probe proves it.
type object struct {
	handle, parent, class uint32
	order                 uint64 // of creation
	depth                 int    // claimed ancestors, including itself
	proof                 proof

	gpu model.DeviceID // subdevice, proved: its GPU

	// stale: the recorded state may be outdated.
	stale bool
	// hidden: found by a rescan; the daemon must not act on it before the guardian knows it.
	hidden bool

	// Channel: the level at which it is stopped. twice: a failed request may have stopped it before.
	stopped model.Level
	twice   bool

	// Group: the application's own timeslice, and ours (0: none set).
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
	below   map[uint32]map[uint32]*object // by claimed parent, known or not
	top     uint32                        // attached: the highest handle in use, of any class
}

// Objects holds one process's RM objects, from its announcements or an attach, and from probes.
// Events only record; Resolve and Apply make the blocking calls.
type Objects struct {
	driver  *Driver
	limits  Limits
	metrics *driver.Metrics
	// everyChannel: an attach can't see group membership, so all channels of a GPU are stopped.
	// The parent of groups and channels then identifies their GPU.
	everyChannel bool

	process int // pid, to separate the evidence of different processes

	locks gpuLocks

	// mu guards the table below and is never held across a call of the driver.
	mu       sync.Mutex
	clients  map[uint32]*rmClient
	count    int
	order    uint64
	closed   bool
	rejected string                     // why a client of this process was rejected
	refused  map[model.DeviceID]refusal // negative results of its own probes
	apart    map[int]pause              // processes that RM refuses in a request on this one's file

	// Probes in progress.
	proving, judging flights

	caught atomic.Uint64 // channels created while others were stopped

	// shown serves the engine loop. Lock-free, because clients control how long mu is held.
	shown atomic.Pointer[shown]
}

// NewObjects returns an empty set.
func NewObjects(d *Driver, l Limits, m *driver.Metrics) *Objects {
	l.Files.use(1)
	s := &Objects{driver: d, limits: l, metrics: m, clients: map[uint32]*rmClient{}}
	s.shown.Store(&shown{})
	return s
}

// maxDepth bounds the claimed nesting: device, group, channel and compute object make four.
const maxDepth = 6

var (
	errTooMany = errors.New("too many RM objects")
	errUnknown = errors.New("unknown RM client")
	errTooDeep = fmt.Errorf("RM objects are at most %d deep", maxDepth)
)

// AddClient takes ownership of fd, the file that created an RM client.
func (s *Objects) AddClient(handle uint32, fd int) error {
	f := NewFile(fd)
	err := s.driver.Accept(fd)
	var unused *File
	defer func() { unused.closeUnused() }() // without the lock
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.showClients()
	switch {
	case err != nil:
		s.rejected = err.Error()
	case s.closed:
		err = errClosed
	case len(s.clients) >= s.limits.Clients || !s.limits.Files.take():
		err = errTooMany
	}
	if err != nil {
		unused = f
		return fmt.Errorf("add RM client %#x: %w", handle, err)
	}
	if old := s.clients[handle]; old != nil {
		unused = s.dropClient(old)
	}
	s.clients[handle] = &rmClient{handle: handle, file: f, objects: map[uint32]*object{}, below: map[uint32]map[uint32]*object{}}
	return nil
}

// Alloc records an object and ignores irrelevant classes.
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
			s.forget(c, handle) // the handle was reused
		} else {
			c.remove(old)
			s.uncount(1)
		}
	}
	if s.count >= s.limits.Objects {
		return fmt.Errorf("add object %#x of %#x: %w", handle, client, errTooMany)
	}
	if !c.settle(&o) {
		return fmt.Errorf("add object %#x of %#x: %w", handle, client, errTooDeep)
	}
	if !s.limits.Handles.take() {
		return fmt.Errorf("add object %#x of %#x: %w of its user", handle, client, errTooMany)
	}
	s.catch(c, &o)
	s.order++
	o.order = s.order
	c.add(&o)
	s.count++
	return nil
}

// uncount gives back the places of objects that were removed. Preconditions: s.mu is held.
func (s *Objects) uncount(n int) {
	s.count -= n
	s.limits.Handles.giveBack(n)
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

// settle computes the depth of a new object and of the objects that claim to be below it. False:
// too deep or cyclic, and nothing changed.
func (c *rmClient) settle(o *object) bool {
	o.depth = 1
	if up := c.objects[o.parent]; up != nil && o.parent != o.handle { // an attached process's subdevice is its own parent
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
				return false // cycle
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

// Free removes an object and everything below it, or the whole client if handle names it.
func (s *Objects) Free(client, handle uint32) {
	var unused *File
	defer func() { unused.closeUnused() }() // without the lock
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clients[client]
	if c == nil {
		return
	}
	if client == handle {
		unused = s.dropClient(c)
		s.showClients()
		return
	}
	s.forget(c, handle)
}

// forget removes an object and everything below it, and returns the number of handles visited.
// Preconditions: s.mu is held.
func (s *Objects) forget(c *rmClient, handle uint32) (visits int) {
	for gone := []uint32{handle}; len(gone) > 0; visits++ {
		h := gone[len(gone)-1]
		gone = gone[:len(gone)-1]
		if o := c.objects[h]; o != nil {
			c.remove(o)
			s.uncount(1)
		}
		for child := range c.below[h] {
			gone = append(gone, child)
		}
	}
	return visits
}

// Timeslice records that the application set a group's timeslice: ours is overwritten, and theirs
// is the one to restore.
func (s *Objects) Timeslice(client, group uint32, us uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.clients[client]; c != nil {
		if o := c.objects[group]; o != nil && o.isGroup() {
			o.ownUS, o.ownKnown, o.setUS, o.stale = us, true, 0, false
		}
	}
}

// dropClient removes a client and returns its file, which the caller closes without the lock.
// Preconditions: s.mu is held.
func (s *Objects) dropClient(c *rmClient) *File {
	s.limits.Files.give()
	s.uncount(len(c.objects))
	delete(s.clients, c.handle)
	return c.file
}

// Close closes every file immediately.
func (s *Objects) Close() {
	var unused []*File
	defer func() { closeFiles(unused) }() // without the lock
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	for _, c := range s.clients {
		unused = append(unused, s.dropClient(c))
	}
	s.showClients()
	s.limits.Files.use(-1)
}

// probeObject issues a cheap control that succeeds only on the claimed class.
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

// decodeGPUID unpacks domain<<16 | bus<<8 | device; RM omits the function.
func decodeGPUID(id uint32) model.DeviceID {
	return model.MakeDeviceID(id>>16, id>>8&0xFF, id&0xFF, 0)
}
