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

// scrapeTime bounds how long a scrape waits for the engine. Without an answer, a scrape has only
// the metrics that need none.
const scrapeTime = 3 * time.Second

// maxScrapes bounds the scrapes under way, because each holds its text in memory.
const maxScrapes = 4

// metricsHandler serves /metrics in the text format or, if the scraper accepts it, as OpenMetrics.
// Each scrape queries the control on behalf of its caller, so names are shown only to callers that
// may see the command.
func metricsHandler(c control.Control) func(http.ResponseWriter, *http.Request, control.Caller) {
	places := make(chan struct{}, maxScrapes)
	return func(w http.ResponseWriter, r *http.Request, caller control.Caller) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		default:
			writeError(w, &control.Error{Kind: control.ErrUnavailable, Cause: "too many scrapes are under way", Remedy: "scrape less often"})
			return
		}
		caller.PID, caller.PIDNamespace = 0, 0 // series have the daemon's PIDs, whoever scrapes
		promhttp.HandlerFor(metricsRegistry(c, caller, limits.refused), promhttp.HandlerOpts{
			ErrorHandling: promhttp.HTTPErrorOnError, EnableOpenMetrics: true,
		}).ServeHTTP(w, r)
	}
}

func metricsRegistry(c control.Control, caller control.Caller, refused func() (connections, reads uint64)) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(&collector{c, caller, refused})
	return r
}

// collector converts the daemon's replies to one caller into constant metrics.
type collector struct {
	control control.Control
	caller  control.Caller
	refused func() (connections, reads uint64) // nil: not shown
}

var _ prometheus.Collector = (*collector)(nil)

// metric is a description and a value type.
type metric struct {
	*prometheus.Desc
	kind prometheus.ValueType
	// inPod has podLabels, too, and is for more labels than plain; nil: not about a program.
	inPod *prometheus.Desc
	plain int
}

func describe(kind prometheus.ValueType, name, help string, labels []string) metric {
	m := metric{Desc: prometheus.NewDesc("xs_"+name, help, labels, nil), kind: kind, plain: len(labels)}
	if n := len(tenantLabels); len(labels) >= n && slices.Equal(labels[:n], tenantLabels) && !slices.Contains(labels, "pod") {
		m.inPod = prometheus.NewDesc("xs_"+name, help, slices.Concat(labels[:n], podLabels, labels[n:]), nil)
	}
	return m
}

func counter(name, help string, labels ...string) metric {
	return describe(prometheus.CounterValue, name, help, labels)
}

func gauge(name, help string, labels ...string) metric {
	return describe(prometheus.GaugeValue, name, help, labels)
}

// by returns the description for a number of labels.
func (m metric) by(labels []string) *prometheus.Desc {
	if m.inPod != nil && len(labels) > m.plain {
		return m.inPod
	}
	return m.Desc
}

func (m metric) is(value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(m.by(labels), m.kind, value, labels...)
}

// daemonMetrics are the figures of the daemon itself.
var daemonMetrics = []struct {
	metric
	value func(*control.Stats) float64
}{
	{gauge("up", "1 while every vital part of the daemon works."), func(s *control.Stats) float64 {
		return number01(s.Dead() == "")
	}},
	{gauge("uptime_seconds", "Time since the daemon started."), func(s *control.Stats) float64 { return seconds(s.UptimeNS) }},
	{gauge("heartbeat_age_seconds", "Age of the engine's last heartbeat."), func(s *control.Stats) float64 { return seconds(s.HeartbeatAgeNS) }},
	{gauge("sessions", "Connected programs."), func(s *control.Stats) float64 { return float64(s.Sessions) }},
	{counter("sessions_total", "Programs that connected since the daemon started."), func(s *control.Stats) float64 { return float64(s.SessionsTotal) }},
	{gauge("queues", "GPU contexts of connected programs."), func(s *control.Stats) float64 { return float64(s.Queues) }},
	{gauge("open_fds", "Open file descriptors of the daemon."), func(s *control.Stats) float64 { return float64(s.OpenFDs) }},
	{gauge("goroutines", "Goroutines of the daemon; a number that keeps growing is a leak."), func(s *control.Stats) float64 { return float64(s.Goroutines) }},
	{gauge("queues_folded", "Queues beyond their user's limit, scheduled together with another one of their program."), func(s *control.Stats) float64 { return float64(s.FoldedQueues) }},
	{gauge("queues_refused", "Queues beyond all limits of their user, not scheduled."), func(s *control.Stats) float64 { return float64(s.QueuesRefused) }},
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
	metricInfo        = gauge("build_info", "Always 1; the running version.", "version", "virtual")
	metricPolicy      = gauge("policy_info", "1 for the policy and the mode of GPUs without their own.", "policy", "mode")
	metricUnserved    = counter("control_refused_total", "Connections to the control interface and reads that were refused by the limits of users.", "what")
	metricRefused     = counter("sessions_refused_total", "Refused programs, by reason.", "reason")
	metricStops       = counter("engine_preemptions_total", "Preempted queues that had work, by level.", "level")
	metricLatency     = counter("preemption_latency_seconds", "Time from the decision to preempt a program to the end of that operation, by level; level 1 has no operation.", "level")
	metricOps         = counter("device_operations_total", "Completed operations, by kind.", "operation")
	metricOpTime      = counter("device_operation_seconds", "Duration of one operation on a hardware queue, by kind.", "operation")
	metricProblems    = gauge("host_problems", "Defects that keep every program of this host from being scheduled, such as a missing driver.")
	metricGPUBusy     = counter("gpu_busy_seconds_total", "Time that programs had work on a GPU and were allowed to run.", "device")
	metricGPUUsed     = gauge("gpu_queues", "Queues on a GPU.", "device")
	metricGPURules    = gauge("gpu_policy_info", "1 for the policy and the mode in force on a GPU.", "device", "policy", "mode")
	metricGPUUtilized = gauge("gpu_utilization_ratio", "Share of the last second in which managed programs used a GPU.", "device")
	metricGPULevel    = gauge("gpu_max_level", "Highest preemption level of a GPU and its driver.", "device")
	metricUnmanaged   = gauge("gpu_unmanaged_programs", "Programs on a GPU that are not scheduled, as far as the driver shows them.", "device")
)

// Describe sends nothing, because the series depend on the running programs.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect queries the control.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
	defer cancel()
	stats, err := c.control.Stats(ctx, c.caller)
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
	if version, err := c.control.Version(ctx, c.caller); err == nil {
		out <- metricInfo.is(1, version.Version, strconv.FormatBool(version.Virtual))
	}
	if devices, err := c.control.Devices(ctx, c.caller); err == nil {
		out <- metricProblems.is(float64(len(devices.Problems)))
		for _, d := range devices.Devices {
			out <- metricGPUBusy.is(seconds(d.BusyNS), d.ID)
			out <- metricGPUUsed.is(float64(d.Queues), d.ID)
			out <- metricGPURules.is(1, d.ID, d.Policy, d.Mode)
			out <- metricGPUUtilized.is(d.Utilization, d.ID)
			out <- metricGPULevel.is(float64(d.MaxLevel), d.ID)
			out <- metricUnmanaged.is(float64(d.Others), d.ID)
			collectSensors(out, d.ID, d.Sensors)
		}
	}
	if list, err := c.control.List(ctx, c.caller); err == nil {
		out <- metricPolicy.is(1, list.Policy, list.Mode)
		tenantMetrics(out, list.Processes)
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
	return m.histogramFrom(0, h, labels...)
}

// histogramFrom omits the buckets below the smallest bound, in seconds.
func (m metric) histogramFrom(smallest float64, h control.Histogram, labels ...string) prometheus.Metric {
	buckets := map[float64]uint64{}
	for i, bound := range control.HistogramBoundsUS() {
		if bound/1e6 < smallest {
			continue
		}
		n := uint64(0)
		if i < len(h.Cumulative) {
			n = h.Cumulative[i]
		}
		buckets[bound/1e6] = n
	}
	return prometheus.MustNewConstHistogram(m.by(labels), h.Count, h.SumUS/1e6, buckets, labels...)
}
