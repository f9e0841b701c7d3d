// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/model"
	"xsched/internal/seqpacket"
	"xsched/internal/wire"
)

// Name identifies the driver.
const Name = "amd"

// The virtual device's socket and file system root in the daemon's directory.
const (
	VirtualSocket = "kfd.sock"
	VirtualRoot   = "kfd"
)

// New returns the driver for the registry.
func New() driver.Driver { return kernelDriver{} }

type kernelDriver struct{}

var _ driver.Supervisor = kernelDriver{}

func (kernelDriver) Name() string   { return Name }
func (kernelDriver) Frames() uint32 { return wire.GroupOf(FrameKFD) }

// Open detects the kernel driver by its sysfs directory. A virtual device may start after the
// daemon.
func (kernelDriver) Open(o driver.Options) (driver.Instance, error) {
	root := "/"
	if o.Root != "" {
		root = o.Root
	}
	i := &instance{metrics: o.Metrics, virtual: o.Virtual}
	if o.Virtual {
		if i.socket = o.Socket; i.socket == "" {
			i.socket = filepath.Join(o.Dir, VirtualSocket)
		}
		root = filepath.Join(filepath.Dir(i.socket), VirtualRoot)
	} else if _, err := os.Stat(filepath.Join(root, SysfsRoot)); err != nil {
		return nil, ErrNoDriver
	}
	if i.metrics == nil {
		i.metrics = &driver.Metrics{}
	}
	i.Sources = SourcesAt(root)
	if o.Log != nil && !o.Virtual {
		version := firstLine(driver.Host{Root: root}, moduleVersion)
		o.Log.Info("driver found", "driver", Name, "version", strings.TrimSpace("amdkfd "+version))
	}
	return i, nil
}

// instance is the detected driver.
type instance struct {
	Driver
	metrics *driver.Metrics
	virtual bool
	socket  string // the virtual device's
	shares  shares
}

var (
	_ driver.Instance = (*instance)(nil)
	_ driver.Sensed   = (*instance)(nil)
)

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

const deviceReason = "`xsched run` reaches level 2 through the shim; level 3 needs `xsched attach`"

// SensorArgs names the kernel driver, whose files are below the root.
func (i *instance) SensorArgs() []string { return []string{"amdgpu", "/"} }

// Describe names a GPU of the topology.
func (i *instance) Describe(id model.DeviceID, _ bool) (driver.Device, bool) {
	d := driver.Device{Driver: "amdkfd", Virtual: i.virtual, MaxLevel: model.LevelDeactivate, Reason: deviceReason}
	n, listed := i.gpus()[id]
	d.MemoryBytes, d.Divided, d.Access = i.container(id)
	if d.Name = n.Target(); n.Name != "" {
		d.Name += " " + n.Name
	}
	return d, listed
}

// Users returns nothing, because the driver does not show whether an unmanaged process has work.
func (i *instance) Users(map[int]bool) map[model.DeviceID][]int { return nil }

// UsedBy returns nothing, as Users.
func (i *instance) UsedBy(int) []model.DeviceID { return nil }

// NewSession prepares for a process that connected.
func (i *instance) NewSession(o driver.SessionOptions) driver.Session {
	owner := NewOwner(i.Sources.Sysfs, i.metrics)
	owner.lease, owner.share = o.Lease, i.shares.of(o.User)
	if i.virtual || initialPIDNamespace() {
		owner.pid = o.PID
	}
	owner.Connect(func(order Order) error { return o.Send(EncodeOrder(order)) })
	return session{owner}
}

// session is a process that announces its queues and executes orders.
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

// OwnSlice returns 0: the driver has no timeslice per process.
func (s session) OwnSlice(model.DeviceID) int64 { return 0 }

// Attach supervises a process that the driver lists.
func (i *instance) Attach(_ context.Context, r driver.AttachRequest) (driver.Attached, error) {
	if !i.Lists(r.PID) {
		return nil, refuse(ErrNotListed)
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

// refuse classifies an attach error.
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
