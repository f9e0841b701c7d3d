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
	"xsched/internal/seqpacket"
)

var (
	_ driver.Attached = (*Attached)(nil)
	_ driver.Target   = (*DebugTarget)(nil)
	_ Debugging       = (*Debugger)(nil)
)

// Debugging is the debugging of a process: by a Debugger, or by one in another process.
type Debugging interface {
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
	debugger Debugging
	gpu      uint32
	metrics  *driver.Metrics

	mu    sync.Mutex
	known bool
	state bool // suspended
}

// NewDebugTarget uses the debugger, which stays the caller's.
func NewDebugTarget(d Debugging, gpu uint32, metrics *driver.Metrics) *DebugTarget {
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
func (d Driver) Attach(debugging Debugging, metrics *driver.Metrics) (*Attached, error) {
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

// Attached is a process that runs without the shim, under a debugger.
type Attached struct {
	GPUs map[model.DeviceID]driver.Capability

	guard func(page int) error
	polls int

	debugger Debugging
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

// HardwareQueues asks the driver.
func (a *Attached) HardwareQueues(context.Context) ([]driver.HardwareQueue, error) {
	queues, err := a.debugger.Queues()
	if err != nil {
		return nil, err
	}
	var out []driver.HardwareQueue
	for _, q := range queues {
		hq := driver.HardwareQueue{Driver: Name, Kind: "compute", ID: uint64(q.ID), Details: details(q.ID, q.GPUID, q.Ring, q.RingBytes)}
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
func (a *Attached) Why() (string, bool) { return "the process has no compute queue there", true }

// OwnSlice is unknown: the driver has no timeslice per process.
func (a *Attached) OwnSlice(model.DeviceID) int64 { return 0 }

// Frame refuses: a process without the shim sends nothing.
func (a *Attached) Frame(_ []byte, fds []int) (bool, error) {
	seqpacket.CloseAll(fds)
	return false, errNoShim
}

var errNoShim = errors.New("the process runs without the shim")

// Disconnect changes nothing.
func (a *Attached) Disconnect() {}

// Close ends the debugging: everything is resumed.
func (a *Attached) Close() { _ = a.debugger.Close() }

// RestoredByClose: the driver resumes everything when the debugger goes.
func (a *Attached) RestoredByClose() bool { return true }

// Capabilities is what Resolve returned first.
func (a *Attached) Capabilities() map[model.DeviceID]driver.Capability { return a.GPUs }

// Guard gives the supervisor the page; it suspends only under a lease there.
func (a *Attached) Guard(_ context.Context, _ uint64, page int) (func(restored bool), error) {
	if a.guard == nil {
		return nil, errors.New("nobody supervises the process")
	}
	return func(bool) {}, a.guard(page)
}

// resolveEvery is how many polls there are between two looks for GPUs that the process starts to use.
const resolveEvery = 20

// Poll ends the session with the debugging.
func (a *Attached) Poll(context.Context) (changed bool, err error) {
	select {
	case <-a.debugger.Ended():
		return false, errors.New("the debugging ended")
	default:
	}
	a.polls++
	return a.polls%resolveEvery == 0, nil
}
