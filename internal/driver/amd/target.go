// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"xsched/internal/driver"
	"xsched/internal/model"
)

var (
	_ driver.Target = (*DebugTarget)(nil)
	_ Session       = (*Debugger)(nil)
)

// Session is the debugging of a process: a Debugger, or what stands for one in another process.
type Session interface {
	Queues() ([]QueueSnapshot, error)
	Suspend(gpu uint32, kinds Kinds, grace uint32) ([]QueueResult, error)
	Resume(gpu uint32) ([]QueueResult, error)
	CaughtSoFar() uint64    // never waits
	Ended() <-chan struct{} // closed when the process has ended or was let go
	Close() error           // everything goes on
}

// DebugTarget drives a process on one GPU through its debugger: Lv3 by suspending its
// compute queues. The driver has no timeslice per process: a wish for one is no
// error and has no effect.
type DebugTarget struct {
	debugger Session
	gpu      uint32
	metrics  *driver.Metrics

	mu    sync.Mutex
	known bool
	state bool // suspended
}

// NewDebugTarget uses the debugger, which stays the caller's.
func NewDebugTarget(d Session, gpu uint32, metrics *driver.Metrics) *DebugTarget {
	return &DebugTarget{debugger: d, gpu: gpu, metrics: metrics}
}

// Apply suspends or resumes.
func (t *DebugTarget) Apply(ctx context.Context, want model.Desired) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	suspend := want.Suspend >= model.LevelDeactivate
	if t.known && t.state == suspend {
		return nil
	}
	t.known = false
	start := time.Now()
	if suspend {
		if _, err := t.debugger.Suspend(t.gpu, ComputeQueues, GraceDefault); err != nil {
			return fmt.Errorf("suspend: %w", err)
		}
		t.metrics.Suspends.Add(1)
		t.metrics.SuspendTime.Record(time.Since(start))
	} else {
		if _, err := t.debugger.Resume(t.gpu); err != nil {
			return fmt.Errorf("resume: %w", err)
		}
		t.metrics.Resumes.Add(1)
		t.metrics.ResumeTime.Record(time.Since(start))
	}
	t.known, t.state = true, suspend
	return nil
}

// Invalidate forgets what is known.
func (t *DebugTarget) Invalidate() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known = false
}

// Close leaves the queues as they are.
func (t *DebugTarget) Close() error { return nil }

// ErrNoQueues says that a process has none yet.
var ErrNoQueues = errors.New("it has no compute queue yet")

// Driver is how this machine's KFD is reached.
type Driver struct {
	Sources Sources
}

// Lists says whether the driver knows a process.
func (d Driver) Lists(pid int) bool {
	_, err := ReadProcess(d.Sources.Sysfs, pid)
	return err == nil
}

// Attach takes over a process that uses the driver and is being debugged. The session is ended with it, and
// when it fails.
func (d Driver) Attach(debugging Session, metrics *driver.Metrics) (*Attached, error) {
	a := &Attached{debugger: debugging, metrics: metrics, ids: map[model.DeviceID]uint32{}}
	nodes, err := ReadTopology(d.Sources.Sysfs)
	if err != nil {
		a.Close()
		return nil, err
	}
	for _, n := range nodes {
		if n.IsGPU() {
			a.ids[n.Device()] = n.GPUID
		}
	}
	gpus, err := a.Resolve(context.Background())
	if err == nil && len(gpus) == 0 {
		err = ErrNoQueues
	}
	if err != nil {
		a.Close()
		return nil, err
	}
	a.GPUs = gpus
	return a, nil
}

// Device is the GPU's PCI address as the rest of the program names it.
func (n Node) Device() model.DeviceID {
	location := uint32(n.Properties["location_id"])
	return model.MakeDeviceID(uint32(n.Properties["domain"]), location>>8, location>>3, location)
}

// Attached is a process taken over from outside, as the hub sees its hardware. There are no
// resource-manager objects here, so what is said about those is refused or nothing.
type Attached struct {
	GPUs map[model.DeviceID]driver.Capability

	debugger Session
	metrics  *driver.Metrics
	ids      map[model.DeviceID]uint32
}

// Ended is closed when the process has ended or was let go.
func (a *Attached) Ended() <-chan struct{} { return a.debugger.Ended() }

// Resolve looks on which GPUs the process has queues.
func (a *Attached) Resolve(context.Context) (map[model.DeviceID]driver.Capability, error) {
	queues, err := a.debugger.Queues()
	if err != nil {
		return nil, err
	}
	out := map[model.DeviceID]driver.Capability{}
	for gpu, id := range a.ids {
		for _, q := range queues {
			if q.GPUID == id && !q.SDMA() {
				out[gpu] = driver.Capability{MaxLevel: model.LevelInterrupt, Route: RouteDebugger}
			}
		}
	}
	return out, nil
}

// Target is the process on one GPU.
func (a *Attached) Target(gpu model.DeviceID) driver.Target {
	return NewDebugTarget(a.debugger, a.ids[gpu], a.metrics)
}

var (
	_ driver.QueueLister = (*Attached)(nil)
	_ driver.Catcher     = (*Attached)(nil)
)

// HardwareQueues asks the driver.
func (a *Attached) HardwareQueues(context.Context) ([]driver.HardwareQueue, error) {
	queues, err := a.debugger.Queues()
	if err != nil {
		return nil, err
	}
	var out []driver.HardwareQueue
	for _, q := range queues {
		hq := driver.HardwareQueue{Kind: "compute", ID: q.ID, GPUID: q.GPUID, Ring: q.Ring, Bytes: q.RingBytes}
		if q.SDMA() {
			hq.Kind = "copy"
		}
		for gpu, id := range a.ids {
			if id == q.GPUID {
				hq.Device = gpu
			}
		}
		out = append(out, hq)
	}
	return out, nil
}

// Caught is how many queues appeared while the others were stopped.
func (a *Attached) Caught() uint64 {
	return a.debugger.CaughtSoFar()
}

// Why says why a GPU is missing in Resolve.
func (a *Attached) Why() string { return "the process has no compute queue there" }

// OwnSlice is not known.
func (a *Attached) OwnSlice(model.DeviceID) int64 { return 0 }

// Close ends the session: everything goes on.
func (a *Attached) Close() { _ = a.debugger.Close() }

var errNoObjects = errors.New("no resource-manager objects on this driver")

// AddClient refuses.
func (a *Attached) AddClient(uint32, int) error { return errNoObjects }

// Alloc refuses.
func (a *Attached) Alloc(_, _, _, _ uint32) error { return errNoObjects }

// Free does nothing.
func (a *Attached) Free(_, _ uint32) {}

// Timeslice does nothing.
func (a *Attached) Timeslice(_, _ uint32, _ uint64) {}
