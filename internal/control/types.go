// SPDX-License-Identifier: Apache-2.0

package control

// Version says what is running.
type Version struct {
	Version     string `json:"version"`
	WireVersion int    `json:"wire_version"`
	PID         int    `json:"pid"`
	UID         int    `json:"uid"`
	Dir         string `json:"dir"`
	Virtual     bool   `json:"virtual"`
	// Platform is whose driver the virtual GPU plays, nvidia or amd; empty: it has none.
	Platform string `json:"platform,omitempty"`
	// AllowPriority: users of a root daemon may go above priority 0.
	AllowPriority bool   `json:"allow_priority"`
	Policy        string `json:"policy"`
	Mode          string `json:"mode"`
	StartedNS     int64  `json:"started_unix_ns"`
}

// List is every process the daemon knows.
type List struct {
	Policy string `json:"policy"`
	Mode   string `json:"mode"`
	// DefaultInFlight and DefaultBatch are in force where a process says 0.
	DefaultInFlight int       `json:"default_in_flight"`
	DefaultBatch    int       `json:"default_batch"`
	Processes       []Process `json:"processes"`
}

// Process is one client, or one attached process.
type Process struct {
	PID       int    `json:"pid"`        // as the daemon's pid namespace names it
	ClientPID int    `json:"client_pid"` // as the process itself says
	UID       int    `json:"uid"`
	Command   string `json:"command"`
	Session   uint64 `json:"session"`
	Attached  bool   `json:"attached"` // without our shim
	AgeMS     int64  `json:"age_ms"`   // since it joined

	Priority int32 `json:"priority"`
	// PriorityReason says that another was asked for and not granted.
	PriorityReason string `json:"priority_reason,omitempty"`
	// WantLevel is what was asked for (0: auto); each queue says what is in force.
	WantLevel int  `json:"want_level"`
	InFlight  int  `json:"in_flight"`
	Batch     int  `json:"batch"`
	Held      bool `json:"held"` // suspended by hand
	// Utilization is its share of the GPU in percent; 0: nothing said.
	Utilization int `json:"utilization"`
	// Hints is all that is said of it; Nice its CPU nice value, which CHPF and CFS read.
	Hints Hints `json:"hints"`
	Nice  int   `json:"nice"`

	// QueuesCaught is how many of its hardware queues appeared while the others were stopped, and
	// were stopped too.
	QueuesCaught uint64 `json:"queues_caught"`

	Counters Counters `json:"counters"`
	Queues   []Queue  `json:"queues"`
}

// Counters are what the shim counted; all zero for an attached process.
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

// Queue is one context of a process on a device, or one of its streams.
type Queue struct {
	Index  uint32 `json:"index"`
	Stream bool   `json:"stream"`
	Device string `json:"device"` // PCI address
	Busy   bool   `json:"busy"`
	// State: idle, running, suspended, held.
	State string `json:"state"`
	Level int    `json:"level"` // in force: 1, 2 or 3
	// LevelReason says why it is not the wanted, or not the highest, one.
	LevelReason string `json:"level_reason,omitempty"`
	// Route is how it is stopped at that level: gate (its launches are held), channels (NVIDIA's
	// driver), owner (the program's own library pauses its queues on AMD GPUs) or debugger (they are
	// suspended from outside).
	Route       string `json:"route"`
	SliceUS     int64  `json:"slice_us"`          // programmed by us; 0: the driver's own
	OwnSliceUS  int64  `json:"original_slice_us"` // the driver's or application's own; 0: not known yet
	Preemptions uint64 `json:"preemptions"`       // times it was suspended while busy
	SuspendedNS int64  `json:"suspended_ns"`      // in all, while busy
	RanNS       int64  `json:"ran_ns"`            // it had work and was allowed to run
	Submitted   uint64 `json:"submitted"`
	Transitions uint64 `json:"transitions"`
	// Hints is what holds for it: the process's, and what was said about this queue alone.
	Hints Hints `json:"hints"`
	// PreemptedBy says in whose favour it had to stop how often.
	PreemptedBy []Cause `json:"preempted_by,omitempty"`
}

// Routes that every level 1 (RouteGate) and every NVIDIA GPU (RouteChannels) has; others name
// themselves in `xsched list`.
const (
	RouteGate     = "gate"
	RouteChannels = "channels"
)

// Cause is why a queue was preempted.
type Cause struct {
	PID   int    `json:"pid,omitempty"` // 0: Reason says what it was
	Count uint64 `json:"count"`
	// Reason: "process", "hand" (suspended by a person), "other".
	Reason string `json:"reason"`
}

// Devices is every GPU seen so far.
type Devices struct {
	Devices []Device `json:"devices"`
}

// Device is one GPU.
type Device struct {
	ID          string `json:"id"` // PCI address
	Driver      string `json:"driver"`
	Virtual     bool   `json:"virtual"`
	MaxLevel    int    `json:"max_level"`
	LevelReason string `json:"level_reason,omitempty"` // why not 3, or that it was not tried yet
	Slices      bool   `json:"slices"`
	Name        string `json:"name,omitempty"`
	Probed      bool   `json:"probed"` // a program's own channels have shown the level
	// ComputeMode is default, exclusive thread, exclusive process or prohibited; empty: not known.
	ComputeMode string `json:"compute_mode,omitempty"`
	MIG         bool   `json:"mig,omitempty"` // divided into instances
	Processes   int    `json:"processes"`
	Queues      int    `json:"queues"`
	// Others is how many programs use it without being managed, as far as the daemon may see.
	Others int `json:"others"`
	// BusyNS is for how long queues of it had work that was allowed to run.
	BusyNS int64 `json:"busy_ns"`
}

// PolicyRequest selects a policy.
type PolicyRequest struct {
	Name string `json:"name,omitempty"`
	// QuantumUS is a turn of each program where a policy rotates; 0 leaves it.
	QuantumUS int64 `json:"quantum_us,omitempty"`
}

// PolicyReply is the policy in force and what else there is.
type PolicyReply struct {
	Name      string   `json:"name"`
	QuantumUS int64    `json:"quantum_us"`
	Available []string `json:"available"`
}

// ModeRequest selects a mode; Level only for mode "level" (1 to 3).
type ModeRequest struct {
	Mode  string `json:"mode"`
	Level int    `json:"level,omitempty"`
}

// ModeReply is the mode in force.
type ModeReply struct {
	Mode      string   `json:"mode"`
	Level     int      `json:"level,omitempty"`
	Available []string `json:"available"`
}

// ProcessRequest names a process.
type ProcessRequest struct {
	PID int `json:"pid"`
	// Priority and Utilization are for Attach; nil: the default, or as it is.
	Priority    *int32 `json:"priority,omitempty"`
	Utilization *int   `json:"utilization,omitempty"`
}

// ProcessReply says what was done to it.
type ProcessReply struct {
	PID      int  `json:"pid"`
	Held     bool `json:"held"`
	Attached bool `json:"attached"` // it has no shim; the daemon controls it from outside
	Level    int  `json:"level"`    // the lowest level in force over its queues; 0: no queue yet
	// Message is one line for the user, e.g. that it was attached to first.
	Message string `json:"message"`
}

// WedgeRequest blocks the engine loop.
type WedgeRequest struct {
	DurationMS int64 `json:"duration_ms"`
}

// WedgeReply says that the loop is going to block.
type WedgeReply struct {
	DurationMS int64 `json:"duration_ms"`
}

// Stats are the daemon's own figures.
type Stats struct {
	UptimeNS int64 `json:"uptime_ns"`
	// Scheduling is what the engine thread got: "SCHED_FIFO 1", "nice -10", "normal (reason)".
	Scheduling string `json:"scheduling"`

	Sessions      int               `json:"sessions"`
	Queues        int               `json:"queues"`
	SessionsTotal uint64            `json:"sessions_total"`
	Refused       map[string]uint64 `json:"refused"` // by reason
	OpenFDs       int               `json:"open_fds"`

	Wakes     uint64 `json:"wakes"`     // of the engine loop
	Doorbells uint64 `json:"doorbells"` // rings seen
	Decisions uint64 `json:"decisions"` // calls of the policy
	// BusyToDecision is from the application's idle->busy change to the end of the decision about it.
	BusyToDecision Histogram `json:"busy_to_decision"`
	Decision       Histogram `json:"decision"` // the decision alone
	// HeartbeatLate is how late heartbeats were; HeartbeatAgeNS is the age of the last.
	HeartbeatLate  Histogram `json:"heartbeat_late"`
	HeartbeatAgeNS int64     `json:"heartbeat_age_ns"`
	// QueueWait is how long queues that had to stop with work waited until they might run again.
	QueueWait Histogram `json:"queue_wait"`

	// What the engine decided, as of the last heartbeat.
	Preemptions uint64 `json:"preemptions"` // queues with work that were stopped, at any level
	// PreemptionsByLevel has the same by level; [0] is not used.
	PreemptionsByLevel [4]uint64 `json:"preemptions_by_level"`
	Yields             uint64    `json:"yields"` // queues with work that the hardware leaves for one with a longer slice
	Grants             uint64    `json:"grants"` // turns given by the starvation bound

	Suspends      uint64 `json:"suspends"`       // operations done on hardware queues
	Resumes       uint64 `json:"resumes"`        //
	TimesliceSets uint64 `json:"timeslice_sets"` //
	GateHolds     uint64 `json:"gate_holds"`     // Lv1 gates closed
	Undone        uint64 `json:"undone"`         // suspensions undone because their lease ran out
	DeviceErrors  uint64 `json:"device_errors"`

	SuspendTime Histogram `json:"suspend_time"` // one suspend operation
	ResumeTime  Histogram `json:"resume_time"`
	// DriverSuspendTime and DriverResumeTime are the driver's part of those, where a program does
	// it itself (AMD).
	DriverSuspendTime Histogram `json:"driver_suspend_time"`
	DriverResumeTime  Histogram `json:"driver_resume_time"`
	// PreemptTime is from the decision to stop a process to the end of the operation
	// that stopped it, by level; [0] and [1] are empty, a gate has no operation.
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
	// Cumulative has the number of durations up to each of HistogramBoundsUS.
	Cumulative []uint64 `json:"cumulative,omitempty"`
}

// HistogramBoundsUS are the bounds of Histogram.Cumulative.
func HistogramBoundsUS() []float64 {
	return []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 10e3, 20e3, 50e3, 100e3, 200e3, 500e3, 1e6, 10e6}
}

// TargetStats is one process on one device, as its reconciler sees it.
type TargetStats struct {
	PID          int    `json:"pid"`
	Device       string `json:"device"`
	Ops          uint64 `json:"ops"`
	Errors       uint64 `json:"errors"`
	Undone       uint64 `json:"undone"`
	LastError    string `json:"last_error,omitempty"`
	StuckSinceNS int64  `json:"stuck_since_ns,omitempty"` // CLOCK_MONOTONIC; 0: not stuck
	StuckForMS   int64  `json:"stuck_for_ms,omitempty"`
}

// GuardianStats is the process that restores attached processes when the daemon dies.
type GuardianStats struct {
	PID      int `json:"pid"` // 0: not started, nothing is attached
	Attached int `json:"attached"`
	Restarts int `json:"restarts"`
}
