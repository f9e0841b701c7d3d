// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"xsched/internal/control"
	"xsched/internal/identity"
)

// Bounds of one scrape, divided among users. Beyond them, tenants with a latency target come first, then those of higher
// priority, then the busiest. Series of ended programs disappear with the next scrape.
const (
	maxMetricTenants    = 500
	maxMetricQueues     = 1000
	maxMetricHistograms = 100 // tenants with histograms, 36 series each
)

// tenantLabels name a program. The name is empty unless the caller may see the command.
var tenantLabels = []string{"pid", "tenant", "user"}

// podLabels follow tenantLabels where a program runs in a known pod.
var podLabels = []string{"namespace", "pod", "container", "class"}

func perTenant(more ...string) []string { return append(slices.Clone(tenantLabels), more...) }

// The metrics of programs.
var (
	metricTenant = gauge("tenant_info", "Always 1; where a program runs. container is its name in the pod, else its cgroup; namespace, pod and class are empty outside Kubernetes.",
		perTenant("uid", "container", "namespace", "pod", "class")...)
	metricTenantsNotShown = gauge("tenants_not_shown", "Programs omitted to bound the size of a scrape.")
	metricNotShown        = gauge("queues_not_shown", "Queues omitted to bound the size of a scrape.")

	metricIntercepted = counter("intercepted_calls_total", "Driver calls intercepted by the shim.", perTenant()...)
	metricUnhooked    = counter("unhooked_calls_total", "Entry points of the driver that a program looked up and the shim does not know.", perTenant()...)
	metricLaunches    = counter("launches_total", "Kernel launches.", perTenant()...)
	metricGateWaits   = counter("gate_waits_total", "Launches delayed at the gate.", perTenant()...)
	metricGateWait    = counter("gate_wait_seconds_total", "Time launches were delayed at the gate.", perTenant()...)
	metricRecoveries  = counter("recoveries_total", "Times a program resumed itself because the daemon's heartbeat stopped.", perTenant()...)
	metricPriority    = gauge("priority", "Priority of a program.", perTenant()...)
	metricWantedLevel = gauge("tenant_wanted_level", "Preemption level that a program asked for; 0: the highest available.", perTenant()...)
	metricState       = gauge("tenant_state", "1 for the state of a program: running, preempted, waiting, idle, held or away.", perTenant("state")...)
	metricShare       = gauge("tenant_gpu_share_ratio", "Share of the last second that a program had of its GPUs, summed over them; programs that run at once divide it.", perTenant()...)
	metricStopped     = counter("tenant_preemptions_total", "Preemptions of a program while it had work: suspensions, and times that the hardware left it for longer timeslices.", perTenant()...)
	metricTenantRan   = counter("tenant_run_seconds_total", "Time a program had work and was allowed to run, summed over its queues.", perTenant()...)
	metricTenantLost  = counter("tenant_lost_seconds_total", "Time a program had work and was suspended or passed over for longer timeslices, summed over its queues.", perTenant()...)

	metricMemory        = gauge("tenant_memory_bytes", "Device memory that a program has allocated, as its library counts it.", perTenant("device")...)
	metricMemoryQuota   = gauge("tenant_memory_quota_bytes", "Device memory that a program may allocate; absent without a quota.", perTenant("device")...)
	metricMemoryRefused = counter("tenant_memory_refused_total", "Allocations that would have exceeded the quota of a program.", perTenant("device")...)

	metricMovable   = gauge("tenant_memory_movable_bytes", "Device memory of a program that can be moved to host memory.", perTenant("device")...)
	metricAway      = gauge("tenant_memory_away_bytes", "Device memory of a program that is in host memory only.", perTenant("device")...)
	metricResidency = gauge("tenant_memory_residency", "1 for where the movable memory of a program is: resident, draining, leaving, away or returning.", perTenant("device", "residency")...)
	metricMoves     = counter("tenant_memory_moves_total", "Completed moves of a program's memory; direction: out or back.", perTenant("device", "direction")...)
	metricMoved     = counter("tenant_memory_moved_bytes_total", "Bytes of these moves.", perTenant("device", "direction")...)

	metricGain      = gauge("protection_gain_seconds", "By how much protection shortens a program's P99 request beside lower programs; source: modelled or measured.", perTenant("device", "source")...)
	metricCost      = gauge("protection_cost_ratio", "Share of recent time that lower programs lost for a program beyond its own GPU time, at most.", perTenant("device")...)
	metricCostTotal = counter("protection_cost_seconds_total", "Time that lower programs lost for a program beyond its own GPU time, at most.", perTenant("device")...)
	metricNative    = gauge("protection_native", "1 while a program shares the GPU natively, because protection gains it nothing.", perTenant("device")...)

	metricPreempted  = counter("preemptions_total", "Preemptions of a busy queue, by cause: the preempting PID, hand (xsched suspend), group (a gang across nodes), or other.", perTenant("queue", "device", "cause")...)
	metricSuspended  = counter("suspended_seconds_total", "Time a queue had work and was suspended.", perTenant("queue", "device")...)
	metricRan        = counter("queue_run_seconds_total", "Time a queue had work and was allowed to run.", perTenant("queue", "device")...)
	metricBusy       = gauge("queue_busy", "1 while a queue has work.", perTenant("queue", "device")...)
	metricQueueLevel = gauge("queue_level", "Preemption level in force for a queue.", perTenant("queue", "device")...)
)

// tenantMetrics reports programs and their queues.
func tenantMetrics(out chan<- prometheus.Metric, all []control.Process) {
	all = mergePIDs(all)
	queues := 0
	for _, p := range all {
		queues += len(p.Queues)
	}
	if len(all) > min(maxMetricTenants, maxMetricHistograms) || queues > maxMetricQueues {
		all = slices.Clone(all)
		slices.SortStableFunc(all, byImportance)
	}
	tenants := newQuotas(maxMetricTenants, all, func(*control.Process) int { return 1 })
	histograms := newQuotas(maxMetricHistograms, all, func(*control.Process) int { return 1 })
	shown := newQuotas(maxMetricQueues, all, func(p *control.Process) int { return len(p.Queues) })
	for _, p := range all {
		if tenants.take(&p, 1) == 0 {
			continue
		}
		labels := labelsOf(&p)
		programMetrics(out, &p, labels)
		targetMetrics(out, &p, labels)
		if histograms.take(&p, 1) == 1 {
			latencyMetrics(out, &p, labels)
		}
		for i := range p.Queues[:shown.take(&p, len(p.Queues))] {
			queueMetrics(out, &p.Queues[i], labels)
		}
	}
	out <- metricTenantsNotShown.is(float64(len(all) - tenants.taken))
	out <- metricNotShown.is(float64(queues - shown.taken))
}

// quotas divides the places of a scrape among users: nobody's programs displace those of others. A user
// who needs less than an equal part leaves the rest to the others.
type quotas struct {
	each  int // places of one user
	used  map[identity.User]int
	taken int
}

func newQuotas(most int, all []control.Process, needs func(*control.Process) int) *quotas {
	wanted := map[identity.User]int{}
	for i := range all {
		wanted[all[i].Owner.Account()] += needs(&all[i])
	}
	q := &quotas{each: most, used: map[identity.User]int{}}
	left := len(wanted)
	for _, n := range slices.Sorted(maps.Values(wanted)) {
		if q.each = most / left; n > q.each {
			break
		}
		most, left = most-n, left-1
	}
	return q
}

// take returns how many of n places a program gets.
func (q *quotas) take(p *control.Process, n int) int {
	owner := p.Owner.Account()
	n = min(n, q.each-q.used[owner])
	q.used[owner] += n
	q.taken += n
	return n
}

// byImportance orders programs by the order in which they get a place in a scrape.
func byImportance(a, b control.Process) int {
	target := func(p control.Process) int { return int(number01(p.SLO != nil)) }
	return cmp.Or(cmp.Compare(target(b), target(a)), cmp.Compare(b.Priority, a.Priority), cmp.Compare(ran(b), ran(a)))
}

// labelsOf returns the values of tenantLabels, and those of podLabels for a program in a pod.
func labelsOf(p *control.Process) []string {
	out := []string{strconv.Itoa(p.PID), control.TenantName(p.Command), cleanLabel(cmp.Or(p.User, strconv.Itoa(p.UID)))}
	if p.Pod != "" {
		out = append(out, p.Namespace, p.Pod, p.PodContainer, p.Class)
	}
	return out
}

// with appends values to labels that others share.
func with(labels []string, more ...string) []string { return append(slices.Clip(labels), more...) }

// maxLabel bounds a label in bytes.
const maxLabel = 128

// cleanLabel makes a text a valid label. Names of users and containers come from files of the host.
func cleanLabel(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxLabel)], "_")
}

func programMetrics(out chan<- prometheus.Metric, p *control.Process, labels []string) {
	container := p.Container
	if p.Pod != "" {
		container = p.PodContainer
	}
	out <- metricTenant.is(1, with(labels[:len(tenantLabels):len(tenantLabels)], strconv.Itoa(p.UID), cleanLabel(container), p.Namespace, p.Pod, p.Class)...)
	out <- metricWantedLevel.is(float64(p.WantLevel), labels...)
	if p.State != "" {
		out <- metricState.is(1, with(labels, p.State)...)
	}
	out <- metricShare.is(p.GPUShare, labels...)
	out <- metricStopped.is(float64(p.Preemptions), labels...)
	out <- metricIntercepted.is(float64(p.Counters.HookedCalls), labels...)
	out <- metricUnhooked.is(float64(p.Counters.Unhooked), labels...)
	out <- metricLaunches.is(float64(p.Counters.Launches), labels...)
	out <- metricGateWaits.is(float64(p.Counters.GateWaits), labels...)
	out <- metricGateWait.is(float64(p.Counters.GateWaitNS)/1e9, labels...)
	out <- metricRecoveries.is(float64(p.Counters.Recoveries), labels...)
	out <- metricPriority.is(float64(p.Priority), labels...)
	out <- metricTenantRan.is(seconds(ran(*p)), labels...)
	out <- metricTenantLost.is(seconds(p.LostNS), labels...)
	for _, m := range p.Memory {
		out <- metricMemory.is(float64(m.UsedBytes), with(labels, m.Device)...)
		out <- metricMemoryRefused.is(float64(m.Refused), with(labels, m.Device)...)
		if m.QuotaBytes != 0 {
			out <- metricMemoryQuota.is(float64(m.QuotaBytes), with(labels, m.Device)...)
		}
		if m.MovableBytes == 0 && m.MovesOut == 0 {
			continue
		}
		out <- metricMovable.is(float64(m.MovableBytes), with(labels, m.Device)...)
		out <- metricAway.is(float64(m.AwayBytes), with(labels, m.Device)...)
		out <- metricResidency.is(1, with(labels, m.Device, m.Residency)...)
		out <- metricMoves.is(float64(m.MovesOut), with(labels, m.Device, "out")...)
		out <- metricMoves.is(float64(m.MovesBack), with(labels, m.Device, "back")...)
		out <- metricMoved.is(float64(m.BytesOut), with(labels, m.Device, "out")...)
		out <- metricMoved.is(float64(m.BytesBack), with(labels, m.Device, "back")...)
	}
	for _, g := range p.Protection {
		out <- metricGain.is(g.GainP99US/1e6, with(labels, g.Device, g.NativeSource)...)
		out <- metricCost.is(g.CostRatio, with(labels, g.Device)...)
		out <- metricCostTotal.is(seconds(g.CostNS), with(labels, g.Device)...)
		out <- metricNative.is(number01(g.State == control.ProtectionNative), with(labels, g.Device)...)
	}
}

func queueMetrics(out chan<- prometheus.Metric, q *control.Queue, tenant []string) {
	labels := with(tenant, strconv.FormatUint(uint64(q.Index), 10), q.Device)
	out <- metricBusy.is(number01(q.Busy), labels...)
	out <- metricQueueLevel.is(float64(q.Level), labels...)
	out <- metricRan.is(seconds(q.RanNS), labels...)
	out <- metricSuspended.is(seconds(q.SuspendedNS), labels...)
	for _, c := range q.PreemptedBy {
		cause := c.Reason
		if c.PID != 0 {
			cause = strconv.Itoa(c.PID)
		}
		out <- metricPreempted.is(float64(c.Count), with(labels, cause)...)
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
