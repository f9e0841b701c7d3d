// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"xsched/internal/bench"
	"xsched/internal/report"
)

// Proof is the evidence for a comparison.
type Proof struct {
	HookedCalls     uint64 `json:"hooked_calls"`     // driver calls the shim intercepted
	Launches        uint64 `json:"launches"`         // kernel launches the shim counted
	ExecutedKernels uint64 `json:"executed_kernels"` // kernels the device finished
	Preemptions     uint64 `json:"preemptions"`      // of low tenants, in mid-kernel, in the Lv3 blocks
	ChecksumsOK     bool   `json:"checksums_ok"`
	// Recoveries counts heartbeat timeouts after which a tenant ran natively. They mean an
	// overloaded machine, not a wrong proof.
	Recoveries uint64        `json:"recoveries"`
	Checks     []bench.Check `json:"checks"`
}

// Evidence is the input of the proof, from independent parties: tenants, shims, daemon and device.
type Evidence struct {
	Modes   []string
	Tenants []TenantEvidence // the first one is the high tenant
	Modal   map[string]ModeEvidence
	Hold    *HoldEvidence
	Slices  []SliceEvidence
	// Reached is how long the high tenant's kernels waited for the device in the
	// Lv3 blocks, sorted; empty without a device that keeps records.
	Reached []time.Duration
	// Deep is the mode that preempts in mid-kernel; empty: ModeLv3. NoSlices: the device has no
	// hardware timeslices, only suspension.
	Deep     string
	NoSlices bool
	// Recorded: the device keeps its own record (the virtual GPU). Otherwise the checks that need
	// it are skipped.
	Recorded bool
}

// TenantEvidence is one tenant's counts at the end of a scenario.
type TenantEvidence struct {
	Name       string
	PID        int
	Hooked     uint64 // by the shim
	Launches   uint64 // by the shim
	Executed   uint64 // by the device
	Own        uint64 // by the tenant itself
	Recoveries uint64 // by the shim
	Checksum   bool
	Attached   bool  // it has no shim
	Died       error // error of its exit, if any
}

// ModeEvidence counts events during a mode.
type ModeEvidence struct {
	Preemptions uint64 // of lows in mid-kernel, by the device's timeline
	Suspends    uint64 // by the daemon, all levels
	Deep        uint64 // by the daemon, at Lv2 and Lv3
	GateWaits   uint64 // launches that were held, by the shims
	HighStops   uint64 // of the high tenant in mid-kernel, by the device
	Remaps      uint64 // times the firmware unmapped and remapped all queues
}

func (ev *Evidence) deep() string {
	if ev.Deep == "" {
		return ModeLv3
	}
	return ev.Deep
}

// levelText returns the level of a mode.
func levelText(mode string) string {
	if mode == ModeLv2 {
		return "Lv2"
	}
	return "Lv3"
}

// HoldEvidence is about the manual suspension of low tenants that had work.
type HoldEvidence struct {
	Try    int          // of holdTries
	Window bench.Window // from "all are suspended" to "resume them"
	Ran    map[int]time.Duration
	// Resumed says that every one of them ran again afterwards.
	Resumed bool
	// Error is why a suspension was not confirmed, if it was not.
	Error error
}

// stopped reports that no tenant ran while it was suspended, and all afterwards.
func (h *HoldEvidence) stopped() bool {
	for _, d := range h.Ran {
		if d > bench.HoldSlack {
			return false
		}
	}
	return h.Error == nil && h.Resumed
}

// SliceEvidence compares the timeslice the daemon says is in force with the
// one the device uses.
type SliceEvidence struct {
	Name         string
	PID          int
	Plan, Device time.Duration
}

// Limits of the behavioural checks.
const (
	// reachLimit is above a context switch (0.2 ms) and below any way without timeslices: a native
	// slice takes 2 ms, a suspension at least 0.5 ms before the switch.
	reachLimit = 500 * time.Microsecond
	// reachBySuspension is the limit without timeslices: decision, request, remap and switch, well
	// below the 10 ms of a native turn.
	reachBySuspension = 4 * time.Millisecond
	// reachPart allows for hand-overs between low tenants and for a daemon without a CPU. Without
	// timeslices four fifths would be late.
	reachPart = 0.95
	// gateSample is the number of closed gates of which at least one must have held a launch.
	gateSample = 300
)

// prove evaluates the evidence. The error names the first failed check.
func prove(scenario string, ev *Evidence) (Proof, error) {
	p := Proof{ChecksumsOK: true}
	add := func(name string, failures []string, ok string) {
		c := bench.Check{Name: name, OK: len(failures) == 0, Detail: ok}
		if !c.OK {
			c.Detail = strings.Join(failures, "; ")
		}
		p.Checks = append(p.Checks, c)
	}
	for _, t := range ev.Tenants {
		p.HookedCalls += t.Hooked
		p.Launches += t.Launches
		if t.Attached {
			p.Launches += t.Own // the only count
		}
		p.ExecutedKernels += t.Executed
		p.Recoveries += t.Recoveries
		p.ChecksumsOK = p.ChecksumsOK && t.Checksum && t.Died == nil
	}
	p.Preemptions = ev.Modal[ev.deep()].Preemptions

	add("shim intercepts", notIntercepted(ev),
		fmt.Sprintf("%d driver calls, %d of them launches", p.HookedCalls, p.Launches))
	add("launches equal kernels", unequalCounts(ev),
		fmt.Sprintf("%d launches by the shims, %d kernels by the device", p.Launches, p.ExecutedKernels))
	add("checksums", badChecksums(ev), fmt.Sprintf("right in all %d tenants", len(ev.Tenants)))
	add("native is native", notNative(ev), "no suspension while the mode was off")
	if slices.Contains(ev.Modes, ModeLv1) {
		add("Lv1 holds launches", lv1Inert(ev),
			fmt.Sprintf("gates closed %d times, %d launches met a closed one", ev.Modal[ModeLv1].Suspends, ev.Modal[ModeLv1].GateWaits))
	}
	if slices.Contains(ev.Modes, ev.deep()) {
		add(levelText(ev.deep())+" preempts", deepInert(ev), fmt.Sprintf("%d kernels stopped in the middle, %d suspensions by the daemon",
			p.Preemptions, ev.Modal[ev.deep()].Deep))
		if ev.Hold != nil {
			add("suspended means not running", ranWhileHeld(ev),
				fmt.Sprintf("0 ms on the GPU in %.0f ms of suspension (try %d of %d), all ran again afterwards",
					report.MS(ev.Hold.Window.Length()), ev.Hold.Try, holdTries))
		}
		if !ev.NoSlices {
			add("slices are in force", wrongSlices(ev), slicesText(ev))
		}
		if ev.Recorded {
			add(checkReached, reachedLate(ev), reachedText(ev))
		}
	}
	err := bench.Failure(scenario, p.Checks)
	if err != nil && len(ev.Reached) > 0 && !slices.ContainsFunc(p.Checks, func(c bench.Check) bool { return !c.OK && c.Name != checkReached }) {
		err = lateError{err}
	}
	return p, err
}

func notIntercepted(ev *Evidence) (bad []string) {
	for _, t := range ev.Tenants {
		if !t.Attached && (t.Hooked == 0 || t.Launches == 0) {
			bad = append(bad, fmt.Sprintf("the shim in %s (pid %d) is inert: %d hooked calls, %d launches", t.Name, t.PID, t.Hooked, t.Launches))
		}
	}
	if len(ev.Tenants) == 0 {
		bad = append(bad, "no tenants")
	}
	return bad
}

func unequalCounts(ev *Evidence) (bad []string) {
	for _, t := range ev.Tenants {
		if t.Attached {
			if t.Own != 0 && t.Own != t.Executed {
				bad = append(bad, fmt.Sprintf("%s (pid %d): launched %d kernels by its own count, the device executed %d", t.Name, t.PID, t.Own, t.Executed))
			}
			continue
		}
		if t.Launches != t.Executed {
			bad = append(bad, fmt.Sprintf("%s (pid %d): the shim counted %d launches, the device %d kernels", t.Name, t.PID, t.Launches, t.Executed))
		}
		if t.Own > t.Launches {
			bad = append(bad, fmt.Sprintf("%s (pid %d): launched %d kernels by its own count, the shim saw %d", t.Name, t.PID, t.Own, t.Launches))
		}
	}
	return bad
}

func badChecksums(ev *Evidence) (bad []string) {
	for _, t := range ev.Tenants {
		switch {
		case t.Died != nil:
			bad = append(bad, fmt.Sprintf("%s (pid %d): %v", t.Name, t.PID, t.Died))
		case !t.Checksum:
			bad = append(bad, fmt.Sprintf("%s (pid %d): wrong checksum", t.Name, t.PID))
		}
	}
	return bad
}

func notNative(ev *Evidence) (bad []string) {
	if m := ev.Modal[ModeNative]; m.Suspends != 0 || m.GateWaits != 0 {
		bad = append(bad, fmt.Sprintf("%d suspensions and %d held launches while the mode was off", m.Suspends, m.GateWaits))
	}
	return bad
}

func lv1Inert(ev *Evidence) (bad []string) {
	m := ev.Modal[ModeLv1]
	holds := m.Suspends - m.Deep
	switch {
	case holds == 0:
		bad = append(bad, "the daemon never closed a gate")
	case m.GateWaits == 0 && holds >= gateSample:
		// A few short holds may not coincide with any launch.
		bad = append(bad, fmt.Sprintf("the daemon closed gates %d times and no launch was held", holds))
	}
	if m.Deep != 0 {
		bad = append(bad, fmt.Sprintf("%d suspensions at Lv2 or Lv3 in mode level 1", m.Deep))
	}
	return bad
}

func deepInert(ev *Evidence) (bad []string) {
	m := ev.Modal[ev.deep()]
	if ev.Recorded && m.Preemptions == 0 {
		bad = append(bad, "the device stopped no kernel in the middle")
	}
	// A timeslice preempts a single low tenant; several take turns, which needs suspensions.
	if (len(ev.Tenants) > 2 || ev.NoSlices) && m.Deep == 0 {
		bad = append(bad, "the daemon suspended nobody")
	}
	return bad
}

func ranWhileHeld(ev *Evidence) (bad []string) {
	h := ev.Hold
	if h.Error != nil {
		return []string{h.Error.Error()}
	}
	for _, t := range ev.Tenants {
		if d := h.Ran[t.PID]; d > bench.HoldSlack {
			bad = append(bad, fmt.Sprintf("%s (pid %d) held the GPU for %.2f ms of the %.0f ms it was suspended",
				t.Name, t.PID, report.MS(d), report.MS(h.Window.Length())))
		}
	}
	if !h.Resumed {
		bad = append(bad, "a tenant did not run again after it was resumed")
	}
	return bad
}

func wrongSlices(ev *Evidence) (bad []string) {
	planned := 0
	for _, s := range ev.Slices {
		if s.Plan > 0 {
			planned++
		}
		if s.Plan != s.Device {
			bad = append(bad, fmt.Sprintf("%s (pid %d): the daemon set %v, the device uses %v", s.Name, s.PID, s.Plan, s.Device))
		}
	}
	if planned == 0 {
		bad = append(bad, "the daemon set no timeslice")
	}
	return bad
}

func slicesText(ev *Evidence) string {
	var parts []string
	for _, s := range ev.Slices {
		parts = append(parts, fmt.Sprintf("%s %v", s.Name, s.Device))
	}
	return strings.Join(parts, ", ") + ", as the daemon set them"
}

func reachedLate(ev *Evidence) (bad []string) {
	if len(ev.Reached) == 0 {
		return []string{"the device recorded no kernel of the high tenant"}
	}
	limit := reachLimit
	if ev.NoSlices {
		limit = reachBySuspension
	}
	if within(ev.Reached, limit) < reachPart {
		bad = append(bad, fmt.Sprintf("only %.1f %% of the high tenant's kernels got the GPU within %v (P95 %v): it is not protected",
			100*within(ev.Reached, limit), limit, report.Quantile(ev.Reached, 0.95).Round(time.Microsecond)))
	}
	return bad
}

func reachedText(ev *Evidence) string {
	limit := reachLimit
	if ev.NoSlices {
		limit = reachBySuspension
	}
	return fmt.Sprintf("%.2f %% of %d kernels of the high tenant got the GPU within %v (P99 %v)",
		100*within(ev.Reached, limit), len(ev.Reached), limit, report.Quantile(ev.Reached, 0.99).Round(time.Microsecond))
}

// within returns the fraction of the sorted durations that does not exceed limit.
func within(sorted []time.Duration, limit time.Duration) float64 {
	n := 0
	for n < len(sorted) && sorted[n] <= limit {
		n++
	}
	return float64(n) / float64(max(len(sorted), 1))
}
