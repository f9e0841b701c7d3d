// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"xsched/internal/bench"
	"xsched/internal/bench/benchtest"
)

// TestLongDemoOnAMD: HIP tenants on the virtual AMD device, preempted by their own shims and, without a
// shim, through the debugger.
func TestLongDemoOnAMD(t *testing.T) {
	res := claimed(t, CompareOptions{Platform: "amd", Attached: true})
	if len(res.Scenarios) != 2 || res.Scenarios[0].Deep != ModeLv2 || !res.Scenarios[1].Attached || res.Platform != "amd" {
		t.Fatalf("%+v", res.Scenarios)
	}
	for i := range res.Scenarios {
		if s := &res.Scenarios[i]; s.Proof.Preemptions == 0 || s.Remaps == 0 || s.Proof.Launches != s.Proof.ExecutedKernels {
			t.Errorf("%s: %+v, %d remaps", s.Name, s.Proof, s.Remaps)
		}
	}
}

func TestLongDemoOnAMDNoticesFaults(t *testing.T) {
	exe := benchtest.Program(t)
	for fault, want := range map[string]string{bench.FaultShimInert: "shim intercepts", bench.FaultSuspendNoop: "suspended means not running"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := Compare(ctx, CompareOptions{Virtual: true, Platform: "amd", Exe: exe, Seconds: 1, Block: time.Second, Fault: fault})
			if !errors.Is(err, bench.ErrProof) || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want a failed proof of %q", err, want)
			}
		})
	}
}
