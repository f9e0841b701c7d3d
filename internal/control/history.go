// SPDX-License-Identifier: Apache-2.0

package control

// Limits of a HistoryRequest and a JournalRequest.
const (
	HistorySeconds = 3600 // the longest history
	SpanSeconds    = 60   // spans are kept for the last minute
	JournalMax     = 2048 // entries of one reply
)

// HistoryRequest selects a part of the history.
type HistoryRequest struct {
	// Seconds is the length of the history, up to HistorySeconds; 0: SpanSeconds.
	Seconds int `json:"seconds,omitempty"`
	// Device is the PCI address of one GPU; empty: all.
	Device string `json:"device,omitempty"`
	// SinceNS, the ToNS of an earlier reply, limits Spans to those that ended later; 0: all.
	SinceNS int64 `json:"since_ns,omitempty"`
}

// History shows who used each GPU. Times are nanoseconds of the Unix clock.
type History struct {
	FromNS  int64           `json:"from_ns"`
	ToNS    int64           `json:"to_ns"`
	StepNS  int64           `json:"step_ns"` // of Series: point i covers FromNS + i*StepNS and the step after it
	Devices []DeviceHistory `json:"devices"`
}

// DeviceHistory is the history of one GPU.
type DeviceHistory struct {
	Device string `json:"device"` // PCI address
	// SpansFromNS is the time from which Spans is complete, within the last minute.
	SpansFromNS int64 `json:"spans_from_ns"`
	// GrainNS is the precision of Spans: of shorter ones, only the sum per state is exact. 0: all are.
	GrainNS int64    `json:"grain_ns"`
	Spans   []Span   `json:"spans"` // by FromNS
	Series  []Series `json:"series"`
}

// The states of a Span. Without a span, a program has no work.
const (
	SpanRun       = "run"       // has work and may run
	SpanWait      = "wait"      // has work, and the hardware prefers the longer timeslices of others
	SpanPreempted = "preempted" // has work and is suspended
)

// Span is a time during which a program was in one state on a GPU.
type Span struct {
	PID int `json:"pid"`
	// Name is the program's short name; empty unless the caller is the owner or root.
	Name   string `json:"name"`
	State  string `json:"state"`
	FromNS int64  `json:"from_ns"`
	ToNS   int64  `json:"to_ns"`
}

// Series has one point per step for each program of a GPU.
type Series struct {
	PID  int    `json:"pid"`
	Name string `json:"name"` // as in Span
	// Pod is the pod of the program and of its spans, as "namespace/pod/container"; empty outside Kubernetes.
	Pod string `json:"pod,omitempty"`
	// Share is the part of the step in which the program had work and was allowed to run, 0 to 1.
	Share []float32 `json:"share"`
	// Waited is the part of the step in which the program had work and did not run, because others did or it
	// was suspended.
	Waited []float32 `json:"waited"`
	// P99US is the latency of busy periods that ended in this step; 0: none did.
	P99US       []float32 `json:"p99_us"`
	Preemptions []uint32  `json:"preemptions"`
}

// JournalRequest selects entries of the journal.
type JournalRequest struct {
	// Since is the Next of the last reply; 0: from the oldest entry on.
	Since uint64 `json:"since,omitempty"`
	// Max is the number of entries, the newest ones; 0: 200.
	Max int `json:"max,omitempty"`
	// PerKind applies Max to each kind: many preemptions displace no other entry.
	PerKind bool `json:"per_kind,omitempty"`
}

// Journal has the events after JournalRequest.Since, oldest first.
type Journal struct {
	Entries []JournalEntry `json:"entries"`
	Next    uint64         `json:"next"` // JournalRequest.Since for what follows
	// Missed entries are between Since and the first of Entries: they were overwritten, or exceed Max.
	Missed uint64 `json:"missed"`
}

// The kinds of a JournalEntry.
const (
	JournalPreemption = "preemption"
	JournalChange     = "change" // of a hint, a policy, a mode or a program, by a user
	JournalJoined     = "joined"
	JournalLeft       = "left"
	JournalFault      = "fault"
	JournalMove       = "move" // of memory between a GPU and the host
	// JournalSuppressed counts entries of one user beyond its rate.
	JournalSuppressed = "suppressed"
)

// JournalKinds returns all kinds.
func JournalKinds() []string {
	return []string{JournalPreemption, JournalChange, JournalJoined, JournalLeft, JournalFault, JournalMove, JournalSuppressed}
}

// JournalEntry is one event.
type JournalEntry struct {
	Seq    uint64 `json:"seq"`
	TimeNS int64  `json:"time_ns"` // Unix clock
	Kind   string `json:"kind"`
	// PID is the process concerned; 0: none.
	PID int `json:"pid,omitempty"`
	// ByPID is the preempting process, or the one that requested a change; 0: unknown or none.
	ByPID int `json:"by_pid,omitempty"`
	// DurationNS is the time that PID was preempted, the sum over Count.
	DurationNS int64  `json:"duration_ns,omitempty"`
	Count      uint64 `json:"count,omitempty"` // events that the entry stands for
	Bytes      int64  `json:"bytes,omitempty"` // that a move was about
	Device     string `json:"device,omitempty"`
	// UID, User and Container say who made a change, or who owns the process PID.
	UID       int    `json:"uid"`
	User      string `json:"user,omitempty"` // login name, or the digits of UID
	Container string `json:"container,omitempty"`
	// What names the changed setting: "hint", "policy", "suspend" and so on; Before and After are its values.
	What   string `json:"what,omitempty"`
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
	// Detail is the cause of a fault or of a departure, without names.
	Detail string `json:"detail,omitempty"`
	// Pod and ByPod are those of PID and ByPID, as "namespace/pod/container"; empty outside Kubernetes.
	Pod   string `json:"pod,omitempty"`
	ByPod string `json:"by_pod,omitempty"`
	// Text is the entry as one sentence. It names programs of other users by PID.
	Text string `json:"text"`
}
