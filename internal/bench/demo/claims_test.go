// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"

	"xsched/internal/report"
)

// Claims are the thresholds that a run on the virtual GPU has to meet: the
// README's claims as numbers for CI.
type Claims struct {
	LatencyCost float64 // Lv3 P99 at most alone + this, ms
	NativeWorse float64 // native P99 at least the median alone + this, ms
	KeptOfIdeal float64 // three lows keep at least this part of the time that the high leaves
}

// DefaultClaims are the claims on the virtual NVIDIA GPU.
func DefaultClaims() Claims {
	return Claims{LatencyCost: 1.0, NativeWorse: 2.0, KeptOfIdeal: 0.90}
}

// OwnerClaims are those where the owner of a queue suspends it. There are no timeslices, so every
// request pays for a suspend and a resume: an order, and a remap of all queues.
func OwnerClaims() Claims {
	return Claims{LatencyCost: 4.0, NativeWorse: 5.0, KeptOfIdeal: 0.65}
}

// ClaimsOf returns the claims for a result's platform.
func ClaimsOf(r *Result) Claims {
	if platform(r.Platform).OwnerSuspends {
		return OwnerClaims()
	}
	return DefaultClaims()
}

// Check returns the claims that the latencies violate, one line each.
func (c Claims) Check(r *Result) []string {
	return c.check(r, "P99", (*Scenario).high)
}

// CheckDevice is Check on the kernels' wait for the GPU, which excludes CPU noise.
func (c Claims) CheckDevice(r *Result) []string {
	return c.check(r, "GPU wait P99", (*Scenario).wait)
}

func (c Claims) check(r *Result, what string, pick func(*Scenario, string) *report.Latency) []string {
	var bad []string
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		alone, native, lv3 := pick(s, ModeAlone), pick(s, ModeNative), pick(s, s.deep())
		if alone == nil || native == nil || lv3 == nil {
			bad = append(bad, fmt.Sprintf("%s: alone, native or %s was not measured", s.Name, s.deep()))
			continue
		}
		if lv3.P99 > alone.P99+c.LatencyCost {
			bad = append(bad, fmt.Sprintf("%s: %s %s %.3f ms is more than alone %.3f ms + %g ms", s.Name, levelText(s.deep()), what, lv3.P99, alone.P99, c.LatencyCost))
		}
		// Compare with alone's median: its tail is CPU noise, which native's tail contains too.
		if native.P99 < alone.P50+c.NativeWorse {
			bad = append(bad, fmt.Sprintf("%s: native %s %.3f ms is not %g ms worse than alone's median %.3f ms", s.Name, what, native.P99, c.NativeWorse, alone.P50))
		}
		m := s.Modes[s.deep()]
		if m.Low == nil || m.GPU == nil {
			bad = append(bad, fmt.Sprintf("%s: no low throughput was measured at %s", s.Name, levelText(s.deep())))
			continue
		}
		if ideal := 1 - m.GPU.High; m.Low.Kept < c.KeptOfIdeal*ideal {
			bad = append(bad, fmt.Sprintf("%s: the low tenants keep %.1f %% at %s, less than %.0f %% of the possible %.1f %%",
				s.Name, 100*m.Low.Kept, levelText(s.deep()), 100*c.KeptOfIdeal, 100*ideal))
		}
	}
	return bad
}
