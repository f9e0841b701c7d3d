// SPDX-License-Identifier: Apache-2.0

package control

// Version describes the running daemon.
type Version struct {
	Version     string `json:"version"`
	WireVersion int    `json:"wire_version"`
	PID         int    `json:"pid"`
	UID         int    `json:"uid"`
	Dir         string `json:"dir"`
	Virtual     bool   `json:"virtual"`
	// Platform is the driver that the virtual GPU emulates; empty without a virtual GPU.
	Platform string `json:"platform,omitempty"`
	// AllowPriority tells whether every user may use priorities above 0, and MaxPriority which is the
	// highest rank of the caller.
	AllowPriority bool   `json:"allow_priority"`
	MaxPriority   *int32 `json:"max_priority,omitempty"`
	Policy        string `json:"policy"`
	Mode          string `json:"mode"`
	ModeLevel     int    `json:"mode_level,omitempty"` // of mode "level"
	StartedNS     int64  `json:"started_unix_ns"`
}

// List has all managed processes.
type List struct {
	Policy    string `json:"policy"`
	Mode      string `json:"mode"`
	ModeLevel int    `json:"mode_level,omitempty"` // of mode "level"
	// DefaultInFlight and DefaultBatch apply to processes with the value 0.
	DefaultInFlight int       `json:"default_in_flight"`
	DefaultBatch    int       `json:"default_batch"`
	Processes       []Process `json:"processes"`
	// Devices are the GPUs with a policy or a mode of their own, by address.
	Devices []DeviceSetting `json:"devices,omitempty"`
}

// DeviceSetting is the policy and the mode of one GPU. Empty fields are as for the other GPUs.
type DeviceSetting struct {
	Device string `json:"device"` // PCI address
	Policy string `json:"policy,omitempty"`
	Mode   string `json:"mode,omitempty"`
	Level  int    `json:"level,omitempty"` // with mode "level"
}

// DefaultSetting as the name of a policy or mode returns a GPU to the setting of the others.
const DefaultSetting = "default"

// Devices has all known GPUs.
type Devices struct {
	Devices []Device `json:"devices"`
	// Problems keep every program of this host from being scheduled, for example a driver that is not
	// loaded. Callers in a container do not get them.
	Problems []Problem `json:"problems,omitempty"`
}

// Problem is a defect that needs attention.
type Problem struct {
	Cause  string `json:"cause"`
	Remedy string `json:"remedy"`
}

// Device is one GPU.
type Device struct {
	ID          string `json:"id"` // PCI address
	Driver      string `json:"driver"`
	Virtual     bool   `json:"virtual"`
	MaxLevel    int    `json:"max_level"`
	LevelReason string `json:"level_reason,omitempty"` // why not 3, or that the level was not probed yet
	Slices      bool   `json:"slices"`
	Name        string `json:"name,omitempty"`
	Probed      bool   `json:"probed"` // a program's hardware queues confirmed the level
	// ComputeMode is default, exclusive thread, exclusive process or prohibited; empty: unknown.
	ComputeMode string `json:"compute_mode,omitempty"`
	MIG         bool   `json:"mig,omitempty"` // partitioned into instances
	// MemoryBytes is the size of the GPU's memory; 0: unknown.
	MemoryBytes uint64 `json:"memory_bytes,omitempty"`
	// Sensors are what the vendor's driver or library reports; absent in a container, and where nothing is
	// known.
	Sensors *Sensors `json:"sensors,omitempty"`
	// Access is what a container needs for this GPU; absent in a container, and for a GPU that no driver
	// lists.
	Access *DeviceAccess `json:"access,omitempty"`
	// A caller in a container gets the numbers of its own programs.
	Processes int `json:"processes"`
	Queues    int `json:"queues"`
	// Others is the number of unmanaged programs that the daemon can see; 0 in a container.
	Others int `json:"others"`
	// BusyNS is the time during which queues had work and were allowed to run. In a container it is
	// the sum over its own queues.
	BusyNS int64 `json:"busy_ns"`
	// Utilization is the share of the last second during which queues used the GPU.
	Utilization float64 `json:"utilization"`
	// Policy and Mode are in force here; ModeLevel is the level of mode "level".
	Policy    string `json:"policy"`
	Mode      string `json:"mode"`
	ModeLevel int    `json:"mode_level,omitempty"`
}

// DeviceAccess is what a container needs to use one GPU and no other. Those of several GPUs add up.
type DeviceAccess struct {
	// Nodes are device files. The kernel refuses those that a container does not have.
	Nodes []string `json:"nodes,omitempty"`
	// Variables list GPUs for the vendor's container runtime; values of several GPUs are joined with commas.
	Variables map[string]string `json:"variables,omitempty"`
	// CDI are names that the vendor's CDI specifications may give to the GPU, the best one first. One that
	// exists replaces the other fields.
	CDI []string `json:"cdi,omitempty"`
}

// PolicyRequest sets the policy.
type PolicyRequest struct {
	Name string `json:"name,omitempty"`
	// QuantumUS is the turn of each program under rotating policies; 0: unchanged.
	QuantumUS int64 `json:"quantum_us,omitempty"`
	// Device is the PCI address of the GPU that gets the policy; empty: all GPUs without one of
	// their own. The name "default" removes a GPU's own policy.
	Device string `json:"device,omitempty"`
}

// PolicyReply holds the current policy and the available ones.
type PolicyReply struct {
	Name      string   `json:"name"` // on the GPU of the request, or on those without one of their own
	QuantumUS int64    `json:"quantum_us"`
	Available []string `json:"available"`
	// Summaries describes each of Available in one line.
	Summaries map[string]string `json:"summaries"`
	// Devices are the GPUs with a policy or a mode of their own, by address.
	Devices []DeviceSetting `json:"devices,omitempty"`
}

// ModeRequest sets the mode; Level (1 to 3) is for mode "level" only.
type ModeRequest struct {
	Mode  string `json:"mode"`
	Level int    `json:"level,omitempty"`
	// Device is as in PolicyRequest.
	Device string `json:"device,omitempty"`
}

// ModeReply is the current mode.
type ModeReply struct {
	Mode      string   `json:"mode"` // on the GPU of the request, or on those without one of their own
	Level     int      `json:"level,omitempty"`
	Available []string `json:"available"`
	// Devices are the GPUs with a policy or a mode of their own, by address.
	Devices []DeviceSetting `json:"devices,omitempty"`
}

// ProcessRequest names a process.
type ProcessRequest struct {
	PID int `json:"pid"` // in the caller's PID namespace; -1: the caller
	// Priority and Utilization are for Attach; nil: unchanged.
	Priority    *int32 `json:"priority,omitempty"`
	Utilization *int   `json:"utilization,omitempty"`
}

// ProcessReply is the result of an operation on a process.
type ProcessReply struct {
	PID      int  `json:"pid"`
	Held     bool `json:"held"`
	Attached bool `json:"attached"` // managed without the shim
	Level    int  `json:"level"`    // the lowest effective level of its queues; 0: no queue yet
	// Message is one line for the user.
	Message string `json:"message"`
}

// AlertTest asks for a test alert, and confirms that all receivers have it.
type AlertTest struct{}

// WedgeRequest blocks the engine loop.
type WedgeRequest struct {
	DurationMS int64 `json:"duration_ms"`
}

// WedgeReply confirms that the loop is going to block.
type WedgeReply struct {
	DurationMS int64 `json:"duration_ms"`
}
