// SPDX-License-Identifier: Apache-2.0

package control

import "xsched/internal/identity"

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
	StartedNS     int64  `json:"started_unix_ns"`
}

// List has all managed processes.
type List struct {
	Policy string `json:"policy"`
	Mode   string `json:"mode"`
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

// Process is a connected or attached process.
type Process struct {
	PID       int `json:"pid"`        // in the daemon's PID namespace
	ClientPID int `json:"client_pid"` // in the process's own namespace
	UID       int `json:"uid"`
	// Container is the cgroup or the namespace of its container; empty: on the host.
	Container string `json:"container,omitempty"`
	// Command is empty unless the caller is the owner or root.
	Command  string `json:"command"`
	Session  uint64 `json:"session"`
	Attached bool   `json:"attached"` // without the shim
	AgeMS    int64  `json:"age_ms"`   // since it connected

	Priority int32 `json:"priority"`
	// PriorityReason explains why the requested priority was not granted.
	PriorityReason string `json:"priority_reason,omitempty"`
	// WantLevel is the requested level (0: auto); Queue.Level is the effective one.
	WantLevel int  `json:"want_level"`
	InFlight  int  `json:"in_flight"`
	Batch     int  `json:"batch"`
	Held      bool `json:"held"` // suspended with Control.Suspend
	// Utilization is the share of the GPU in percent; 0: not set.
	Utilization int `json:"utilization"`
	// Hints has all hints; Nice is the CPU nice value, which CHPF and CFS use.
	Hints Hints `json:"hints"`
	Nice  int   `json:"nice"`

	// QueuesCaught counts hardware queues that were created during a suspension and suspended too.
	QueuesCaught uint64 `json:"queues_caught"`

	Counters Counters `json:"counters"`
	Queues   []Queue  `json:"queues"`
	// Protection is what running before lower programs gains it and costs them, by GPU.
	Protection []Protection `json:"protection,omitempty"`

	// User is the owner, for servers that show a process to several callers.
	User identity.User `json:"-"`
}

// For returns the process as a caller may see it.
func (p Process) For(c Caller) Process {
	if !c.Owns(p.User) {
		p.Command = ""
	}
	return p
}

// Counters are counted by the shim; they are zero for an attached process.
type Counters struct {
	HookedCalls uint64 `json:"hooked_calls"`
	Launches    uint64 `json:"launches"`
	Copies      uint64 `json:"copies"`
	Syncs       uint64 `json:"syncs"`
	Captured    uint64 `json:"captured"`
	GateWaits   uint64 `json:"gate_waits"`
	GateWaitNS  uint64 `json:"gate_wait_ns"`
	Unhooked    uint64 `json:"unhooked"`
	Recoveries  uint64 `json:"recoveries"`
}

// Queue is a process's context on a device, or one of its streams.
type Queue struct {
	Index  uint32 `json:"index"`
	Stream bool   `json:"stream"`
	Device string `json:"device"` // PCI address
	Busy   bool   `json:"busy"`
	// CopiesOnly: it has copies and no kernels; a lower program that only copies is left alone.
	CopiesOnly bool `json:"copies_only"`
	// State: idle, running, yielding (it has work, and the hardware prefers the longer timeslices of
	// others), suspended, held.
	State string `json:"state"`
	Level int    `json:"level"` // effective level: 1, 2 or 3
	// LevelReason explains why the level is not the requested or the highest one.
	LevelReason string `json:"level_reason,omitempty"`
	// Route is the preemption mechanism: gate (launches are held), channels (the daemon stops
	// hardware channels), owner (the shim suspends its queues) or debugger.
	Route       string `json:"route"`
	SliceUS     int64  `json:"slice_us"`          // set by the daemon; 0: the driver's default
	OwnSliceUS  int64  `json:"original_slice_us"` // the driver's or application's; 0: unknown
	Preemptions uint64 `json:"preemptions"`       // suspensions while busy
	SuspendedNS int64  `json:"suspended_ns"`      // total while busy
	RanNS       int64  `json:"ran_ns"`            // time with work while allowed to run
	Submitted   uint64 `json:"submitted"`
	Transitions uint64 `json:"transitions"`
	// Hints combines the hints of the process and of this queue.
	Hints Hints `json:"hints"`
	// PreemptedBy counts preemptions by cause.
	PreemptedBy []Cause `json:"preempted_by,omitempty"`
}

// Protection is what running before lower programs of a GPU gains a program, and what it costs them.
// A request is a busy period beside a lower program with work.
type Protection struct {
	Device string `json:"device"` // PCI address
	// State: learning, protected, or native (protection gains nothing; it is tried again later).
	State    string  `json:"state"`
	Changes  uint64  `json:"changes"` // between protected and native
	Requests uint64  `json:"requests"`
	P50US    float64 `json:"p50_us"` // of the requests, protected
	P99US    float64 `json:"p99_us"`
	// NativeP50US and NativeP99US are without protection; NativeSource tells how they are known:
	// modelled, or measured while the program was not protected.
	NativeP50US  float64 `json:"native_p50_us"`
	NativeP99US  float64 `json:"native_p99_us"`
	NativeSource string  `json:"native_source"`
	GainP99US    float64 `json:"gain_p99_us"` // NativeP99US - P99US; 0 while learning
	// CostRatio is the share of the last half minute that lower programs lost beyond the GPU time
	// of the requests, and CostNS the total. Both are upper bounds.
	CostRatio float64 `json:"cost_ratio"`
	CostNS    int64   `json:"cost_ns"`
}

// The states of Protection.
const (
	ProtectionLearning = "learning"
	ProtectionActive   = "protected"
	ProtectionNative   = "native"
)

// The default routes, which `xsched list` does not show.
const (
	RouteGate     = "gate"
	RouteChannels = "channels"
)

// Cause is the cause of preemptions.
type Cause struct {
	PID   int    `json:"pid,omitempty"` // the preempting process; 0: see Reason
	Count uint64 `json:"count"`
	// Reason: "process", "hand" (Control.Suspend) or "other".
	Reason string `json:"reason"`
}

// Devices has all known GPUs.
type Devices struct {
	Devices []Device `json:"devices"`
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
	// A caller in a container gets the numbers of its own programs.
	Processes int `json:"processes"`
	Queues    int `json:"queues"`
	// Others is the number of unmanaged programs that the daemon can see; 0 in a container.
	Others int `json:"others"`
	// BusyNS is the time during which queues had work and were allowed to run. In a container it is
	// the sum over its own queues.
	BusyNS int64 `json:"busy_ns"`
	// Policy and Mode are in force here; ModeLevel is the level of mode "level".
	Policy    string `json:"policy"`
	Mode      string `json:"mode"`
	ModeLevel int    `json:"mode_level,omitempty"`
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

// WedgeRequest blocks the engine loop.
type WedgeRequest struct {
	DurationMS int64 `json:"duration_ms"`
}

// WedgeReply confirms that the loop is going to block.
type WedgeReply struct {
	DurationMS int64 `json:"duration_ms"`
}

// Stats are statistics of the daemon.
type Stats struct {
	UptimeNS int64 `json:"uptime_ns"`
	// Scheduling is the scheduling class of the engine thread: "SCHED_FIFO 1", "nice -10" or
	// "normal (reason)".
	Scheduling string `json:"scheduling"`

	Sessions      int               `json:"sessions"`
	Queues        int               `json:"queues"`
	SessionsTotal uint64            `json:"sessions_total"`
	Refused       map[string]uint64 `json:"refused"` // by reason
	OpenFDs       int               `json:"open_fds"`
	// FoldedQueues are beyond their user's limit; they are scheduled together with another queue of
	// their process.
	FoldedQueues int `json:"folded_queues"`
	// Throttled doorbells and RequestsRefused were beyond a user's share of the engine. Throttled
	// ones are seen late, not lost.
	Throttled       uint64 `json:"throttled"`
	RequestsRefused uint64 `json:"requests_refused"`
	// Snapshots of the engine's state, taken for readers.
	Snapshots uint64 `json:"snapshots"`
	// LogSuppressed lines exceeded the rate of their message; LogDropped ones found no reader.
	LogSuppressed uint64 `json:"log_suppressed"`
	LogDropped    uint64 `json:"log_dropped"`
	Goroutines    int    `json:"goroutines"`

	Wakes     uint64 `json:"wakes"`     // of the engine loop
	Doorbells uint64 `json:"doorbells"` // notifications received
	Decisions uint64 `json:"decisions"` // policy calls
	// BusyToDecision is the time from an idle queue's first launch to the end of the decision.
	BusyToDecision Histogram `json:"busy_to_decision"`
	Decision       Histogram `json:"decision"` // the policy call alone
	// HeartbeatLate is the delay of heartbeats; HeartbeatAgeNS is the age of the last one.
	HeartbeatLate  Histogram `json:"heartbeat_late"`
	HeartbeatAgeNS int64     `json:"heartbeat_age_ns"`
	// QueueWait is the time until a preempted busy queue may run again.
	QueueWait Histogram `json:"queue_wait"`

	// Decisions of the engine, as of the last heartbeat.
	Preemptions uint64 `json:"preemptions"` // preempted busy queues, at any level
	// PreemptionsByLevel has Preemptions by level; [0] is unused.
	PreemptionsByLevel [4]uint64 `json:"preemptions_by_level"`
	Yields             uint64    `json:"yields"` // busy queues that yield to a longer timeslice
	Grants             uint64    `json:"grants"` // starvation grants

	Suspends      uint64 `json:"suspends"`       // completed operations on hardware queues
	Resumes       uint64 `json:"resumes"`        //
	TimesliceSets uint64 `json:"timeslice_sets"` //
	Shared        uint64 `json:"shared"`         // of the suspends and resumes: carried out by the call of another program
	Split         uint64 `json:"split"`          // repeated alone, because a shared call failed
	GateHolds     uint64 `json:"gate_holds"`     // closed Lv1 gates
	Undone        uint64 `json:"undone"`         // suspensions undone because their lease expired
	TurnedOff     uint64 `json:"turned_off"`     // times that failing resumes turned scheduling off for a process
	DeviceErrors  uint64 `json:"device_errors"`

	SuspendTime Histogram `json:"suspend_time"` // one suspend operation
	ResumeTime  Histogram `json:"resume_time"`
	// DriverSuspendTime and DriverResumeTime are the driver's part, where the program's shim
	// performs the operation.
	DriverSuspendTime Histogram `json:"driver_suspend_time"`
	DriverResumeTime  Histogram `json:"driver_resume_time"`
	// PreemptTime is the time from the decision to preempt a process to the end of that
	// operation, by level. [0] and [1] are empty, because a gate has no operation.
	PreemptTime [4]Histogram `json:"preempt_time"`

	Targets  []TargetStats `json:"targets"`
	Guardian GuardianStats `json:"guardian"`
}

// Histogram summarises durations in microseconds.
type Histogram struct {
	Count uint64  `json:"count"`
	P50US float64 `json:"p50_us"`
	P90US float64 `json:"p90_us"`
	P99US float64 `json:"p99_us"`
	MaxUS float64 `json:"max_us"`
	SumUS float64 `json:"sum_us"`
	// Cumulative counts the durations up to each of HistogramBoundsUS.
	Cumulative []uint64 `json:"cumulative,omitempty"`
}

// HistogramBoundsUS are the bounds of Histogram.Cumulative.
func HistogramBoundsUS() []float64 {
	return []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 10e3, 20e3, 50e3, 100e3, 200e3, 500e3, 1e6, 10e6}
}

// TargetStats is the state of the worker for one process on one device.
type TargetStats struct {
	PID          int    `json:"pid"`
	Device       string `json:"device"`
	Ops          uint64 `json:"ops"`
	Errors       uint64 `json:"errors"`
	Undone       uint64 `json:"undone"`
	LastError    string `json:"last_error,omitempty"`
	StuckSinceNS int64  `json:"stuck_since_ns,omitempty"` // CLOCK_MONOTONIC; 0: not stuck
	StuckForMS   int64  `json:"stuck_for_ms,omitempty"`
	Off          string `json:"off,omitempty"` // why scheduling is off for the process; empty: it is on
}

// GuardianStats describes the guardian, which restores attached processes if the daemon dies.
type GuardianStats struct {
	PID      int `json:"pid"` // 0: not started, because nothing is attached
	Attached int `json:"attached"`
	Restarts int `json:"restarts"`
}
