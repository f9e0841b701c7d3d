// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"math"
	"strings"
)

// Sensors are the values that the vendor's driver or library reports about a GPU. Absent values are unknown.
type Sensors struct {
	// Unknown is why there are no values now; empty: there are.
	Unknown string `json:"unknown,omitempty"`
	// The free memory is what no program and no driver has; the driver reserves some of the used.
	MemoryTotalBytes *uint64 `json:"memory_total_bytes,omitempty"`
	MemoryUsedBytes  *uint64 `json:"memory_used_bytes,omitempty"`
	MemoryFreeBytes  *uint64 `json:"memory_free_bytes,omitempty"`
	// MemoryLow: so little is free that the next allocation may fail.
	MemoryLow          bool     `json:"memory_low,omitempty"`
	PowerWatts         *float64 `json:"power_watts,omitempty"`
	PowerLimitWatts    *float64 `json:"power_limit_watts,omitempty"`
	TemperatureCelsius *float64 `json:"temperature_celsius,omitempty"`
	ClockHertz         *uint64  `json:"clock_hertz,omitempty"` // of the compute units
	// Throttled has the reasons for a clock below the possible one, such as software_power_cap.
	Throttled []string `json:"throttled,omitempty"`
	// Memory errors since the driver was loaded.
	ECCCorrected   *uint64 `json:"ecc_corrected,omitempty"`
	ECCUncorrected *uint64 `json:"ecc_uncorrected,omitempty"`
	// Xids are the driver's errors since the daemon started, by code.
	Xids []Xid `json:"xids,omitempty"`
}

// Xid is an error code of the driver.
type Xid struct {
	Code   int    `json:"code"`
	Count  uint64 `json:"count"`
	LastNS int64  `json:"last_unix_ns"`
}

// MemoryText says how much of the memory is used: "97 % of its memory is used"; empty: unknown. The share is rounded
// down: only a full memory is 100 %.
func (s *Sensors) MemoryText() string {
	if s.MemoryFreeBytes == nil || s.MemoryTotalBytes == nil || *s.MemoryTotalBytes == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %% of its memory is used", math.Floor(100-100*float64(*s.MemoryFreeBytes)/float64(*s.MemoryTotalBytes)))
}

// Text describes a GPU for one line: "memory 76GiB of 80GiB, 310 W of 700 W, 61 C, 1980 MHz, throttled: software
// power cap".
func (s *Sensors) Text() string {
	if s.Unknown != "" {
		return "sensors unknown: " + s.Unknown
	}
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if s.MemoryUsedBytes != nil && s.MemoryTotalBytes != nil {
		add("memory %s of %s", Amount(int64(*s.MemoryUsedBytes)), Amount(int64(*s.MemoryTotalBytes)))
	}
	switch {
	case s.PowerWatts != nil && s.PowerLimitWatts != nil:
		add("%.0f W of %.0f W", *s.PowerWatts, *s.PowerLimitWatts)
	case s.PowerWatts != nil:
		add("%.0f W", *s.PowerWatts)
	}
	if s.TemperatureCelsius != nil {
		add("%.0f C", *s.TemperatureCelsius)
	}
	if s.ClockHertz != nil {
		add("%d MHz", *s.ClockHertz/1e6)
	}
	if len(s.Throttled) > 0 {
		add("throttled: %s", strings.ReplaceAll(strings.Join(s.Throttled, ", "), "_", " "))
	}
	if s.ECCUncorrected != nil && *s.ECCUncorrected > 0 {
		add("%d uncorrected ECC errors", *s.ECCUncorrected)
	}
	for _, x := range s.Xids {
		add("Xid %d", x.Code)
	}
	return strings.Join(parts, ", ")
}
