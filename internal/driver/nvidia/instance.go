// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/identity"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// Name identifies the driver.
const Name = "nvidia"

// RouteChannels: levels 2 and 3 disable channels.
const RouteChannels = "channels"

// VirtualSocket is the virtual device's default socket name.
const VirtualSocket = "vgpu.sock"

// New returns the driver for the registry.
func New() driver.Driver { return kernelDriver{} }

type kernelDriver struct{}

var _ driver.Restorer = kernelDriver{}

func (kernelDriver) Name() string   { return Name }
func (kernelDriver) Frames() uint32 { return wire.GroupOf(FrameRM) }

// Open detects the kernel module, or connects to the virtual device.
func (kernelDriver) Open(o driver.Options) (driver.Instance, error) {
	d, err := openAt(o.Place)
	if err != nil {
		return nil, err
	}
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	log.Info("driver found", "driver", Name, "version", d.Version(), "evidence", d.release.Load().grade)
	d.log = log
	d.keepTests(o.StateDir, o.Version)
	if o.Dir != "" {
		if err := d.CacheLevels(o.Dir); err != nil {
			log.Warn("probed levels are not cached", "err", err)
		}
	}
	metrics := o.Metrics
	if metrics == nil {
		metrics = &driver.Metrics{}
	}
	return &instance{Driver: d, metrics: metrics, filesPerUID: fileShare(), budgets: map[identity.User]*budget{}}, nil
}

func openAt(p driver.Place) (*Driver, error) {
	if !p.Virtual {
		return NewDriver()
	}
	if p.Socket == "" {
		p.Socket = filepath.Join(p.Dir, VirtualSocket)
	}
	return NewVirtualDriver(p.Socket), nil
}

// instance is the detected driver.
type instance struct {
	*Driver
	metrics     *driver.Metrics
	filesPerUID int

	mu      sync.Mutex
	budgets map[identity.User]*budget // by account
}

var (
	_ driver.Instance = (*instance)(nil)
	_ driver.Sensed   = (*instance)(nil)
)

// Devices lists the driver's GPUs.
func (i *instance) Devices() []model.DeviceID {
	var out []model.DeviceID
	for _, g := range i.system.GPUs() {
		if id, err := model.ParseDeviceID(g.PCI); err == nil {
			out = append(out, id)
		}
	}
	return out
}

// SensorArgs names the vendor's library: unlike controls of RM, its calls have one layout in all releases.
func (i *instance) SensorArgs() []string { return []string{"nvml"} }

// Describe returns the probed capability of a GPU, or the one expected for this driver version.
func (i *instance) Describe(id model.DeviceID, owned bool) (d driver.Device, listed bool) {
	d = driver.Device{Driver: i.Version(), Virtual: i.Virtual, MaxLevel: model.LevelBlock}
	for _, g := range i.system.GPUs() {
		if gpu, err := model.ParseDeviceID(g.PCI); err == nil && gpu == id {
			d.Name, d.Divided, listed = g.Name, i.divided(id), true
			d.Access = i.access(g)
		}
	}
	v, probed := i.Verdict(id)
	d.Probed, d.ComputeMode, d.Reason, d.Slices = probed, v.Compute, v.Reason, v.Slices
	if d.MemoryBytes = v.Memory; d.Divided {
		d.MemoryBytes = 0
	}
	switch stop, _, _ := i.release.Load().allowed(id); {
	case !stop:
		d.Probed = false // no probe has run
	case !probed:
		d.MaxLevel, d.Slices = model.LevelInterrupt, true
		d.Reason = "expected for this driver; not yet probed"
	case v.Stop:
		d.MaxLevel = model.LevelInterrupt
	}
	// Under MPS the server owns all channels, so no process can be suspended alone.
	if why := i.MPSReason(); why != "" && !owned {
		d.MaxLevel, d.Slices, d.Reason = model.LevelBlock, false, why
	}
	return d, listed
}

// NewSession prepares for a process that connected.
func (i *instance) NewSession(o driver.SessionOptions) driver.Session {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if before := i.Version(); i.Refresh() && i.Version() != before {
		log.Warn("driver version changed", "version", i.Version(), "before", before)
	}
	objects := NewObjects(i.Driver, i.limits(o.User), i.metrics)
	objects.process = o.PID
	return &session{Objects: objects, log: log}
}

// limits bounds one process, and the files of one user. Otherwise one user's programs could exhaust
// the daemon's descriptors.
func (i *instance) limits(user identity.User) Limits {
	account := user.Account()
	i.mu.Lock()
	defer i.mu.Unlock()
	now := time.Now()
	for u, b := range i.budgets {
		if u != account && !b.InUse() && now.Sub(b.asked) > budgetAge {
			delete(i.budgets, u)
		}
	}
	if i.budgets[account] == nil {
		i.budgets[account] = &budget{Budget: Budget{Most: i.filesPerUID}, handles: Budget{Most: maxUserObjects}}
	}
	b := i.budgets[account]
	b.asked = now
	return Limits{Clients: MaxRMClients, Objects: MaxRMObjects, Files: &b.Budget, Handles: &b.handles}
}

// budget is a user's share of files. The budget lives as long as a process of that user may draw on
// it, because a second budget would double the share.
type budget struct {
	Budget
	handles Budget    // objects
	asked   time.Time // last use
}

// maxUserObjects bounds the objects of one user: 64 for each program that a user may have.
// An object takes up to 0.5 kB.
const maxUserObjects = 1 << 16

// budgetAge exceeds the time between requesting limits and using them.
const budgetAge = time.Minute

// fileShare returns one user's share of this process's descriptors.
func fileShare() int {
	const leastShare, most = 64, 1 << 20
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return leastShare
	}
	return int(max(leastShare, min(lim.Cur, most)/4))
}

// refuse classifies an attach error.
func refuse(err error) *driver.AttachError {
	e := &driver.AttachError{Err: err}
	switch {
	case errors.Is(err, ErrNoRights):
		e.Refusal, e.Remedy = driver.RefusedRights, "run the daemon as root, or start the program with `xsched run`"
	case errors.Is(err, ErrNoContext):
		e.Refusal, e.Remedy = driver.RefusedNotUsed, "attach once it uses the GPU, or start it with `xsched run`"
	case errors.Is(err, ErrUnsupported):
		e.Refusal, e.Remedy = driver.RefusedSupport, "start it with `xsched run`, which gives it level 1"
	case errors.Is(err, ErrSearch):
		e.Remedy = "start it with `xsched run`, which needs no search"
	}
	return e
}
