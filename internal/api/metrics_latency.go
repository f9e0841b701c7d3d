// SPDX-License-Identifier: Apache-2.0

package api

import (
	"github.com/prometheus/client_golang/prometheus"

	"xsched/internal/control"
)

// shortestRequest is the smallest bound of the histograms of requests. Fewer buckets keep a scrape small.
const shortestRequest = 100e-6

// The metrics of requests and latency targets.
var (
	metricRequest = counter("request_seconds", "Duration of a program's requests, from arrival to the end; a request is a busy period or one that the program marked.", perTenant()...)
	metricWait    = counter("request_wait_seconds", "Time that a program's requests waited because of other programs.", perTenant()...)

	metricTarget     = gauge("slo_target_seconds", "Latency target of a program's requests.", perTenant()...)
	metricObjective  = gauge("slo_objective_ratio", "Share of a program's requests that shall meet its latency target.", perTenant()...)
	metricSLO        = counter("slo_requests_total", "Requests of a program with a latency target; result: met or missed.", perTenant("result")...)
	metricAttainment = gauge("slo_attainment_ratio", "Share of a program's recent requests that met its latency target.", perTenant()...)
	metricBudget     = gauge("slo_budget_left_ratio", "Unused share of the misses that the objective allows; negative: overspent.", perTenant()...)
)

// latencyMetrics reports the histograms of a program's requests.
func latencyMetrics(out chan<- prometheus.Metric, p *control.Process, labels []string) {
	if p.Latency == nil {
		return
	}
	out <- metricRequest.histogramFrom(shortestRequest, p.Latency.Total, labels...)
	out <- metricWait.histogramFrom(shortestRequest, p.Latency.Wait, labels...)
}

// targetMetrics reports how a program meets its latency target.
func targetMetrics(out chan<- prometheus.Metric, p *control.Process, labels []string) {
	s := p.SLO
	if s == nil {
		return
	}
	out <- metricTarget.is(float64(s.TargetUS)/1e6, labels...)
	out <- metricObjective.is(s.Objective, labels...)
	out <- metricSLO.is(float64(s.Met), with(labels, "met")...)
	out <- metricSLO.is(float64(s.Missed), with(labels, "missed")...)
	out <- metricAttainment.is(s.Attainment, labels...)
	out <- metricBudget.is(s.BudgetLeft, labels...)
}
