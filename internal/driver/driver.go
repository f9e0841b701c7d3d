// SPDX-License-Identifier: Apache-2.0

// Package driver is the seam between scheduling and GPU kernel drivers. A
// Driver finds its GPUs and the hardware queues of each process, suspends and
// resumes them and sets timeslices. Everything vendor-specific lives in the
// packages below this one; package registry lists them.
package driver

import (
	"context"
	"log/slog"

	"xsched/internal/model"
)

// Driver is one kernel driver, whether or not this host has it.
type Driver interface {
	// Name identifies the driver in options, reports and the guardian's protocol.
	Name() string
	// Frames is the group of frame types that belongs to this driver; see wire.GroupOf.
	Frames() uint32
	// Open detects the driver. The error says why it can't be used here.
	Open(o Options) (Instance, error)
	// Diagnose examines the host for `xsched doctor`.
	Diagnose(h Host) Diagnosis
}

// Place is where a driver is found. It travels to the guardian, hence the tags.
type Place struct {
	Root    string `json:"root,omitempty"` // of the file system; empty: "/"
	Dir     string `json:"dir,omitempty"`  // the daemon's folder
	Virtual bool   `json:"virtual,omitempty"`
	// Socket of the virtual device; empty: the driver's default name in Dir.
	Socket string `json:"socket,omitempty"`
}

// Options configure Open.
type Options struct {
	Place
	// StateDir keeps what was learnt about GPUs over restarts and reboots; empty: nothing is kept.
	StateDir string
	// Version is XSched's own.
	Version string
	Log     *slog.Logger
	Metrics *Metrics
}

// Instance is a driver that was detected on this host.
type Instance interface {
	// Devices lists the GPUs that the driver shows without any program.
	Devices() []model.DeviceID
	// Describe returns what a GPU supports; owned: a managed process has
	// hardware queues of its own there. listed is false for a GPU that Devices
	// does not name.
	Describe(id model.DeviceID, owned bool) (d Device, listed bool)
	// Users finds the processes that use each GPU, without those in managed and
	// their children.
	Users(managed map[int]bool) map[model.DeviceID][]int
	// NewSession prepares for a process that joined.
	NewSession(o SessionOptions) Session
	// Attach takes over a process that runs without the shim. Errors are *AttachError.
	Attach(ctx context.Context, r AttachRequest) (Attached, error)
}

// Device describes one GPU.
type Device struct {
	Driver      string // its version, for display
	Virtual     bool
	Name        string
	MaxLevel    model.Level
	Reason      string // why MaxLevel is not the highest, or not certain yet
	Slices      bool
	Probed      bool   // a process's own queues have shown the level
	ComputeMode string // empty: unknown
	Divided     bool   // into hardware instances
}

// SessionOptions are what a driver gets to know of a process that joined.
type SessionOptions struct {
	PID, UID int
	Log      *slog.Logger
	// Send delivers a packet to the process's shim. Safe for concurrent use.
	Send func(packet []byte) error
}

// Session is what one process has on one driver. Frame, Why, OwnSlice and
// Caught never block on the device: the engine loop and the socket reader call
// them. Resolve, HardwareQueues and targets may block.
type Session interface {
	// Frame handles a packet of the driver's own frame types and takes its
	// descriptors over. awaited: it answers a request. An error ends the session.
	Frame(packet []byte, fds []int) (awaited bool, err error)
	// Resolve probes what has appeared and returns what can be done on each GPU.
	Resolve(ctx context.Context) (map[model.DeviceID]Capability, error)
	// Target is the process on one GPU that Resolve named.
	Target(gpu model.DeviceID) Target
	// Why says why Resolve omits a GPU. known: the process has shown objects of this driver.
	Why() (reason string, known bool)
	// OwnSlice is the process's own timeslice in microseconds; 0: unknown.
	OwnSlice(gpu model.DeviceID) int64
	// HardwareQueues lists what the hardware schedules.
	HardwareQueues(ctx context.Context) ([]HardwareQueue, error)
	// Caught counts queues that appeared while the others were suspended, and were suspended too.
	Caught() uint64
	// Disconnect says that the shim is out of reach; it resumes its process by itself.
	Disconnect()
	// Close releases every descriptor.
	Close()
}

// Target is one process on one device.
type Target interface {
	// Apply makes want true. It blocks as long as the device does, and does
	// nothing that is known to be true already.
	Apply(ctx context.Context, want model.Desired) error
	// Invalidate marks the state as unknown, because the client recovered by
	// itself. The next Apply does everything again.
	Invalidate()
	// Close releases the target without changing it.
	Close() error
}

// Capability is what a device really does for one process.
type Capability struct {
	MaxLevel model.Level
	Slices   bool
	// Reason says why MaxLevel is not the highest; empty when it is.
	Reason string
	// Route names how levels 2 and 3 are reached.
	Route string
	// Bare: hardware queues alone prove that the GPU is used, since no hook may see the work.
	Bare bool
}

// Resolve picks the level in force for a wanted one: the best for LevelAuto. A
// level above the maximum falls to the maximum, and the reason says so.
func (c Capability) Resolve(want model.Level) (model.Level, string) {
	switch {
	case want == model.LevelAuto:
		return c.MaxLevel, c.Reason
	case want > c.MaxLevel:
		return c.MaxLevel, want.String() + " was asked for: " + c.Reason
	}
	return want, ""
}

// HardwareQueue is something of a process that the hardware schedules: a
// queue, a channel or a group of channels.
type HardwareQueue struct {
	Driver  string
	Device  model.DeviceID
	Kind    string            // compute, copy or group
	ID      uint64            // the driver's number or handle
	Stopped bool              // by the daemon; unknown where the process itself suspends
	Details map[string]uint64 // the driver's own fields
}
