// SPDX-License-Identifier: Apache-2.0

package bench

import "fmt"

func scenarioName(lows int) string {
	if lows == 1 {
		return "1 low"
	}
	return fmt.Sprintf("%d lows", lows)
}

// name is the scenario's.
func (p *plan) name() string {
	if p.attached {
		return scenarioName(p.lows) + " without the shim"
	}
	return scenarioName(p.lows)
}

// tenantName names the i-th tenant: 0 is the high one.
func tenantName(i int) string {
	if i == 0 {
		return "high"
	}
	return fmt.Sprintf("low%d", i)
}

// usText writes a kernel's length in the unit people would use.
func usText(us int) string {
	if us >= 1000 {
		return fmt.Sprintf("%g ms", float64(us)/1000)
	}
	return fmt.Sprintf("%d µs", us)
}
