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

// RouteOwner goes through the process's shim, RouteDebugger through a debugger.
const (
	RouteOwner    = "owner"
	RouteDebugger = "debugger"
)

// Errors of the owner route; test with errors.Is.
var (
	ErrLeft  = errors.New("the program has disconnected")                    // the shim resumes its process
	ErrStale = errors.New("the lease expired before the order was executed") // nothing was executed
)

const ownerReason = "the shim pauses the queues (UPDATE_QUEUE); level 3 needs `xsched attach` on a program without the shim"

// Owner is a process with the shim. The driver accepts queue updates only from the owning process,
// so the shim announces its queues and executes orders.
type Owner struct {
	sysfs   fs.FS
	metrics *driver.Metrics
	lease   func(model.DeviceID) uint32 // number of a GPU's lease; nil: the shared lease
	// pid is the process in the driver's files; 0: its queues can't be verified.
	pid   int
	share *share // of the user's queues; nil: unbounded

	mu       sync.Mutex
	send     func(Order) error
	sequence uint64
	waiting  map[uint64]chan Done
	queues   map[uint32]KFDEvent // by id
	devices  map[uint32]model.DeviceID
	why      string
	late     uint64
	left     chan struct{}
	gone     bool
	closed   bool
}

// NewOwner has no queues; the topology below sysfs maps queues to GPUs.
func NewOwner(sysfs fs.FS, metrics *driver.Metrics) *Owner {
	return &Owner{
		sysfs: sysfs, metrics: metrics, waiting: map[uint64]chan Done{}, queues: map[uint32]KFDEvent{},
		devices: map[uint32]model.DeviceID{}, left: make(chan struct{}), why: "the process has no compute queue on this GPU yet",
	}
}

// Connect sets the path for orders.
func (o *Owner) Connect(send func(Order) error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.send = send
}

// Disconnect ends the path for orders. The shim detects it too and resumes its process.
func (o *Owner) Disconnect() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.gone {
		o.gone = true
		close(o.left)
	}
}

// Close ends the path for orders and forgets the queues.
func (o *Owner) Close() {
	o.Disconnect()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.share.give(len(o.queues))
	o.closed, o.queues = true, map[uint32]KFDEvent{}
}

// Queue records an announced queue.
func (o *Owner) Queue(e KFDEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before, known := o.queues[e.ID]
	switch {
	case e.Kind == KFDGone:
		if known {
			delete(o.queues, e.ID)
			o.share.give(1)
		}
		return
	case !known && (o.closed || len(o.queues) >= MaxKFDQueues || !o.share.take()):
		return
	}
	if e.Late == 1 && (!known || before.Late == 0) {
		o.late++
	}
	o.queues[e.ID] = e
}

// Answer completes an order; false: no order is waiting.
func (o *Owner) Answer(d Done) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	c, ok := o.waiting[d.Sequence]
	if ok {
		delete(o.waiting, d.Sequence)
		c <- d // capacity 1
	}
	return ok
}

// details returns the driver-specific fields of a hardware queue.
func details(id, gpu uint32, ring uint64, bytes uint32) map[string]uint64 {
	return map[string]uint64{"id": uint64(id), "gpu_id": uint64(gpu), "ring": ring, "bytes": uint64(bytes)}
}

// HardwareQueues lists the announced queues.
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
		if q.Late { // created, and paused, during a pause
			d["late"] = 1
		}
		out = append(out, driver.HardwareQueue{Driver: Name, Device: q.Device, Kind: kind, ID: uint64(q.ID), Details: d})
	}
	return out, nil
}

// Caught returns how many queues appeared during a pause.
func (o *Owner) Caught() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.late
}

// OwnedQueue is a queue as announced.
type OwnedQueue struct {
	ID       uint32         `json:"id"`
	Type     string         `json:"type"` // compute or sdma
	GPUID    uint32         `json:"gpu_id"`
	Device   model.DeviceID `json:"-"`
	Ring     uint64         `json:"ring"`
	Bytes    uint32         `json:"bytes"`
	Priority uint32         `json:"priority"`
	Late     bool           `json:"late"` // created during a pause
}

// Queues lists the announced queues by id, and counts those created during a pause.
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

// Resolve returns the GPUs on which the process has compute queues.
func (o *Owner) Resolve(context.Context) (map[model.DeviceID]driver.Capability, error) {
	o.locate()
	listed, failed := o.verified() // before the lock: it reads files
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[model.DeviceID]driver.Capability{}
	for _, e := range o.queues {
		if gpu, ok := o.devices[e.GPUID]; ok && computes(e) {
			if listed != nil && !listed[e.GPUID] {
				if failed == nil {
					failed = fmt.Errorf("verify queues: the driver lists none of process %d on %v", o.pid, gpu)
				}
				continue
			}
			out[gpu] = driver.Capability{MaxLevel: model.LevelDeactivate, Route: RouteOwner, Reason: ownerReason, Bare: true}
		}
	}
	if len(o.queues) == 0 {
		failed = nil // nothing to verify
	}
	return out, failed
}

// locate rereads the topology once if a queue is on an unknown GPU. The read must not hold the lock,
// because neither a slow kernel nor invented GPU ids may block the engine loop.
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
		o.why = "the GPU of its queues is unknown: " + err.Error()
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

// on returns the driver's ids of a GPU; a partitioned GPU has several.
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

// Why explains why Resolve omits a GPU. known: the process has announced queues.
func (o *Owner) Why() (reason string, known bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.why, len(o.queues) > 0
}

// Order sends an order and waits for the answer: the number of queues in the desired state, and the
// driver's time.
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

// Target returns the process's target on one GPU.
func (o *Owner) Target(gpu model.DeviceID) driver.Target { return &OwnerTarget{owner: o, gpu: gpu} }

var _ driver.Target = (*OwnerTarget)(nil)

// OwnerTarget pauses and resumes a process's compute queues on one GPU by orders; copies continue.
// The driver has no timeslice per process, so a timeslice has no effect.
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
		order := Order{Kind: kind, GPUID: id, Queues: OrderCompute}
		if pause && t.owner.lease != nil {
			order.Lease = t.owner.lease(t.gpu)
		}
		_, took, err := t.owner.Order(ctx, order)
		if errors.Is(err, ErrLeft) && !pause {
			return nil
		}
		if err != nil {
			return fmt.Errorf("order the program to set paused=%v: %w", pause, err)
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

// Invalidate forgets the cached state.
func (t *OwnerTarget) Invalidate() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known = false
}

// Close leaves the queues unchanged.
func (t *OwnerTarget) Close() error { return nil }
