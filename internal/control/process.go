// SPDX-License-Identifier: Apache-2.0

package control

import "xsched/internal/identity"

// Process is a connected or attached process.
type Process struct {
	PID       int `json:"pid"`        // in the daemon's PID namespace
	ClientPID int `json:"client_pid"` // in the process's own namespace
	UID       int `json:"uid"`
	// User is the login name of UID, or its digits: in a container, or without a name.
	User string `json:"user"`
	// Container is the cgroup or the namespace of its container; empty: on the host.
	Container string `json:"container,omitempty"`
	// Namespace, Pod, PodContainer and Class are those of the grant; empty outside Kubernetes.
	Namespace    string `json:"namespace,omitempty"`
	Pod          string `json:"pod,omitempty"`
	PodContainer string `json:"pod_container,omitempty"`
	Class        string `json:"class,omitempty"`
	// Group is the grant's group of pods on all nodes; GroupHeld tells that all of it is suspended.
	Group     string `json:"group,omitempty"`
	GroupHeld bool   `json:"group_held,omitempty"`
	// GroupPriority is the granted priority, which decides about a hold of the group. The present one may
	// be lower.
	GroupPriority int32 `json:"group_priority,omitempty"`
	// Command is empty unless the caller is the owner or root.
	Command string `json:"command"`
	// Name tells the program apart from the others of a List (NameProcesses). It may have an argument of
	// Command.
	Name     string `json:"name,omitempty"`
	Session  uint64 `json:"session"`
	Attached bool   `json:"attached"` // without the shim
	AgeMS    int64  `json:"age_ms"`   // since it connected

	Priority int32 `json:"priority"`
	// PriorityReason explains why the requested priority was not granted.
	PriorityReason string `json:"priority_reason,omitempty"`
	// Impaired says which thread of the library in it is dead while it has work, or that its calls bypass
	// the library, with the remedy.
	Impaired string `json:"impaired,omitempty"`
	// Rule is the rule of the configuration that gives hints to the program; empty unless the caller is
	// the owner or root.
	Rule string `json:"rule,omitempty"`
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

	// Memory is what the program has allocated, by GPU, as its library counts it. Hints.Memory is the quota.
	Memory []Memory `json:"memory,omitempty"`

	// QueuesCaught counts hardware queues that were created during a suspension and suspended too.
	QueuesCaught uint64 `json:"queues_caught"`

	Counters Counters `json:"counters"`
	Queues   []Queue  `json:"queues"`
	// QueuesRefused counts further queues, beyond the user's limits, which are not scheduled.
	QueuesRefused int `json:"queues_refused,omitempty"`
	// Protection is what running before lower programs gains it and costs them, by GPU.
	Protection []Protection `json:"protection,omitempty"`

	// State: away (its memory is not on the GPU, or moves), running, preempted (it has work and is suspended), waiting (it has work, and the hardware
	// prefers the longer timeslices of others), idle or held.
	State string `json:"state"`
	// GPUShare is the process's share of the last second, summed over GPUs. Processes that run at once
	// divide the time of a GPU.
	GPUShare float64 `json:"gpu_share"`
	// Preemptions counts suspensions while it had work, and the times that the hardware left it for the
	// longer timeslices of others.
	Preemptions uint64 `json:"preemptions"`
	LostNS      int64  `json:"lost_ns"` // time with work while preempted, summed over queues
	// Latency is absent before the first request.
	Latency *Latency `json:"latency,omitempty"`
	// SLO is absent without a latency target.
	SLO *SLO `json:"slo,omitempty"`

	// Owner is for servers that show a process to several callers.
	Owner identity.User `json:"-"`
}

// Memory is the memory of a process on one GPU.
type Memory struct {
	Device    string `json:"device"`
	UsedBytes int64  `json:"used_bytes"`
	// QuotaBytes is what it may allocate there; 0: no quota.
	QuotaBytes int64 `json:"quota_bytes"`
	// Refused counts allocations that would have exceeded the quota.
	Refused uint64 `json:"refused"`
	// MovableBytes of UsedBytes can leave the GPU, and AwayBytes of these are in host memory only. Fixed has
	// the rest by reason.
	MovableBytes int64            `json:"movable_bytes"`
	AwayBytes    int64            `json:"away_bytes"`
	Fixed        map[string]int64 `json:"fixed,omitempty"`
	// PinnedBytes of host memory are ready for moves.
	PinnedBytes int64 `json:"pinned_bytes"`
	// Residency is where the movable memory is: resident, draining, leaving, away or returning. In all but
	// the first state the program's calls wait.
	Residency string `json:"residency"`
	// Evicted: by hand, until it is restored. EvictFailed says why it could not leave, with the remedy.
	Evicted     bool   `json:"evicted,omitempty"`
	EvictFailed string `json:"evict_failed,omitempty"`
	// Waits: a call of the program waits for memory that is away.
	Waits     bool   `json:"waits,omitempty"`
	MovesOut  uint64 `json:"moves_out"`
	MovesBack uint64 `json:"moves_back"`
	BytesOut  int64  `json:"bytes_out"` // of all completed moves
	BytesBack int64  `json:"bytes_back"`
	// Move is the current or the last move; absent before the first one.
	Move *Move `json:"move,omitempty"`
}

// The values of Memory.Residency.
const (
	MemoryResident  = "resident"
	MemoryDraining  = "draining"
	MemoryLeaving   = "leaving"
	MemoryAway      = "away"
	MemoryReturning = "returning"
)

// Residencies returns the values of Memory.Residency, in the order of the wire contract.
func Residencies() []string {
	return []string{MemoryResident, MemoryDraining, MemoryLeaving, MemoryAway, MemoryReturning}
}

// Move is a move of a program's memory between the GPU and the host.
type Move struct {
	Bytes      int64 `json:"bytes"`       // to move
	MovedBytes int64 `json:"moved_bytes"` // of them, so far
	DurationNS int64 `json:"duration_ns"`
	Active     bool  `json:"active"` // in progress
}

// Rate is the speed of a move in bytes per second; 0: unknown.
func (m *Move) Rate() float64 {
	if m.DurationNS <= 0 {
		return 0
	}
	return float64(m.MovedBytes) / float64(m.DurationNS) * 1e9
}

// EvictRequest moves memory of a process to host memory, until it is restored.
type EvictRequest struct {
	PID    int    `json:"pid"`              // in the caller's PID namespace; -1: the caller
	Device string `json:"device,omitempty"` // PCI address; empty: all GPUs
	Bytes  int64  `json:"bytes,omitempty"`  // of each GPU; 0: all that is movable
}

// MemoryReply is the memory of a process when an order was accepted. The order is carried out afterwards.
type MemoryReply struct {
	PID     int      `json:"pid"`
	Memory  []Memory `json:"memory"`
	Message string   `json:"message"` // one line for the user
}

// The states of Process.
const (
	StateRunning   = "running"
	StatePreempted = "preempted"
	StateWaiting   = "waiting"
	StateIdle      = "idle"
	StateHeld      = "held"
	StateAway      = "away"
)

// Latency has the durations of a process's requests. Quantiles and maxima describe recent requests:
// those of the last 30 to 60 seconds. Counts and sums include all requests.
type Latency struct {
	// Source tells what a request is: a busy period of the process, or one that it marked.
	Source string `json:"source"`
	// Requests include those whose duration is unknown: more were marked than the daemon could read.
	Requests uint64    `json:"requests"`
	Total    Histogram `json:"total"` // from arrival to the end
	Wait     Histogram `json:"wait"`  // of that: with work, and kept from running
	Own      Histogram `json:"own"`   // of that: the rest
	// OpenNS is for how long the request in progress lasts, at least; 0: none is known.
	OpenNS int64 `json:"open_ns"`
	// Uncertain says why the quantiles do not describe requests; empty: they do. Viewers show no quantiles
	// then, because busy periods are not requests where a program is never idle.
	Uncertain string `json:"uncertain,omitempty"`
}

// The sources of Latency.
const (
	SourceBusy   = "busy periods"
	SourceMarked = "marked requests"
)

// The values of Latency.Uncertain.
const (
	UncertainFew  = "too few ended recently"
	UncertainBusy = "always busy"
)

// Certain reports that the quantiles of recent requests are known.
func (l *Latency) Certain() bool { return l != nil && l.Total.Recent > 0 && l.Uncertain == "" }

// SLO is the latency target of a process, and how its requests met it. Met and Missed are counts since
// the target was set; attainment and budget are about recent requests, as in Latency.
type SLO struct {
	TargetUS  int64   `json:"target_us"`
	Objective float64 `json:"objective"` // share of requests that shall meet the target
	Met       uint64  `json:"met"`
	Missed    uint64  `json:"missed"`
	// Attainment is the share of requests that met the target; 1 without requests.
	Attainment float64 `json:"attainment"`
	// BudgetLeft is the unused share of the misses that the objective allows: 1 is untouched, negative
	// overspent.
	BudgetLeft float64 `json:"budget_left"`
}

// Misses reports whether fewer requests than the objective demands met the target.
func (s *SLO) Misses() bool { return s != nil && s.Met+s.Missed > 0 && s.Attainment < s.Objective }

// For returns the process as a caller may see it.
func (p Process) For(c Caller) Process {
	if !c.Owns(p.Owner) {
		p.Command, p.Name, p.Rule = "", "", ""
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
	Yields      uint64 `json:"yields"`            // times that the hardware left it for the longer timeslices of others
	YieldedNS   int64  `json:"yielded_ns"`
	RanNS       int64  `json:"ran_ns"` // time with work while neither suspended nor yielding
	Submitted   uint64 `json:"submitted"`
	Batched     bool   `json:"batched"` // its kernels gather on the device before they run
	Bursts      uint64 `json:"bursts"`  // batches released to the device
	Transitions uint64 `json:"transitions"`
	// Merged counts further queues of the program, beyond the user's limit, which are scheduled as one
	// with this queue and have no entry. Submitted includes theirs.
	Merged int `json:"merged,omitempty"`
	// Hints combines the hints of the process and of this queue.
	Hints Hints `json:"hints"`
	// PreemptedBy counts suspensions and yields by cause.
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
	// Submission is how the program submits its requests.
	Submission Submission `json:"submission"`
}

// Submission is how a program submits its requests, as far as that is learnt.
type Submission struct {
	// Class: unknown, GPU-bound (it submits and then waits), or launch-bound (it submits nearly until a
	// request ends). Lower programs are suspended shortly before a launch-bound program waits.
	Class    string  `json:"class"`
	Requests int     `json:"requests"`  // learnt from
	LeadUS   float64 `json:"lead_us"`   // how long before a wait lower programs are suspended
	HitRatio float64 `json:"hit_ratio"` // part of the predicted waits that came as predicted
	// Requests of a launch-bound program by how their suspension was: in force when the program waited,
	// late, given up before, or not predicted.
	InTime  uint64 `json:"in_time"`
	Late    uint64 `json:"late"`
	Early   uint64 `json:"early"`
	Unaided uint64 `json:"unaided"`
	// Launches, SubmitUS and WaitUS describe the last request of eight kernels or more: its kernels, the time until
	// a thread waited for them, and the time until they were done.
	Launches uint64  `json:"launches"`
	SubmitUS float64 `json:"submit_us"`
	WaitUS   float64 `json:"wait_us"`
	// Strategy is how lower programs share the GPU with it at present: suspended, tiny slices, batches, just in time,
	// native, or empty without any. Reason says why.
	Strategy string `json:"strategy"`
	Reason   string `json:"reason"`
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
	// Reason: "process", "hand" (Control.Suspend), "group" (Control.Holds) or "other".
	Reason string `json:"reason"`
}
