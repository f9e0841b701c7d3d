// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/model"
	"xsched/internal/seqpacket"
	"xsched/internal/wire"
)

// Name identifies the driver.
const Name = "amd"

// Where the virtual device is in the daemon's folder: its socket, and the
// folder that stands for the root of a file system.
const (
	VirtualSocket = "kfd.sock"
	VirtualRoot   = "kfd"
)

// New is the driver for the registry.
func New() driver.Driver { return kernelDriver{} }

type kernelDriver struct{}

var _ driver.Supervisor = kernelDriver{}

func (kernelDriver) Name() string   { return Name }
func (kernelDriver) Frames() uint32 { return wire.GroupOf(FrameKFD) }

// Open detects the kernel driver by its folder in sysfs. A virtual device may
// start after the daemon.
func (kernelDriver) Open(o driver.Options) (driver.Instance, error) {
	root := "/"
	if o.Root != "" {
		root = o.Root
	}
	i := &instance{metrics: o.Metrics, virtual: o.Virtual}
	if o.Virtual {
		root = filepath.Join(o.Dir, VirtualRoot)
		if i.socket = o.Socket; i.socket == "" {
			i.socket = filepath.Join(o.Dir, VirtualSocket)
		}
	} else if _, err := os.Stat(filepath.Join(root, SysfsRoot)); err != nil {
		return nil, ErrNoDriver
	}
	if i.metrics == nil {
		i.metrics = &driver.Metrics{}
	}
	i.Sources = SourcesAt(root)
	return i, nil
}

// instance is the detected driver as the daemon uses it.
type instance struct {
	Driver
	metrics *driver.Metrics
	virtual bool
	socket  string // of the virtual device
}

var _ driver.Instance = (*instance)(nil)

func (i *instance) gpus() map[model.DeviceID]Node {
	nodes, err := ReadTopology(i.Sources.Sysfs)
	if err != nil {
		return nil
	}
	out := map[model.DeviceID]Node{}
	for _, n := range nodes {
		if n.IsGPU() {
			out[n.Device()] = n
		}
	}
	return out
}

// Devices lists the GPUs of the topology.
func (i *instance) Devices() []model.DeviceID {
	var out []model.DeviceID
	for id := range i.gpus() {
		out = append(out, id)
	}
	return out
}

const deviceReason = "the shim suspends a program under `xsched run`; level 3 takes `xsched attach`"

// Describe names a GPU of the topology.
func (i *instance) Describe(id model.DeviceID, _ bool) (driver.Device, bool) {
	d := driver.Device{Driver: "amdkfd", Virtual: i.virtual, MaxLevel: model.LevelDeactivate, Reason: deviceReason}
	n, listed := i.gpus()[id]
	if d.Name = n.Target(); n.Name != "" {
		d.Name += " " + n.Name
	}
	return d, listed
}

// Users finds nobody: whether a queue of an unmanaged process has work is unknown.
func (i *instance) Users(map[int]bool) map[model.DeviceID][]int { return nil }

// NewSession prepares for a process that joined.
func (i *instance) NewSession(o driver.SessionOptions) driver.Session {
	owner := NewOwner(i.Sources.Sysfs, i.metrics)
	owner.Connect(func(order Order) error { return o.Send(EncodeOrder(order)) })
	return session{owner}
}

// session is a process that announces its queues and carries out orders.
type session struct{ *Owner }

var _ driver.Session = session{}

// Frame handles queue announcements and answers to orders.
func (s session) Frame(packet []byte, fds []int) (awaited bool, err error) {
	if len(fds) > 0 {
		seqpacket.CloseAll(fds)
		return false, fmt.Errorf("%w: %d descriptors", wire.ErrFrame, len(fds))
	}
	f, err := wire.DecodeFrame(packet)
	if err != nil {
		return false, err
	}
	if f.Type == FrameDone {
		d, err := DecodeDone(packet)
		return err == nil && s.Answer(*d), err
	}
	events, err := DecodeKFD(packet)
	for _, e := range events {
		s.Queue(e)
	}
	return false, err
}

// OwnSlice is unknown: the driver has no timeslice per process.
func (s session) OwnSlice(model.DeviceID) int64 { return 0 }

// Close has nothing to release beside the connection.
func (s session) Close() { s.Disconnect() }

// Attach supervises a process that the driver lists.
func (i *instance) Attach(_ context.Context, r driver.AttachRequest) (driver.Attached, error) {
	if !i.Lists(r.PID) {
		return nil, refuse(fmt.Errorf("attach to process %d: %w", r.PID, ErrNotListed))
	}
	log := r.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	tracer, err := StartTracer(r.Guardian, log, r.PID, i.socket)
	if err != nil {
		return nil, refuse(err)
	}
	a, err := i.Driver.Attach(tracer, i.metrics)
	if err != nil {
		return nil, refuse(err)
	}
	a.guard = tracer.Guard
	return a, nil
}

// refuse classifies why a process can't be attached to.
func refuse(err error) *driver.AttachError {
	const run = "start it with `xsched run`"
	e := &driver.AttachError{Err: err}
	switch {
	case errors.Is(err, ErrNoRights), errors.Is(err, unix.EACCES):
		e.Refusal, e.Remedy = driver.RefusedRights, "run the daemon as root, or "+run
	case errors.Is(err, ErrTraced):
		e.Remedy = "end that debugger, or " + run
	case errors.Is(err, ErrOldDriver):
		e.Refusal, e.Remedy = driver.RefusedSupport, run
	case errors.Is(err, ErrNotListed), errors.Is(err, ErrNoQueues), errors.Is(err, ErrNoKFD), errors.Is(err, ErrNoRuntime):
		e.Refusal, e.Remedy = driver.RefusedNotUsed, "attach once it uses the GPU, or "+run
	case errors.Is(err, ErrGone):
		e.Refusal = driver.RefusedGone
	}
	return e
}
