// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"xsched/internal/control"
)

// maxMetricQueues bounds what one scrape says about single queues; the busiest
// are told, and xs_queues_not_shown says how many are not.
const maxMetricQueues = 1000

// scrapeTime bounds how long a scrape waits for the engine; what the engine
// must be asked for is left out when it does not answer.
const scrapeTime = 3 * time.Second

// metricsHandler serves /metrics from its own registry. Nothing is counted
// here: each scrape asks the control.
func metricsHandler(c control.Control) http.Handler {
	return promhttp.HandlerFor(metricsRegistry(c), promhttp.HandlerOpts{MaxRequestsInFlight: 4, ErrorHandling: promhttp.HTTPErrorOnError})
}

func metricsRegistry(c control.Control) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(&collector{control: c})
	return r
}

// collector makes const metrics of what the daemon says.
type collector struct{ control control.Control }

var _ prometheus.Collector = (*collector)(nil)

// queueLabels name one queue.
var queueLabels = []string{"pid", "queue", "device"}

// metric is a description and how its value is told.
type metric struct {
	*prometheus.Desc
	kind prometheus.ValueType
}

func counter(name, help string, labels ...string) metric {
	return metric{prometheus.NewDesc("xs_"+name, help, labels, nil), prometheus.CounterValue}
}

func gauge(name, help string, labels ...string) metric {
	return metric{prometheus.NewDesc("xs_"+name, help, labels, nil), prometheus.GaugeValue}
}

func (m metric) is(value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(m.Desc, m.kind, value, labels...)
}

// What there is. Help texts say what is really measured.
var (
	metricUp          = gauge("up", "1 while the engine's heartbeat is younger than a second.")
	metricInfo        = gauge("build_info", "Always 1; what runs.", "version", "virtual")
	metricPolicy      = gauge("policy_info", "1 for the policy and the mode in force.", "policy", "mode")
	metricUptime      = gauge("uptime_seconds", "Since the daemon started.")
	metricBeatAge     = gauge("heartbeat_age_seconds", "Age of the engine's last heartbeat.")
	metricBeatLate    = counter("heartbeat_late_seconds", "How late heartbeats were.")
	metricSessions    = gauge("sessions", "Programs that have joined.")
	metricSessionsAll = counter("sessions_total", "Programs that joined since the start.")
	metricQueues      = gauge("queues", "Contexts of programs on GPUs.")
	metricNotShown    = gauge("queues_not_shown", "Queues left out of this scrape to bound its size.")
	metricRefused     = counter("sessions_refused_total", "Programs that were refused, by reason.", "reason")
	metricFDs         = gauge("open_fds", "File descriptors the daemon holds.")

	metricWakes     = counter("engine_wakes_total", "Times the engine loop woke up.")
	metricDoorbells = counter("doorbells_total", "Rings of programs that became busy or idle; one that has its GPU to itself does not ring.")
	metricDecisions = counter("decisions_total", "Times the engine decided.")
	metricDecision  = counter("decision_seconds", "One decision.")
	metricReaction  = counter("busy_to_decision_seconds", "From a program's first launch when idle to the end of the decision about it.")

	metricStops    = counter("engine_preemptions_total", "Queues with work that were stopped, by level.", "level")
	metricYields   = counter("yields_total", "Queues with work that the hardware left for one with a longer slice.")
	metricGrants   = counter("starvation_grants_total", "Turns given by the starvation bound.")
	metricLatency  = counter("preemption_latency_seconds", "From the decision to stop a program to the end of the operation that stopped it, by level; level 1 closes a gate and has no operation.", "level")
	metricWait     = counter("queue_wait_seconds", "How long queues that had to stop with work waited until they might run again.")
	metricOps      = counter("device_operations_total", "Operations done, by kind.", "operation")
	metricOpTime   = counter("device_operation_seconds", "One operation on a hardware queue, by kind.", "operation")
	metricOpErrors = counter("device_errors_total", "Operations on hardware queues that failed.")
	metricUndone   = counter("suspensions_undone_total", "Suspensions undone because their lease ran out.")
	metricStuck    = gauge("device_operations_stuck", "Operations under way for longer than 100 ms.")
	metricGuardian = gauge("guardian_attached", "Programs without a shim that the guardian watches over.")
	metricRestarts = counter("guardian_restarts_total", "Times the guardian had to be started again.")

	metricGPUBusy = counter("gpu_busy_seconds_total", "Time in which programs had work on a GPU and were allowed to run.", "device")
	metricGPUUsed = gauge("gpu_queues", "Queues on a GPU.", "device")

	metricIntercepted = counter("intercepted_calls_total", "Driver calls that went through the shim.", "pid")
	metricLaunches    = counter("launches_total", "Kernel launches.", "pid")
	metricGateWaits   = counter("gate_waits_total", "Launches that were held at the gate.", "pid")
	metricGateWait    = counter("gate_wait_seconds_total", "Time launches were held at the gate.", "pid")
	metricRecoveries  = counter("recoveries_total", "Times a program freed itself because the daemon was silent.", "pid")
	metricPriority    = gauge("priority", "Priority of a program.", "pid")

	metricPreempted = counter("preemptions_total", "Times a queue with work had to stop, by cause: the pid it stopped for, hand, or other.", append(slices.Clone(queueLabels), "cause")...)
	metricSuspended = counter("suspended_seconds_total", "Time a queue had work and was stopped.", queueLabels...)
	metricRan       = counter("queue_run_seconds_total", "Time a queue had work and was allowed to run.", queueLabels...)
	metricBusy      = gauge("queue_busy", "1 while a queue has work.", queueLabels...)
)

// Describe sends nothing: which series there are depends on the programs.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect asks the control.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
	defer cancel()
	nobody := control.Caller{UID: -1}
	stats, err := c.control.Stats(ctx, nobody)
	if err != nil {
		out <- metricUp.is(0)
		return
	}
	daemonMetrics(out, stats)
	if version, err := c.control.Version(ctx, nobody); err == nil {
		out <- metricInfo.is(1, version.Version, strconv.FormatBool(version.Virtual))
	}
	if devices, err := c.control.Devices(ctx, nobody); err == nil {
		for _, d := range devices.Devices {
			out <- metricGPUBusy.is(seconds(d.BusyNS), d.ID)
			out <- metricGPUUsed.is(float64(d.Queues), d.ID)
		}
	}
	if list, err := c.control.List(ctx, nobody); err == nil {
		out <- metricPolicy.is(1, list.Policy, list.Mode)
		processMetrics(out, list.Processes)
	}
}

func seconds(ns int64) float64 { return float64(ns) / 1e9 }

func daemonMetrics(out chan<- prometheus.Metric, s control.Stats) {
	up := 0.0
	if s.HeartbeatAgeNS <= freshHeartbeat.Nanoseconds() {
		up = 1
	}
	stuck := 0
	for _, t := range s.Targets {
		if t.StuckSinceNS != 0 {
			stuck++
		}
	}
	out <- metricUp.is(up)
	out <- metricUptime.is(seconds(s.UptimeNS))
	out <- metricBeatAge.is(seconds(s.HeartbeatAgeNS))
	out <- metricSessions.is(float64(s.Sessions))
	out <- metricSessionsAll.is(float64(s.SessionsTotal))
	out <- metricQueues.is(float64(s.Queues))
	for reason, n := range s.Refused {
		out <- metricRefused.is(float64(n), reason)
	}
	out <- metricFDs.is(float64(s.OpenFDs))
	out <- metricWakes.is(float64(s.Wakes))
	out <- metricDoorbells.is(float64(s.Doorbells))
	out <- metricDecisions.is(float64(s.Decisions))
	out <- metricYields.is(float64(s.Yields))
	out <- metricGrants.is(float64(s.Grants))
	for level := 1; level < len(s.PreemptionsByLevel); level++ {
		out <- metricStops.is(float64(s.PreemptionsByLevel[level]), strconv.Itoa(level))
	}
	for level := 2; level < len(s.PreemptTime); level++ {
		out <- metricLatency.histogram(s.PreemptTime[level], strconv.Itoa(level))
	}
	out <- metricBeatLate.histogram(s.HeartbeatLate)
	out <- metricDecision.histogram(s.Decision)
	out <- metricReaction.histogram(s.BusyToDecision)
	out <- metricWait.histogram(s.QueueWait)
	for kind, n := range map[string]uint64{"suspend": s.Suspends, "resume": s.Resumes, "timeslice": s.TimesliceSets, "gate": s.GateHolds} {
		out <- metricOps.is(float64(n), kind)
	}
	out <- metricOpTime.histogram(s.SuspendTime, "suspend")
	out <- metricOpTime.histogram(s.ResumeTime, "resume")
	out <- metricOpErrors.is(float64(s.DeviceErrors))
	out <- metricUndone.is(float64(s.Undone))
	out <- metricStuck.is(float64(stuck))
	out <- metricGuardian.is(float64(s.Guardian.Attached))
	out <- metricRestarts.is(float64(s.Guardian.Restarts))
}

func (m metric) histogram(h control.Histogram, labels ...string) prometheus.Metric {
	buckets := map[float64]uint64{}
	for i, bound := range control.HistogramBoundsUS() {
		n := uint64(0)
		if i < len(h.Cumulative) {
			n = h.Cumulative[i]
		}
		buckets[bound/1e6] = n
	}
	return prometheus.MustNewConstHistogram(m.Desc, h.Count, h.SumUS/1e6, buckets, labels...)
}

// processMetrics tells about single programs and queues, the busiest first when
// there are more than a scrape should hold.
func processMetrics(out chan<- prometheus.Metric, all []control.Process) {
	all = mergePIDs(all)
	total := 0
	for _, p := range all {
		total += len(p.Queues)
	}
	if len(all) > maxMetricQueues || total > maxMetricQueues {
		all = slices.Clone(all)
		slices.SortStableFunc(all, func(a, b control.Process) int { return int(ran(b) - ran(a)) })
	}
	shown := 0
	for i, p := range all {
		if i >= maxMetricQueues || shown+len(p.Queues) > maxMetricQueues {
			break
		}
		shown += len(p.Queues)
		pid := strconv.Itoa(p.PID)
		out <- metricIntercepted.is(float64(p.Counters.HookedCalls), pid)
		out <- metricLaunches.is(float64(p.Counters.Launches), pid)
		out <- metricGateWaits.is(float64(p.Counters.GateWaits), pid)
		out <- metricGateWait.is(float64(p.Counters.GateWaitNS)/1e9, pid)
		out <- metricRecoveries.is(float64(p.Counters.Recoveries), pid)
		out <- metricPriority.is(float64(p.Priority), pid)
		for _, q := range p.Queues {
			queueMetrics(out, pid, q)
		}
	}
	out <- metricNotShown.is(float64(total - shown))
}

func queueMetrics(out chan<- prometheus.Metric, pid string, q control.Queue) {
	labels := []string{pid, strconv.FormatUint(uint64(q.Index), 10), q.Device}
	busy := 0.0
	if q.Busy {
		busy = 1
	}
	out <- metricBusy.is(busy, labels...)
	out <- metricRan.is(seconds(q.RanNS), labels...)
	out <- metricSuspended.is(seconds(q.SuspendedNS), labels...)
	for _, c := range q.PreemptedBy {
		cause := c.Reason
		if c.PID != 0 {
			cause = strconv.Itoa(c.PID)
		}
		out <- metricPreempted.is(float64(c.Count), append(slices.Clone(labels), cause)...)
	}
}

// mergePIDs keeps one session a pid, the newest: two may overlap when a program
// joins again, and a series may be told only once.
func mergePIDs(all []control.Process) []control.Process {
	newest := map[int]int{}
	twice := false
	for i, p := range all {
		_, known := newest[p.PID]
		twice = twice || known
		newest[p.PID] = i
	}
	if !twice {
		return all
	}
	var out []control.Process
	for i, p := range all {
		if newest[p.PID] == i {
			out = append(out, p)
		}
	}
	return out
}

func ran(p control.Process) int64 {
	var ns int64
	for _, q := range p.Queues {
		ns += q.RanNS
	}
	return ns
}
