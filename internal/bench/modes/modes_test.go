// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"xsched/internal/bench"
	"xsched/internal/bench/benchtest"
)

// TestLongModesShowWhoScheduled runs the whole comparison: every mode has its row and its proof, and each
// scheduler has a lower median latency than native. CPU noise affects the tails, not the medians.
func TestLongModesShowWhoScheduled(t *testing.T) {
	res, err := Run(t.Context(), Options{Exe: benchtest.Program(t), Seconds: 1.2, Rounds: 1, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := res.WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", text.String())
	if len(res.Rows) != 4 || res.Rows[0].Name != SchedulerNative {
		t.Fatalf("%d rows", len(res.Rows))
	}
	var page bytes.Buffer
	if err := res.WriteReport(&page); err != nil {
		t.Fatal(err)
	}
	for part, want := range map[string]int{
		"<h1>" + res.headline() + "</h1>": 1, ">Latency distribution<": 1, ">Who has the GPU: ": 4, ">Latency against throughput<": 1, ">All schedulers<": 1,
	} {
		if got := strings.Count(page.String(), part); got != want {
			t.Errorf("%d times %q in the report, want %d", got, part, want)
		}
	}
	native := res.Rows[0]
	for _, row := range res.Rows {
		if row.High == nil || row.High.N < 30 || row.Kept < 0.3 || row.Kept > 1.05 || row.GPU == nil {
			t.Errorf("%s: %+v", row.Name, row)
			continue
		}
		if row != native && row.High.P50 > 0.9*native.High.P50 {
			t.Errorf("%s: P50 %.2f ms, native %.2f ms", row.Name, row.High.P50, native.High.P50)
		}
		if !strings.Contains(text.String(), "proof, "+row.Name+": results: ") {
			t.Errorf("%s has no proof", row.Name)
		}
	}
}

// TestLongProofIsNeeded checks that an inert shim is detected in the first mode.
func TestLongProofIsNeeded(t *testing.T) {
	for seed := uint64(1); seed < 3; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			res, err := Run(t.Context(), Options{Exe: benchtest.Program(t), Seconds: 0.5, Rounds: 1, Seed: seed, Fault: bench.FaultShimInert})
			if res != nil || !errors.Is(err, bench.ErrProof) || !strings.Contains(err.Error(), "shim intercepts") {
				t.Errorf("%v, %v", res, err)
			}
		})
	}
}

// TestModeChecks checks that every false claim is detected.
func TestModeChecks(t *testing.T) {
	honest := func(mode string) *turnEvidence {
		ev := &turnEvidence{mode: mode, policy: "HPF", inForce: "HPF", kernels: 100, told: 100, cut: 7, requests: 9, checksum: true}
		switch mode {
		case SchedulerGLB:
			ev.global, ev.stops, ev.touched, ev.hooked, ev.launches = 2, 9, 9, 300, 100
		case SchedulerLCL:
			ev.own, ev.stops, ev.hooked, ev.launches = 2, 9, 300, 100
		case SchedulerAPP:
			ev.holds, ev.hooked, ev.launches, ev.cut = 9, 102, 102, 0
		}
		return ev
	}
	failed := func(ev *turnEvidence) (names []string) {
		for _, c := range ev.checks() {
			if !c.OK {
				names = append(names, c.Name)
			}
		}
		return names
	}
	for _, mode := range Schedulers() {
		if bad := failed(honest(mode)); bad != nil {
			t.Errorf("%s: %v failed", mode, bad)
		}
	}
	for _, c := range []struct {
		mode string
		lie  func(*turnEvidence)
		want string
	}{
		{SchedulerNative, func(ev *turnEvidence) { ev.global = 1 }, "native is native"},
		{SchedulerNative, func(ev *turnEvidence) { ev.touched = 1 }, "native is native"},
		{SchedulerNative, func(ev *turnEvidence) { ev.told = 99 }, "results"},
		{SchedulerNative, func(ev *turnEvidence) { ev.checksum = false }, "results"},
		{SchedulerNative, func(ev *turnEvidence) { ev.ended = errors.New("died") }, "results"},
		{SchedulerGLB, func(ev *turnEvidence) { ev.launches = 99 }, "shim intercepts"},
		{SchedulerGLB, func(ev *turnEvidence) { ev.hooked, ev.launches = 0, 100 }, "shim intercepts"},
		{SchedulerGLB, func(ev *turnEvidence) { ev.global = 1 }, "the daemon schedules it"},
		{SchedulerGLB, func(ev *turnEvidence) { ev.stops = 0 }, "the daemon schedules it"},
		{SchedulerGLB, func(ev *turnEvidence) { ev.cut = 0 }, "the daemon schedules it"},
		{SchedulerLCL, func(ev *turnEvidence) { ev.own = 1 }, "its own daemon schedules it"},
		{SchedulerLCL, func(ev *turnEvidence) { ev.global = 2 }, "its own daemon schedules it"},
		{SchedulerLCL, func(ev *turnEvidence) { ev.inForce = "UP" }, "its own daemon schedules it"},
		{SchedulerAPP, func(ev *turnEvidence) { ev.launches = 99 }, "shim intercepts"},
		{SchedulerAPP, func(ev *turnEvidence) { ev.holds = 8 }, "it schedules itself"},
		{SchedulerAPP, func(ev *turnEvidence) { ev.global = 2 }, "it schedules itself"},
		{SchedulerAPP, func(ev *turnEvidence) { ev.ranHeld = 10 * time.Millisecond }, "it schedules itself"},
	} {
		ev := honest(c.mode)
		c.lie(ev)
		if bad := failed(ev); len(bad) != 1 || bad[0] != c.want {
			t.Errorf("%s: %v failed, want %s", c.mode, bad, c.want)
		}
	}
}
