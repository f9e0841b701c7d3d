// SPDX-License-Identifier: Apache-2.0

// Package driver is the seam between scheduling and GPU kernel drivers. A
// Driver finds its GPUs and the hardware queues of each process, suspends and
// resumes them and sets timeslices. Everything vendor-specific lives in the
// packages below this one; package registry lists them.
package driver

import (
	"context"
	"log/slog"

	"xsched/internal/identity"
	"xsched/internal/model"
	"xsched/internal/quarantine"
)

// Driver is one kernel driver, present on this host or not.
type Driver interface {
	// Name identifies the driver in options, reports and the guardian's protocol.
	Name() string
	// Frames returns the driver's group of frame types; see wire.GroupOf.
	Frames() uint32
	// Open detects the driver. The error explains why the driver is unusable here.
	Open(o Options) (Instance, error)
	// Diagnose examines the host for `xsched doctor`.
	Diagnose(h Host) Diagnosis
}

// Place locates a driver. The daemon sends it to the guardian as JSON.
type Place struct {
	Root    string `json:"root,omitempty"` // file system root; empty: "/"
	Dir     string `json:"dir,omitempty"`  // the daemon's runtime directory
	Virtual bool   `json:"virtual,omitempty"`
	// Socket of the virtual device; empty: the driver's default name in Dir.
	Socket string `json:"socket,omitempty"`
}

// Options configure Open.
type Options struct {
	Place
	// StateDir keeps evidence about GPUs across restarts; empty disables persistence.
	StateDir string
	// Version is XSched's version.
	Version string
	Log     *slog.Logger
	Metrics *Metrics
}

// Instance is a driver detected on this host.
type Instance interface {
	// Devices lists the GPUs visible without a running program.
	Devices() []model.DeviceID
	// Describe returns a GPU's properties. owned reports that a managed process has its own
	// hardware queues there. listed is false for a GPU absent from Devices.
	Describe(id model.DeviceID, owned bool) (d Device, listed bool)
	// Users finds the processes on each GPU, except managed ones and their children.
	Users(managed map[int]bool) map[model.DeviceID][]int
	// UsedBy returns the GPUs that one process uses, by the same evidence as Users.
	UsedBy(pid int) []model.DeviceID
	// NewSession prepares for a process that connected.
	NewSession(o SessionOptions) Session
	// Attach takes over a process that runs without the shim. Errors are *AttachError.
	Attach(ctx context.Context, r AttachRequest) (Attached, error)
}

// Sensed is an Instance whose GPUs a helper process can measure.
type Sensed interface {
	// SensorArgs returns the arguments of the helper; see shim/sensors.
	SensorArgs() []string
}

// Device describes one GPU.
type Device struct {
	Driver      string // driver version, for display
	Virtual     bool
	Name        string
	MaxLevel    model.Level
	Reason      string // why MaxLevel is not the highest, or still unconfirmed
	Slices      bool
	Probed      bool   // a process's own queues confirmed the level
	ComputeMode string // empty: unknown
	Divided     bool   // partitioned into hardware instances
	MemoryBytes uint64 // 0: unknown
	Access      Access // of a container
}

// SessionOptions describe a process that connected.
type SessionOptions struct {
	PID  int
	User identity.User
	Log  *slog.Logger
	// Send delivers a packet to the process's shim. Safe for concurrent use.
	Send func(packet []byte) error
	// Lease returns the number of a GPU's lease (Leases.Number), for drivers whose shim executes
	// suspensions.
	Lease func(gpu model.DeviceID) uint32
}

// Session is one process on one driver. Frame, Why, OwnSlice and Caught must not block on the
// device, because the engine loop and the socket reader call them. Resolve, HardwareQueues and
// targets may block.
type Session interface {
	// Frame handles a packet of the driver's frame types and takes ownership of fds, which are what
	// Receiver.Wants said. awaited reports an answer to a request. An error ends the session.
	Frame(packet []byte, fds []int) (awaited bool, err error)
	// Resolve probes new objects and returns the capability per GPU.
	Resolve(ctx context.Context) (map[model.DeviceID]Capability, error)
	// Target returns the process's target on a GPU that Resolve reported.
	Target(gpu model.DeviceID) Target
	// Why explains why Resolve omits a GPU. known: the process has shown objects of this driver.
	Why() (reason string, known bool)
	// OwnSlice returns the application's timeslice in microseconds; 0: unknown.
	OwnSlice(gpu model.DeviceID) int64
	// HardwareQueues lists the entities the hardware schedules.
	HardwareQueues(ctx context.Context) ([]HardwareQueue, error)
	// Caught counts queues created during a suspension and suspended with the others.
	Caught() uint64
	// Disconnect reports that the shim is unreachable; the shim then resumes its process.
	Disconnect()
	// Close releases every descriptor.
	Close()
}

// Receiver is a Session whose packets may carry a descriptor.
type Receiver interface {
	// Wants returns what the only descriptor of a packet must be; false: the packet may have none.
	Wants(packet []byte) (quarantine.Want, bool)
	// Refused reports that the descriptor of a packet was something else.
	Refused(packet []byte, err error)
}

// Target is one process on one device.
type Target interface {
	// Apply reaches the desired state and skips operations already in effect. The call blocks as
	// long as the device does.
	Apply(ctx context.Context, want model.Desired) error
	// Invalidate marks the state as unknown after a client recovered; the next Apply repeats
	// everything.
	Invalidate()
	// Close releases the target without changing its state.
	Close() error
}

// Capability is what a device supports for one process.
type Capability struct {
	MaxLevel model.Level
	Slices   bool
	// Reason explains why MaxLevel is not the highest; empty when it is.
	Reason string
	// Route names the mechanism behind levels 2 and 3.
	Route string
	// Bare: hardware queues alone prove GPU use, because hooks may miss the work.
	Bare bool
}

// Resolve picks the effective level: the highest for LevelAuto, otherwise want capped at MaxLevel
// with a reason.
func (c Capability) Resolve(want model.Level) (model.Level, string) {
	switch {
	case want == model.LevelAuto:
		return c.MaxLevel, c.Reason
	case want > c.MaxLevel:
		return c.MaxLevel, want.String() + " was requested: " + c.Reason
	}
	return want, ""
}

// HardwareQueue is an entity the hardware schedules: a queue, a channel or a channel group.
type HardwareQueue struct {
	Driver  string
	Device  model.DeviceID
	Kind    string            // compute, copy or group
	ID      uint64            // driver-assigned number or handle
	Stopped bool              // suspended by the daemon; unknown if the process suspends itself
	Details map[string]uint64 // driver-specific fields
}
