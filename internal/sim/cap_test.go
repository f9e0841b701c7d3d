// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"strings"
	"testing"
)

// TestMaxPriority: the limit of a user holds in a simulation as in the daemon.
func TestMaxPriority(t *testing.T) {
	const scenario = `
policy: EDF
duration: 2s
tenants:
  - {name: victim, user: root, arrivals: {closed: {depth: 1, think: 20ms}}, kernel: 1ms, kernels: 2}
  - {name: batch, user: alice, LIMIT arrivals: {closed: {depth: 1}}, hint: {deadline: 1us}, kernel: 5ms, kernels: 8}
  - {name: batch2, user: alice, LIMIT arrivals: {closed: {depth: 1}}, hint: {deadline: 1us}, kernel: 5ms, kernels: 8}
`
	served := func(limit string) int {
		return int(run(t, parse(t, strings.ReplaceAll(scenario, "LIMIT", limit)), Options{}).Runs[0].Classes[0].Done)
	}
	if free, capped := served(""), served("max_priority: 0,"); capped < 5*free {
		t.Errorf("the victim finished %d requests beside an unlimited user, %d beside a limited one", free, capped)
	}
}
