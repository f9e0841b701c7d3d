// SPDX-License-Identifier: Apache-2.0

// Package demo compares a high-priority tenant beside low-priority tenants in every mode of XSched. The
// modes are switched live, in one loaded set of processes. A result exists only if launches, kernels,
// checksums, preemptions and the device's own record agree (see prove).
package demo

import (
	"fmt"
	"io"
	"time"

	"xsched/internal/bench"
	"xsched/internal/report"
	"xsched/internal/virtual"
)

// The modes a scenario is measured in. Their names are part of result.json.
const (
	ModeAlone  = "alone"      // the high tenant with the GPU to itself
	ModeNative = "native"     // mode off: the hardware shares the GPU
	ModeLv1    = "xsched-lv1" // mode level 1: launches are held, kernels are not stopped
	ModeLv2    = "xsched-lv2" // mode live on AMD: the low tenants' own shims pause their queues
	ModeLv3    = "xsched-lv3" // mode live: timeslices and suspension in mid-kernel; on AMD through the debugger

	// lowAlone is the reference for "kept": one low tenant, the high one paused.
	lowAlone = "low-alone"
)

// platform is the virtual GPU that a run names; the zero value if it names none.
func platform(name string) virtual.Platform {
	p, _ := virtual.Find(name)
	return p
}

// ownerPlatform is the first platform where the owner of a queue suspends it.
func ownerPlatform() string {
	for _, p := range virtual.All() {
		if p.OwnerSuspends {
			return p.Name
		}
	}
	return ""
}

// AllModes lists the modes in the order of tables and pictures.
func AllModes() []string { return []string{ModeAlone, ModeNative, ModeLv1, ModeLv2, ModeLv3} }

// ModesOf lists the modes of a platform.
func ModesOf(name string) []string {
	if platform(name).OwnerSuspends {
		return []string{ModeAlone, ModeNative, ModeLv1, ModeLv2}
	}
	return []string{ModeAlone, ModeNative, ModeLv1, ModeLv3}
}

// Result is the result of a run; result.json is its JSON.
type Result struct {
	Device    string         `json:"device"`
	Platform  string         `json:"platform,omitempty"` // of a virtual GPU
	Date      time.Time      `json:"date"`
	Machine   bench.Machine  `json:"machine"`
	Seed      uint64         `json:"seed"`
	Workload  bench.Workload `json:"workload"`
	Scenarios []Scenario     `json:"scenarios"`
	Memory    *Memory        `json:"memory,omitempty"`
}

// Scenario is one loaded set of processes, measured in every mode.
type Scenario struct {
	Name string `json:"name"`
	Lows int    `json:"lows"`
	// LowAloneRate is the rate of one low tenant with the GPU to itself, in iterations per second.
	LowAloneRate float64          `json:"low_alone_rate_hz"`
	Modes        map[string]*Mode `json:"modes"`
	Proof        Proof            `json:"proof"`

	// Deep is the mode that preempts the low tenants in mid-kernel. Attached: they have no shim.
	Deep     string `json:"deep_mode"`
	Attached bool   `json:"attached"`
	// Remaps counts how often the firmware remapped all queues in the Deep mode (AMD's older firmware
	// scheduler). HighStops counts how often that interrupted a kernel of the high tenant.
	Remaps    uint64 `json:"remaps,omitempty"`
	HighStops uint64 `json:"high_stops,omitempty"`

	raw map[string]*rawMode // for the charts; not in the JSON
}

// Mode is one mode of one scenario.
type Mode struct {
	High *report.Latency `json:"high,omitempty"`
	Low  *Low            `json:"low,omitempty"`
	// Wait is how long the high tenant's kernels waited for the GPU, by the
	// device's own record: the latency without CPU noise.
	Wait        *report.Latency `json:"gpu_wait,omitempty"`
	GPU         *bench.Split    `json:"gpu,omitempty"`
	Preemptions uint64          `json:"preemptions"`
	Seconds     float64         `json:"seconds"` // measured, edges of the blocks left out
	Offered     int             `json:"offered"` // requests the schedule asked for in that time
}

// Low is the throughput of the low tenants.
type Low struct {
	// Kept is the iterations of all low tenants inside the high tenant's window
	// over what one low tenant alone does in the same time.
	Kept float64 `json:"kept"`
	Rate float64 `json:"rate_hz"`
	// Rates has each tenant's part of Rate.
	Rates []float64 `json:"rates_hz,omitempty"`
}

// WriteJSON writes the result, indented.
func (r *Result) WriteJSON(w io.Writer) error { return report.WriteJSON(w, r) }

// modes returns the names of the modes that were measured, in table order.
func (s *Scenario) modes() []string {
	var names []string
	for _, name := range AllModes() {
		if s.Modes[name] != nil {
			names = append(names, name)
		}
	}
	return names
}

func scenarioName(lows int) string {
	if lows == 1 {
		return "1 low"
	}
	return fmt.Sprintf("%d lows", lows)
}

// name returns the scenario's name.
func (p *plan) name() string {
	if p.attached {
		return scenarioName(p.lows) + " without the shim"
	}
	return scenarioName(p.lows)
}

// deep returns the mode that preempts in mid-kernel.
func (s *Scenario) deep() string {
	if s.Deep == "" {
		return ModeLv3
	}
	return s.Deep
}

func (s *Scenario) wait(mode string) *report.Latency {
	if m := s.Modes[mode]; m != nil {
		return m.Wait
	}
	return nil
}
