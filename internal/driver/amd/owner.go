// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/model"
)

// RouteOwner names the way through the process itself, RouteDebugger the one from outside.
const (
	RouteOwner    = "owner"
	RouteDebugger = "debugger"
)

// Errors of the owner's route; test with errors.Is.
var (
	ErrLeft  = errors.New("the program has left")                     // it sets itself free
	ErrStale = errors.New("the lease had run out when it was obeyed") // nothing was done
)

const ownerReason = "its own library pauses its queues (UPDATE_QUEUE); level 3 is for a program without it, by `xsched attach`"

// Owner is a process with our library and queues of AMD's driver, which obey nobody but
// the process that made them: it announces them, and carries out orders.
type Owner struct {
	sysfs   fs.FS
	metrics *driver.Metrics

	mu       sync.Mutex
	send     func(Order) error
	sequence uint64
	waiting  map[uint64]chan Done
	queues   map[uint32]KFDEvent // by id, as announced
	devices  map[uint32]model.DeviceID
	why      string
	late     uint64
	left     chan struct{}
	gone     bool
}

// NewOwner knows no queue yet; the topology below sysfs tells which GPU a queue is on.
func NewOwner(sysfs fs.FS, metrics *driver.Metrics) *Owner {
	return &Owner{
		sysfs: sysfs, metrics: metrics, waiting: map[uint64]chan Done{}, queues: map[uint32]KFDEvent{},
		devices: map[uint32]model.DeviceID{}, left: make(chan struct{}), why: "it has no compute queue on this GPU yet",
	}
}

// Connect says how orders reach the process.
func (o *Owner) Connect(send func(Order) error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.send = send
}

// Disconnect says that the process hears no more orders: it sees that too, and sets itself free.
func (o *Owner) Disconnect() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.gone {
		o.gone = true
		close(o.left)
	}
}

// Queue takes over what the process says of one of its queues.
func (o *Owner) Queue(e KFDEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if e.Kind == KFDGone {
		delete(o.queues, e.ID)
		return
	}
	before, known := o.queues[e.ID]
	if !known && len(o.queues) >= MaxKFDQueues {
		return
	}
	if e.Late == 1 && (!known || before.Late == 0) {
		o.late++
	}
	o.queues[e.ID] = e
}

// Answer takes what became of an order; false: nobody waits for it.
func (o *Owner) Answer(d Done) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	c, ok := o.waiting[d.Sequence]
	if ok {
		delete(o.waiting, d.Sequence)
		c <- d // has room for one
	}
	return ok
}

// details are the driver's own fields of a hardware queue.
func details(id, gpu uint32, ring uint64, bytes uint32) map[string]uint64 {
	return map[string]uint64{"id": uint64(id), "gpu_id": uint64(gpu), "ring": ring, "bytes": uint64(bytes)}
}

// HardwareQueues are those announced.
func (o *Owner) HardwareQueues(context.Context) ([]driver.HardwareQueue, error) {
	o.locate()
	all, _ := o.Queues()
	var out []driver.HardwareQueue
	for _, q := range all {
		kind := q.Type
		if kind == "sdma" {
			kind = "copy"
		}
		d := details(q.ID, q.GPUID, q.Ring, q.Bytes)
		d["priority"] = uint64(q.Priority)
		if q.Late { // made, and suspended, while the others were
			d["late"] = 1
		}
		out = append(out, driver.HardwareQueue{Driver: Name, Device: q.Device, Kind: kind, ID: uint64(q.ID), Details: d})
	}
	return out, nil
}

// Caught is how many queues appeared while the others were paused.
func (o *Owner) Caught() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.late
}

// OwnedQueue is a queue as its process announced it.
type OwnedQueue struct {
	ID       uint32         `json:"id"`
	Type     string         `json:"type"` // compute or sdma
	GPUID    uint32         `json:"gpu_id"`
	Device   model.DeviceID `json:"-"`
	Ring     uint64         `json:"ring"`
	Bytes    uint32         `json:"bytes"`
	Priority uint32         `json:"priority"`
	Late     bool           `json:"late"` // made while the others were paused
}

// Queues are those announced, by number, and how many of all there were appeared while the
// others were paused.
func (o *Owner) Queues() (queues []OwnedQueue, late uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(o.queues)) {
		e := o.queues[id]
		kind := "compute"
		if !computes(e) {
			kind = "sdma"
		}
		queues = append(queues, OwnedQueue{
			ID: id, Type: kind, GPUID: e.GPUID, Device: o.devices[e.GPUID], Ring: e.Ring, Bytes: e.RingBytes, Priority: e.Priority, Late: e.Late == 1,
		})
	}
	return queues, o.late
}

func computes(e KFDEvent) bool { return e.Type == 0 || e.Type == 2 }

// Resolve says on which GPUs the process has compute queues.
func (o *Owner) Resolve(context.Context) (map[model.DeviceID]driver.Capability, error) {
	o.locate()
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[model.DeviceID]driver.Capability{}
	for _, e := range o.queues {
		if gpu, ok := o.devices[e.GPUID]; ok && computes(e) {
			out[gpu] = driver.Capability{MaxLevel: model.LevelDeactivate, Route: RouteOwner, Reason: ownerReason, Bare: true}
		}
	}
	return out, nil
}

// locate reads the topology, once and without the lock, if a queue is on a GPU that is not known: the
// engine's loop takes the lock, and neither a slow kernel nor a program that makes up GPUs may stop that.
func (o *Owner) locate() {
	o.mu.Lock()
	unknown := uint32(0)
	for _, e := range o.queues {
		if _, ok := o.devices[e.GPUID]; !ok && computes(e) {
			unknown = max(unknown, e.GPUID)
		}
	}
	o.mu.Unlock()
	if unknown == 0 {
		return
	}
	nodes, err := ReadTopology(o.sysfs)
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		o.why = "which GPU its queues are on can't be told: " + err.Error()
		return
	}
	for _, n := range nodes {
		if n.IsGPU() {
			o.devices[n.GPUID] = n.Device()
		}
	}
	if _, ok := o.devices[unknown]; !ok {
		o.why = fmt.Sprintf("the driver's topology has no GPU %d", unknown)
	}
}

// on returns the driver's numbers of a GPU: with partitions there can be several.
func (o *Owner) on(gpu model.DeviceID) []uint32 {
	o.mu.Lock()
	defer o.mu.Unlock()
	var ids []uint32
	for id, at := range o.devices {
		if at == gpu {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Why says why a GPU is missing in Resolve. known: the process has announced queues.
func (o *Owner) Why() (reason string, known bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.why, len(o.queues) > 0
}

// Order has the process do something and waits for its answer: how many queues are as
// wanted now, and how long the driver took.
func (o *Owner) Order(ctx context.Context, order Order) (queues int, took time.Duration, err error) {
	o.mu.Lock()
	send, gone := o.send, o.gone
	o.sequence++
	order.Sequence = o.sequence
	answer := make(chan Done, 1)
	o.waiting[order.Sequence] = answer
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.waiting, order.Sequence)
	}()
	if gone || send == nil {
		return 0, 0, ErrLeft
	}
	if err := send(order); err != nil {
		return 0, 0, fmt.Errorf("send order: %w", err)
	}
	select {
	case d := <-answer:
		took := time.Duration(0)
		if d.EndNS > d.BeginNS {
			took = min(time.Duration(d.EndNS-d.BeginNS), time.Hour)
		}
		switch {
		case d.Result == -int32(unix.ESTALE):
			return 0, took, ErrStale
		case d.Result < 0:
			return 0, took, unix.Errno(-d.Result)
		}
		return int(d.Result), took, nil
	case <-o.left:
		return 0, 0, ErrLeft
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
}

// Target is the process on one GPU.
func (o *Owner) Target(gpu model.DeviceID) driver.Target { return &OwnerTarget{owner: o, gpu: gpu} }

var _ driver.Target = (*OwnerTarget)(nil)

// OwnerTarget drives a process on one GPU by orders: its compute queues are paused and
// continued; copies go on. The driver has no timeslice per process: a wish for one is no
// error and has no effect.
type OwnerTarget struct {
	owner *Owner
	gpu   model.DeviceID

	mu    sync.Mutex
	known bool
	state bool // paused
}

// Apply pauses or continues.
func (t *OwnerTarget) Apply(ctx context.Context, want model.Desired) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	pause := want.Suspend >= model.LevelDeactivate
	if t.known && t.state == pause {
		return nil
	}
	t.known = false
	m := t.owner.metrics
	kind, count, times, device := OrderResume, &m.Resumes, &m.ResumeTime, &m.DriverResumeTime
	if pause {
		kind, count, times, device = OrderPause, &m.Suspends, &m.SuspendTime, &m.DriverSuspendTime
	}
	ids := t.owner.on(t.gpu)
	start := time.Now()
	for _, id := range ids {
		_, took, err := t.owner.Order(ctx, Order{Kind: kind, GPUID: id, Queues: OrderCompute})
		if errors.Is(err, ErrLeft) && !pause {
			return nil
		}
		if err != nil {
			return fmt.Errorf("have it paused=%v by the program itself: %w", pause, err)
		}
		device.Record(took)
	}
	if len(ids) > 0 {
		count.Add(1)
		times.Record(time.Since(start))
	}
	t.known, t.state = true, pause
	return nil
}

// Invalidate forgets what is known.
func (t *OwnerTarget) Invalidate() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known = false
}

// Close leaves the queues as they are.
func (t *OwnerTarget) Close() error { return nil }
