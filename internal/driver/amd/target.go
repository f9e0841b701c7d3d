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

// Debugging is a debugging session, by a Debugger or a supervisor process.
type Debugging interface {
	Queues() ([]QueueSnapshot, error)
	Suspend(gpu uint32, kinds Kinds, grace uint32) ([]QueueResult, error)
	Resume(gpu uint32) ([]QueueResult, error)
	CaughtSoFar() uint64    // lock-free
	Ended() <-chan struct{} // closed when the process has ended or was released
	Close() error           // resumes everything
}

// DebugTarget suspends a process's compute queues on one GPU through its debugger (Lv3). The driver
// has no timeslice per process, so a timeslice has no effect.
type DebugTarget struct {
	debugger Debugging
	gpu      uint32
	metrics  *driver.Metrics

	mu    sync.Mutex
	known bool
	state bool // suspended
}

// NewDebugTarget uses d, which the caller keeps and closes.
func NewDebugTarget(d Debugging, gpu uint32, metrics *driver.Metrics) *DebugTarget {
	return &DebugTarget{debugger: d, gpu: gpu, metrics: metrics}
}

// Apply suspends or resumes the queues.
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

// Invalidate forgets the cached state.
func (t *DebugTarget) Invalidate() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known = false
}

// Close leaves the queues unchanged.
func (t *DebugTarget) Close() error { return nil }

// ErrNoQueues marks a process without compute queues.
var ErrNoQueues = errors.New("the process has no compute queue yet")

// Driver locates this machine's KFD.
type Driver struct {
	Sources Sources
}

// Lists reports whether the driver knows a process.
func (d Driver) Lists(pid int) bool {
	_, err := ReadProcess(d.Sources.Sysfs, pid)
	return err == nil
}

// Attach takes over a process under a debugger. The debugging session ends with the result, or on
// failure.
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

// Device returns the GPU's PCI address.
func (n Node) Device() model.DeviceID {
	location := uint32(n.Properties["location_id"])
	return model.MakeDeviceID(uint32(n.Properties["domain"]), location>>8, location>>3, location)
}

// Attached is a process without the shim, under a debugger.
type Attached struct {
	GPUs map[model.DeviceID]driver.Capability

	guard func(page int) error
	polls int

	debugger Debugging
	metrics  *driver.Metrics
	ids      map[model.DeviceID]uint32
}

// Ended is closed when the process has ended or was released.
func (a *Attached) Ended() <-chan struct{} { return a.debugger.Ended() }

// Resolve finds the GPUs on which the process has queues.
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

// Target returns the process's target on one GPU.
func (a *Attached) Target(gpu model.DeviceID) driver.Target {
	return NewDebugTarget(a.debugger, a.ids[gpu], a.metrics)
}

// HardwareQueues queries the driver.
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

// Caught returns how many queues appeared during suspensions.
func (a *Attached) Caught() uint64 {
	return a.debugger.CaughtSoFar()
}

// Why explains why Resolve omits a GPU.
func (a *Attached) Why() (string, bool) { return "the process has no compute queue there", true }

// OwnSlice returns 0: the driver has no timeslice per process.
func (a *Attached) OwnSlice(model.DeviceID) int64 { return 0 }

// Frame rejects packets, because a process without the shim sends none.
func (a *Attached) Frame(_ []byte, fds []int) (bool, error) {
	seqpacket.CloseAll(fds)
	return false, errNoShim
}

var errNoShim = errors.New("the process runs without the shim")

// Disconnect is a no-op.
func (a *Attached) Disconnect() {}

// Close ends the debugging session, which resumes everything.
func (a *Attached) Close() { _ = a.debugger.Close() }

// Free resumes every queue. The driver reports a result per queue, and has no timeslices.
func (a *Attached) Free(context.Context) (driver.Freed, error) {
	results, err := a.debugger.Resume(AllGPUs)
	done := driver.Freed{}
	for _, r := range results {
		if r.Done() {
			done.Queues++
		}
	}
	return done, err
}

// RestoredByClose: the driver resumes everything when the debugger ends.
func (a *Attached) RestoredByClose() bool { return true }

// Capabilities returns the first result of Resolve.
func (a *Attached) Capabilities() map[model.DeviceID]driver.Capability { return a.GPUs }

// Guard hands the page to the supervisor, which suspends only under its lease.
func (a *Attached) Guard(_ context.Context, _ uint64, page int) (func(restored bool), error) {
	if a.guard == nil {
		return nil, errors.New("the process has no supervisor")
	}
	return func(bool) {}, a.guard(page)
}

// resolveEvery is the number of polls between two checks for newly used GPUs.
const resolveEvery = 20

// Poll ends the session when the debugging session ends.
func (a *Attached) Poll(context.Context) (changed bool, err error) {
	select {
	case <-a.debugger.Ended():
		return false, errors.New("the debugging session ended")
	default:
	}
	a.polls++
	return a.polls%resolveEvery == 0, nil
}
