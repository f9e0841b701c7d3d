// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"xsched/internal/clock"
	"xsched/internal/control"
	"xsched/internal/driver"
	"xsched/internal/guardian"
	"xsched/internal/health"
	"xsched/internal/identity"
	"xsched/internal/keeper"
	"xsched/internal/logging"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/policy"
	"xsched/internal/wire"
)

// views answers requests that only read.
type views struct {
	opts     *Options
	log      *slog.Logger
	started  time.Time
	access   *access
	terms    *terms
	drivers  *driver.Set
	metrics  *driver.Metrics
	guardian *guardian.Client
	health   *health.Monitor
	threads  *threads
	machine  *machine
	keeper   *keeper.Keeper
	users    *userNames

	unmanaged *unmanaged
	sensors   *sensors
	alerts    *alerts
}

// Version implements control.Control.
func (v *views) Version(_ context.Context, c control.Caller) (control.Version, error) {
	out := control.Version{
		Version: v.opts.Version, WireVersion: wire.Version, PID: os.Getpid(), UID: v.access.uid, Dir: v.opts.Dir,
		Virtual: v.opts.Virtual, Platform: v.platform(), AllowPriority: v.access.loop.LimitOf(identity.Nobody, nil).Priority > 0, StartedNS: v.started.UnixNano(),
	}
	top := int32(model.PriorityMax)
	if limit := v.access.loop.Cap(c.User, c.Groups); limit.On {
		top = int32(limit.Priority)
	}
	out.MaxPriority = &top
	cfg := v.access.loop.Config()
	out.Policy = cfg.Policy
	out.Mode, out.ModeLevel = modeOf(&cfg)
	return out, nil
}

// List implements control.Control.
func (v *views) List(ctx context.Context, c control.Caller) (control.List, error) {
	cfg := v.access.loop.Config()
	out := control.List{
		Policy: cfg.Policy, DefaultInFlight: cfg.InFlight, DefaultBatch: cfg.Batch, Processes: []control.Process{}, Devices: deviceSettings(&cfg),
	}
	out.Mode, out.ModeLevel = modeOf(&cfg)
	all, err := v.access.sessions(ctx)
	if err != nil {
		return control.List{}, err
	}
	for _, s := range all {
		if p, ok := v.show(c, s); ok {
			out.Processes = append(out.Processes, p)
		}
	}
	control.NameProcesses(out.Processes)
	return out, nil
}

func process(s loop.ClientView) control.Process {
	p := control.Process{
		PID: s.PID, ClientPID: s.ClientPID, UID: s.User.UID, Owner: s.User, Container: s.User.Container, Command: s.Command, Session: uint64(s.ID), Attached: s.Attached,
		AgeMS: s.Age.Milliseconds(), Priority: int32(s.Hint.Priority), PriorityReason: s.PriorityNote, Rule: s.Rule,
		WantLevel: int(s.Hint.Level), InFlight: s.Hint.InFlight, Batch: s.Hint.Batch, Held: s.Held, Utilization: s.Hint.Utilization,
		Hints: control.HintsOf(&s.Hint), Nice: s.Hint.Nice, GroupHeld: s.GroupHeld,
		QueuesCaught: s.Caught, QueuesRefused: s.Refused, Counters: control.Counters(s.Counters), Queues: []control.Queue{},
	}
	if _, group, ok := strings.Cut(s.Group, "/"); ok {
		p.Group, p.GroupPriority = group, int32(s.GroupPriority)
	}
	for _, q := range s.Queues {
		state := "running"
		switch {
		case s.Held || s.GroupHeld:
			state = "held"
		case q.Want.Suspend != 0 && q.Busy:
			state = "suspended"
		case q.Yields:
			state = "yielding"
		case !q.Busy:
			state = "idle"
		}
		p.Queues = append(p.Queues, control.Queue{
			Index: q.Index, Device: q.Device.String(), Busy: q.Busy, CopiesOnly: q.Copies, State: state, Level: int(q.Level), LevelReason: q.Reason, Route: q.Route,
			SliceUS: q.Want.Slice.Microseconds(), OwnSliceUS: q.OwnSliceUS, Preemptions: q.Preemptions,
			Yields: q.Yielded, YieldedNS: q.Yielding.Nanoseconds(),
			SuspendedNS: q.Suspended.Nanoseconds(), RanNS: q.Ran.Nanoseconds(), Submitted: q.Submitted, Batched: q.Want.Gather > 0, Bursts: q.Bursts, Transitions: q.Transitions,
			Hints: control.HintsOf(&q.Hint), Stream: q.Stream, Merged: q.Merged,
			PreemptedBy: causes(q.StoppedBy),
		})
		p.Preemptions += q.Preemptions + q.Yielded
		p.LostNS += (q.Suspended + q.Yielding).Nanoseconds()
	}
	for _, m := range s.Memory {
		p.Memory = append(p.Memory, memory(&m, s.Hint.Memory, clock.Now()))
	}
	for i := range s.Protections {
		p.Protection = append(p.Protection, protection(&s.Protections[i]))
	}
	p.State = stateOf(&p)
	for _, s := range s.Shares {
		p.GPUShare += s.Share
	}
	requests := s.Latency()
	p.Latency, p.SLO = latency(&s, requests), serviceLevel(&s, requests)
	return p
}

func protection(s *policy.ProtectionStatus) control.Protection {
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	p := control.Protection{
		Device: s.Device.String(), State: control.ProtectionActive, Changes: s.Changes, Requests: s.Requests,
		P50US: us(s.P50), P99US: us(s.P99), NativeP50US: us(s.NativeP50), NativeP99US: us(s.NativeP99), NativeSource: string(s.Source),
		CostRatio: s.CostShare, CostNS: s.Cost.Nanoseconds(),
		Submission: control.Submission{
			Class: s.Segments.Class.String(), Requests: s.Segments.Known, LeadUS: us(s.Segments.Lead), HitRatio: s.Segments.Hits,
			InTime: s.Segments.Counts.InTime, Late: s.Segments.Counts.Late, Early: s.Segments.Counts.Early, Unaided: s.Segments.Counts.Unaided,
			Launches: s.Segments.Batch.Launches, SubmitUS: us(s.Segments.Batch.Submit), WaitUS: us(s.Segments.Batch.Wait),
			Strategy: s.Sharing.String(), Reason: s.Segments.Why(s.Sharing),
		},
	}
	switch {
	case s.Native:
		p.State = control.ProtectionNative
	case s.Learning:
		p.State = control.ProtectionLearning
	}
	if !s.Learning {
		p.GainP99US = us(s.Gain())
	}
	return p
}

func causes(by map[int]uint64) []control.Cause {
	var out []control.Cause
	for _, pid := range slices.Sorted(maps.Keys(by)) {
		c := control.Cause{PID: pid, Count: by[pid], Reason: "process"}
		switch pid {
		case loop.ByHand:
			c.PID, c.Reason = 0, "hand"
		case loop.ByGroup:
			c.PID, c.Reason = 0, "group"
		case loop.ByOthers:
			c.Reason = "other"
		}
		out = append(out, c)
	}
	return out
}

// Devices implements control.Control: the GPUs that processes use and those the driver reports. A caller
// in a container gets numbers of its own processes: others would show who else uses a GPU, and when.
func (v *views) Devices(ctx context.Context, c control.Caller) (control.Devices, error) {
	all, err := v.access.sessions(ctx)
	if err != nil {
		return control.Devices{}, err
	}
	gpus := gpuTable{views: v, all: all, byID: map[model.DeviceID]*control.Device{}, listed: v.drivers.Devices()}
	for _, id := range gpus.listed {
		gpus.get(id)
	}
	for i := range all {
		gpus.add(&all[i], visible(c, &all[i]))
	}
	if c.User.Host() {
		times, err := v.access.loop.GPUs(ctx)
		if err != nil {
			return control.Devices{}, unavailable(err)
		}
		for id, t := range times {
			gpus.get(id).BusyNS, gpus.get(id).Utilization = t.Busy.Nanoseconds(), t.Share
		}
		for id, n := range v.unmanaged.count() {
			gpus.get(id).Others = n
		}
	}
	config := v.access.loop.Config()
	out := control.Devices{Devices: []control.Device{}}
	if c.User.Host() {
		out.Problems = v.machine.problems(ctx)
	}
	for _, id := range slices.Sorted(maps.Keys(gpus.byID)) {
		dev, cfg := gpus.byID[id], config.On(id)
		dev.Policy = cfg.Policy
		dev.Mode, dev.ModeLevel = modeOf(&cfg)
		if !c.User.Host() {
			dev.Access = nil // says how the host is set up
		} else {
			dev.Sensors = v.sensors.of(id)
		}
		out.Devices = append(out.Devices, *dev)
	}
	return out, nil
}

// Stats implements control.Control and works even while the engine is blocked.
func (v *views) Stats(_ context.Context, c control.Caller) (control.Stats, error) {
	if err := onHost(c, "statistics"); err != nil {
		return control.Stats{}, err
	}
	h, s := v.access.loop.Stats(), v.access.server.Stats()
	m := v.metrics
	st := control.Stats{
		UptimeNS: time.Since(v.started).Nanoseconds(), Scheduling: h.Scheduling,
		Sessions: s.Sessions, Queues: h.Queues, SessionsTotal: s.SessionsTotal, Refused: s.Refused, OpenFDs: openFDs(), Goroutines: runtime.NumGoroutine(),
		Wakes: h.Wakes, Doorbells: h.Rings, Decisions: h.Decisions,
		BusyToDecision: histogram(h.BusyToDecision), Decision: histogram(h.Decision), HeartbeatLate: histogram(h.Late),
		Suspends: m.Suspends.Load(), Resumes: m.Resumes.Load(), TimesliceSets: m.TimesliceSets.Load(),
		Shared: m.Shared.Load(), Split: m.Split.Load(),
		GateHolds: m.GateHolds.Load(), Undone: m.Undone.Load(), TurnedOff: m.TurnedOff.Load(), DeviceErrors: m.Errors.Load(),
		SuspendTime: histogram(&m.SuspendTime), ResumeTime: histogram(&m.ResumeTime),
		DriverSuspendTime: histogram(&m.DriverSuspendTime), DriverResumeTime: histogram(&m.DriverResumeTime), Targets: []control.TargetStats{},
	}
	for level, n := range h.Engine.Preemptions {
		st.Preemptions += n
		st.PreemptionsByLevel[level] = n
		st.PreemptTime[level] = histogram(&m.PreemptTime[level])
	}
	st.QueueWait = histogram(h.Waits)
	st.QueuesRefused = h.RefusedQueues
	st.FoldedQueues, st.Throttled, st.RequestsRefused, st.Snapshots = h.Merged, h.Throttled, h.Busy, h.Snapshots
	if l, ok := v.log.Handler().(*logging.Log); ok {
		c := l.Counts()
		st.LogSuppressed, st.LogDropped = c.Suppressed, c.Dropped
	}
	st.Yields, st.Grants = h.Engine.Yields, h.Engine.Grants
	now := clock.Now()
	st.HeartbeatAgeNS = now.Sub(h.Heartbeat).Nanoseconds()
	st.Parts = v.Parts()
	st.Config = v.configState()
	st.HostMemoryBytes, st.HostMemoryGranted = int64(h.HostBudget), int64(h.HostGranted)
	for _, t := range s.Targets {
		ts := control.TargetStats{
			PID: t.PID, Device: t.Device.String(), Ops: t.Ops, Errors: t.Errors, Undone: t.Undone, LastError: t.LastError,
			StuckSinceNS: int64(t.StuckSince), Off: t.Off, Suspended: t.Suspended,
		}
		if t.StuckSince != 0 {
			ts.StuckForMS = now.Sub(t.StuckSince).Milliseconds()
		}
		st.Targets = append(st.Targets, ts)
	}
	st.Alerts = v.alerts.stats()
	st.Guardian.PID, st.Guardian.Attached, st.Guardian.Restarts = v.guardian.Stats()
	return st, nil
}

func openFDs() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries) - 1 // without the descriptor of the directory
}

// platform returns the driver that the virtual GPU implements; empty on real GPUs.
func (v *views) platform() string {
	if !v.opts.Virtual {
		return ""
	}
	return v.opts.Platform
}

// show returns a process as a caller may see it, without a PID of another namespace.
func (v *views) show(c control.Caller, s loop.ClientView) (p control.Process, ok bool) {
	if !visible(c, &s) {
		return p, false
	}
	p = process(s).For(c)
	p.PID, p.User = shownPID(c, s.Identity), v.users.of(s.User)
	p.Impaired = v.threads.of(s.ID)
	pod := v.terms.podOf(&s.Identity)
	p.Namespace, p.Pod, p.PodContainer, p.Class = pod.namespace, pod.pod, pod.container, pod.class
	if !c.User.Host() {
		for i := range p.Queues {
			p.Queues[i].PreemptedBy = anonymous(p.Queues[i].PreemptedBy)
		}
	}
	return p, true
}

// Parts implements control.Control.
func (v *views) Parts() []control.Part {
	states, remedy := v.health.States(), remedies()
	out := make([]control.Part, 0, len(states))
	for i := range states {
		s := &states[i]
		out = append(out, control.Part{Name: s.Name, AgeNS: s.Age.Nanoseconds(), LimitNS: s.Limit.Nanoseconds(), Vital: s.Vital, Late: s.Late(), Remedy: remedy[s.Name]})
	}
	return out
}
