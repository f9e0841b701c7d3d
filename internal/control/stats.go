// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"time"
)

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
	// QueuesRefused are beyond all limits of their user and not scheduled.
	QueuesRefused int `json:"queues_refused"`
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
	// Parts of the daemon, and whether they work.
	Parts []Part `json:"parts"`
	// HostMemoryBytes may be used for moves of programs' memory; HostMemoryGranted of it is given to programs.
	HostMemoryBytes   int64 `json:"host_memory_bytes"`
	HostMemoryGranted int64 `json:"host_memory_granted"`
	// Config is the configuration in force.
	Config ConfigState `json:"config"`
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

	// Alerts is absent if the daemon sends none.
	Alerts *AlertStats `json:"alerts,omitempty"`

	Targets  []TargetStats `json:"targets"`
	Guardian GuardianStats `json:"guardian"`
}

// AlertStats counts the alerts that all receivers got, and those that one of them did not get.
type AlertStats struct {
	Sent uint64 `json:"sent"`
	Lost uint64 `json:"lost"`
}

// Histogram summarises durations in microseconds.
type Histogram struct {
	Count uint64  `json:"count"`
	P50US float64 `json:"p50_us"`
	P90US float64 `json:"p90_us"`
	P99US float64 `json:"p99_us"`
	MaxUS float64 `json:"max_us"`
	SumUS float64 `json:"sum_us"`
	// Recent durations have these quantiles and this maximum; absent where all durations have.
	Recent uint64 `json:"recent,omitempty"`
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
	Suspended    bool   `json:"suspended,omitempty"` // a suspension begins, lasts or ends, or the program was told to restore itself
	Off          string `json:"off,omitempty"`       // why scheduling is off for the process; empty: it is on
}

// GuardianStats describes the guardian, which restores attached processes if the daemon dies.
type GuardianStats struct {
	PID      int `json:"pid"` // 0: not started, because nothing is attached
	Attached int `json:"attached"`
	Restarts int `json:"restarts"`
}

// Part is a part of the daemon. It counts as dead when its last sign of life is older than its limit.
type Part struct {
	Name    string `json:"name"`
	AgeNS   int64  `json:"age_ns"` // of its last sign of life; 0: it waits for work
	LimitNS int64  `json:"limit_ns"`
	Vital   bool   `json:"vital"` // a restart of the daemon helps
	Late    bool   `json:"late"`  // dead
	// Remedy of a part that is dead.
	Remedy string `json:"remedy,omitempty"`
}

// Dead returns a sentence about the first vital part that is dead; empty: all work.
func (s *Stats) Dead() string {
	for i := range s.Parts {
		if p := &s.Parts[i]; p.Vital && p.Late {
			return p.String()
		}
	}
	return ""
}

// Impaired describes the parts that are dead and that no restart of the daemon helps.
func (s *Stats) Impaired() (lines []string) {
	for i := range s.Parts {
		if p := &s.Parts[i]; !p.Vital && p.Late {
			lines = append(lines, p.String())
		}
	}
	return lines
}

// String describes a part that is late.
func (p *Part) String() string {
	return fmt.Sprintf("%s: the last sign of life was %v ago, the limit is %v", p.Name,
		time.Duration(p.AgeNS).Round(time.Millisecond), time.Duration(p.LimitNS))
}
