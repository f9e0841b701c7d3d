// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"xsched/internal/control"
)

// Metrics of the hardware. A value that nobody knows has no series.
var (
	metricGPUMemoryUsed  = gauge("gpu_memory_used_bytes", "Memory of a GPU in use by programs and reserved by the driver.", "device")
	metricGPUMemoryFree  = gauge("gpu_memory_free_bytes", "Free memory of a GPU.", "device")
	metricGPUMemoryTotal = gauge("gpu_memory_bytes", "Size of a GPU's memory.", "device")
	metricGPUMemoryLow   = gauge("gpu_memory_low", "1 while so little memory of a GPU is free that the next allocation may fail.", "device")
	metricGPUPower       = gauge("gpu_power_watts", "Power that a GPU draws.", "device")
	metricGPUPowerLimit  = gauge("gpu_power_limit_watts", "Limit of a GPU's power.", "device")
	metricGPUTemperature = gauge("gpu_temperature_celsius", "Temperature of a GPU.", "device")
	metricGPUClock       = gauge("gpu_clock_hertz", "Clock of a GPU's compute units.", "device")
	metricGPUThrottled   = gauge("gpu_throttled", "1 for each reason why a GPU's clock is below the possible one.", "device", "reason")
	metricGPUECC         = counter("gpu_ecc_errors_total", "Memory errors of a GPU since its driver was loaded, by kind: corrected or uncorrected.", "device", "kind")
	metricGPUXid         = counter("gpu_xid_total", "Errors that a GPU's driver reported since the daemon started, by code.", "device", "xid")
)

// collectSensors reports what is known about the hardware of a GPU.
func collectSensors(out chan<- prometheus.Metric, device string, s *control.Sensors) {
	if s == nil {
		return
	}
	for _, v := range []struct {
		metric metric
		value  *uint64
		labels []string
	}{
		{metricGPUMemoryUsed, s.MemoryUsedBytes, nil},
		{metricGPUMemoryFree, s.MemoryFreeBytes, nil},
		{metricGPUMemoryTotal, s.MemoryTotalBytes, nil},
		{metricGPUClock, s.ClockHertz, nil},
		{metricGPUECC, s.ECCCorrected, []string{"corrected"}},
		{metricGPUECC, s.ECCUncorrected, []string{"uncorrected"}},
	} {
		if v.value != nil {
			out <- v.metric.is(float64(*v.value), append([]string{device}, v.labels...)...)
		}
	}
	for _, v := range []struct {
		metric metric
		value  *float64
	}{{metricGPUPower, s.PowerWatts}, {metricGPUPowerLimit, s.PowerLimitWatts}, {metricGPUTemperature, s.TemperatureCelsius}} {
		if v.value != nil {
			out <- v.metric.is(*v.value, device)
		}
	}
	if s.MemoryFreeBytes != nil {
		out <- metricGPUMemoryLow.is(number01(s.MemoryLow), device)
	}
	for _, reason := range s.Throttled {
		out <- metricGPUThrottled.is(1, device, reason)
	}
	for _, x := range s.Xids {
		out <- metricGPUXid.is(float64(x.Count), device, strconv.Itoa(x.Code))
	}
}
