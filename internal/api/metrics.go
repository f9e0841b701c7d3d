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

// maxMetricQueues bounds the queues in one scrape. The busiest are reported;
// xs_queues_not_shown counts the rest.
const maxMetricQueues = 1000

// scrapeTime bounds how long a scrape waits for the engine. Without an answer, a scrape has only
// the metrics that need none.
const scrapeTime = 3 * time.Second

// metricsHandler serves /metrics from a registry of its own. Each scrape queries the control.
func metricsHandler(c control.Control) http.Handler {
	return promhttp.HandlerFor(metricsRegistry(c, limits.refused), promhttp.HandlerOpts{MaxRequestsInFlight: 4, ErrorHandling: promhttp.HTTPErrorOnError})
}

func metricsRegistry(c control.Control, refused func() (connections, reads uint64)) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(&collector{c, refused})
	return r
}

// collector converts the daemon's replies into constant metrics.
type collector struct {
	control control.Control
	refused func() (connections, reads uint64) // nil: not shown
}

var _ prometheus.Collector = (*collector)(nil)

// queueLabels name one queue.
var queueLabels = []string{"pid", "queue", "device"}

// metric is a description and a value type.
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

// daemonMetrics are the figures of the daemon itself.
var daemonMetrics = []struct {
	metric
	value func(*control.Stats) float64
}{
	{gauge("up", "1 while the engine's last heartbeat is younger than a second."), func(s *control.Stats) float64 {
		return number01(s.HeartbeatAgeNS <= freshHeartbeat.Nanoseconds())
	}},
	{gauge("uptime_seconds", "Time since the daemon started."), func(s *control.Stats) float64 { return seconds(s.UptimeNS) }},
	{gauge("heartbeat_age_seconds", "Age of the engine's last heartbeat."), func(s *control.Stats) float64 { return seconds(s.HeartbeatAgeNS) }},
	{gauge("sessions", "Connected programs."), func(s *control.Stats) float64 { return float64(s.Sessions) }},
	{counter("sessions_total", "Programs that connected since the daemon started."), func(s *control.Stats) float64 { return float64(s.SessionsTotal) }},
	{gauge("queues", "GPU contexts of connected programs."), func(s *control.Stats) float64 { return float64(s.Queues) }},
	{gauge("open_fds", "Open file descriptors of the daemon."), func(s *control.Stats) float64 { return float64(s.OpenFDs) }},
	{gauge("goroutines", "Goroutines of the daemon; a number that keeps growing is a leak."), func(s *control.Stats) float64 { return float64(s.Goroutines) }},
	{gauge("queues_folded", "Queues beyond their user's limit, scheduled together with another one of their program."), func(s *control.Stats) float64 { return float64(s.FoldedQueues) }},
	{counter("doorbells_throttled_total", "Notifications deferred because their user had used its share of the engine."), func(s *control.Stats) float64 { return float64(s.Throttled) }},
	{counter("engine_requests_refused_total", "Requests refused because their user had too many under way."), func(s *control.Stats) float64 { return float64(s.RequestsRefused) }},
	{counter("snapshots_total", "Copies of the engine's state for readers."), func(s *control.Stats) float64 { return float64(s.Snapshots) }},
	{counter("log_lines_suppressed_total", "Log lines beyond the rate of their message."), func(s *control.Stats) float64 { return float64(s.LogSuppressed) }},
	{counter("log_lines_dropped_total", "Log lines that the log's reader was too slow for."), func(s *control.Stats) float64 { return float64(s.LogDropped) }},
	{counter("engine_wakes_total", "Wake-ups of the engine loop."), func(s *control.Stats) float64 { return float64(s.Wakes) }},
	{counter("doorbells_total", "Busy and idle notifications; a program alone on its GPU sends none."), func(s *control.Stats) float64 { return float64(s.Doorbells) }},
	{counter("decisions_total", "Scheduling decisions."), func(s *control.Stats) float64 { return float64(s.Decisions) }},
	{counter("yields_total", "Busy queues that the hardware preempted in favour of a longer timeslice."), func(s *control.Stats) float64 { return float64(s.Yields) }},
	{counter("starvation_grants_total", "Turns granted by the starvation bound."), func(s *control.Stats) float64 { return float64(s.Grants) }},
	{counter("device_errors_total", "Failed operations on hardware queues."), func(s *control.Stats) float64 { return float64(s.DeviceErrors) }},
	{counter("device_operations_shared_total", "Operations that the call of another program carried out."), func(s *control.Stats) float64 { return float64(s.Shared) }},
	{counter("device_operations_split_total", "Operations repeated alone because a shared call failed."), func(s *control.Stats) float64 { return float64(s.Split) }},
	{counter("suspensions_undone_total", "Suspensions undone because their lease expired."), func(s *control.Stats) float64 { return float64(s.Undone) }},
	{counter("tenants_turned_off_total", "Times that failing resumes turned scheduling off for a program."), func(s *control.Stats) float64 { return float64(s.TurnedOff) }},
	{gauge("tenants_off", "Programs on a GPU for which failing resumes turned scheduling off."), func(s *control.Stats) float64 {
		off := 0.0
		for _, t := range s.Targets {
			off += number01(t.Off != "")
		}
		return off
	}},
	{gauge("device_operations_stuck", "Operations that have been running for longer than 100 ms."), func(s *control.Stats) float64 {
		stuck := 0.0
		for _, t := range s.Targets {
			stuck += number01(t.StuckSinceNS != 0)
		}
		return stuck
	}},
	{gauge("guardian_attached", "Attached programs that the guardian protects."), func(s *control.Stats) float64 { return float64(s.Guardian.Attached) }},
	{counter("guardian_restarts_total", "Restarts of the guardian."), func(s *control.Stats) float64 { return float64(s.Guardian.Restarts) }},
}

// daemonHistograms are durations without a label.
var daemonHistograms = []struct {
	metric
	value func(*control.Stats) control.Histogram
}{
	{counter("heartbeat_late_seconds", "Delay of heartbeats."), func(s *control.Stats) control.Histogram { return s.HeartbeatLate }},
	{counter("decision_seconds", "Duration of one decision."), func(s *control.Stats) control.Histogram { return s.Decision }},
	{counter("busy_to_decision_seconds", "Time from an idle queue's first launch to the end of the decision about it."), func(s *control.Stats) control.Histogram { return s.BusyToDecision }},
	{counter("queue_wait_seconds", "Time that preempted queues with work waited until they could run again."), func(s *control.Stats) control.Histogram { return s.QueueWait }},
}

// Metrics with labels.
var (
	metricInfo     = gauge("build_info", "Always 1; the running version.", "version", "virtual")
	metricPolicy   = gauge("policy_info", "1 for the policy and the mode of GPUs without their own.", "policy", "mode")
	metricUnserved = counter("control_refused_total", "Connections to the control interface and reads that were refused by the limits of users.", "what")
	metricNotShown = gauge("queues_not_shown", "Queues omitted to bound the size of a scrape.")
	metricRefused  = counter("sessions_refused_total", "Refused programs, by reason.", "reason")
	metricStops    = counter("engine_preemptions_total", "Preempted queues that had work, by level.", "level")
	metricLatency  = counter("preemption_latency_seconds", "Time from the decision to preempt a program to the end of that operation, by level; level 1 has no operation.", "level")
	metricOps      = counter("device_operations_total", "Completed operations, by kind.", "operation")
	metricOpTime   = counter("device_operation_seconds", "Duration of one operation on a hardware queue, by kind.", "operation")
	metricGPUBusy  = counter("gpu_busy_seconds_total", "Time that programs had work on a GPU and were allowed to run.", "device")
	metricGPUUsed  = gauge("gpu_queues", "Queues on a GPU.", "device")
	metricGPURules = gauge("gpu_policy_info", "1 for the policy and the mode in force on a GPU.", "device", "policy", "mode")

	metricIntercepted = counter("intercepted_calls_total", "Driver calls intercepted by the shim.", "pid")
	metricLaunches    = counter("launches_total", "Kernel launches.", "pid")
	metricGateWaits   = counter("gate_waits_total", "Launches delayed at the gate.", "pid")
	metricGateWait    = counter("gate_wait_seconds_total", "Time launches were delayed at the gate.", "pid")
	metricRecoveries  = counter("recoveries_total", "Times a program resumed itself because the daemon's heartbeat stopped.", "pid")
	metricPriority    = gauge("priority", "Priority of a program.", "pid")

	metricPreempted = counter("preemptions_total", "Preemptions of a busy queue, by cause: the preempting PID, hand (xsched suspend), or other.", append(slices.Clone(queueLabels), "cause")...)
	metricGain      = gauge("protection_gain_seconds", "By how much protection shortens a program's P99 request beside lower programs; source: modelled or measured.", "pid", "device", "source")
	metricCost      = gauge("protection_cost_ratio", "Share of recent time that lower programs lost for a program beyond its own GPU time, at most.", "pid", "device")
	metricCostTotal = counter("protection_cost_seconds_total", "Time that lower programs lost for a program beyond its own GPU time, at most.", "pid", "device")
	metricNative    = gauge("protection_native", "1 while a program shares the GPU natively, because protection gains it nothing.", "pid", "device")
	metricSuspended = counter("suspended_seconds_total", "Time a queue had work and was suspended.", queueLabels...)
	metricRan       = counter("queue_run_seconds_total", "Time a queue had work and was allowed to run.", queueLabels...)
	metricBusy      = gauge("queue_busy", "1 while a queue has work.", queueLabels...)
)

// Describe sends nothing, because the series depend on the running programs.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect queries the control.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
	defer cancel()
	stats, err := c.control.Stats(ctx, control.Nobody)
	if err != nil {
		out <- daemonMetrics[0].is(0)
		return
	}
	collectDaemon(out, stats)
	if c.refused != nil {
		connections, reads := c.refused()
		out <- metricUnserved.is(float64(connections), "connection")
		out <- metricUnserved.is(float64(reads), "read")
	}
	if version, err := c.control.Version(ctx, control.Nobody); err == nil {
		out <- metricInfo.is(1, version.Version, strconv.FormatBool(version.Virtual))
	}
	if devices, err := c.control.Devices(ctx, control.Nobody); err == nil {
		for _, d := range devices.Devices {
			out <- metricGPUBusy.is(seconds(d.BusyNS), d.ID)
			out <- metricGPUUsed.is(float64(d.Queues), d.ID)
			out <- metricGPURules.is(1, d.ID, d.Policy, d.Mode)
		}
	}
	if list, err := c.control.List(ctx, control.Nobody); err == nil {
		out <- metricPolicy.is(1, list.Policy, list.Mode)
		processMetrics(out, list.Processes)
	}
}

func seconds(ns int64) float64 { return float64(ns) / 1e9 }

// collectDaemon reports the figures of the daemon itself.
func collectDaemon(out chan<- prometheus.Metric, s control.Stats) {
	for _, m := range daemonMetrics {
		out <- m.is(m.value(&s))
	}
	for _, m := range daemonHistograms {
		out <- m.histogram(m.value(&s))
	}
	for reason, n := range s.Refused {
		out <- metricRefused.is(float64(n), reason)
	}
	for level := 1; level < len(s.PreemptionsByLevel); level++ {
		out <- metricStops.is(float64(s.PreemptionsByLevel[level]), strconv.Itoa(level))
	}
	for level := 2; level < len(s.PreemptTime); level++ {
		out <- metricLatency.histogram(s.PreemptTime[level], strconv.Itoa(level))
	}
	for kind, n := range map[string]uint64{"suspend": s.Suspends, "resume": s.Resumes, "timeslice": s.TimesliceSets, "gate": s.GateHolds} {
		out <- metricOps.is(float64(n), kind)
	}
	out <- metricOpTime.histogram(s.SuspendTime, "suspend")
	out <- metricOpTime.histogram(s.ResumeTime, "resume")
}

func number01(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
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

// processMetrics reports programs and queues, the busiest first if there are too many.
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
		for _, g := range p.Protection {
			out <- metricGain.is(g.GainP99US/1e6, pid, g.Device, g.NativeSource)
			out <- metricCost.is(g.CostRatio, pid, g.Device)
			out <- metricCostTotal.is(seconds(g.CostNS), pid, g.Device)
			out <- metricNative.is(number01(g.State == control.ProtectionNative), pid, g.Device)
		}
		for _, q := range p.Queues {
			queueMetrics(out, pid, q)
		}
	}
	out <- metricNotShown.is(float64(total - shown))
}

func queueMetrics(out chan<- prometheus.Metric, pid string, q control.Queue) {
	labels := []string{pid, strconv.FormatUint(uint64(q.Index), 10), q.Device}
	out <- metricBusy.is(number01(q.Busy), labels...)
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

// mergePIDs keeps the newest session of each PID. Sessions overlap when a program reconnects, and
// Prometheus rejects duplicate series.
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
