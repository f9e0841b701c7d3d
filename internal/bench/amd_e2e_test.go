// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"xsched/internal/embedded"
)

// TestDemoOnAMD: HIP tenants on the double of AMD's driver, through their own shims and, without a
// shim, through the debugger. The proof must hold every time, the latencies once in three.
func TestDemoOnAMD(t *testing.T) {
	exe := program(t)
	var bad []string
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		res, err := Pair(ctx, PairOptions{
			Virtual: true, Platform: PlatformAMD, Attached: true, Exe: exe, Seconds: 2, Block: time.Second, Out: t.TempDir(),
		})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		var table bytes.Buffer
		if err := res.WriteTable(&table); err != nil {
			t.Fatal(err)
		}
		t.Logf("\n%s", table.String())
		if len(res.Scenarios) != 2 || res.Scenarios[0].Deep != ModeLv2 || !res.Scenarios[1].Attached || res.Platform != PlatformAMD {
			t.Fatalf("%+v", res.Scenarios)
		}
		for i := range res.Scenarios {
			if s := &res.Scenarios[i]; s.Proof.Preemptions == 0 || s.Remaps == 0 || s.Proof.Launches != s.Proof.ExecutedKernels {
				t.Errorf("%s: %+v, %d remaps", s.Name, s.Proof, s.Remaps)
			}
		}
		// An order goes through two processes, so that also the device's times carry the CPUs' noise.
		bad = append(ClaimsOf(res).CheckDevice(res), ClaimsOf(res).Check(res)...)
		if len(bad) == 0 || t.Failed() {
			break
		}
		t.Logf("again: %q", bad)
	}
	for _, line := range bad {
		t.Error(line)
	}
}

func TestDemoOnAMDNoticesFaults(t *testing.T) {
	exe := program(t)
	for fault, want := range map[string]string{FaultShimInert: "shim intercepts", FaultSuspendNoop: "suspended means not running"} {
		t.Run(fault, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := Pair(ctx, PairOptions{Virtual: true, Platform: PlatformAMD, Exe: exe, Seconds: 1, Block: time.Second, Fault: fault})
			if !errors.Is(err, ErrProof) || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want a failed proof of %q", err, want)
			}
		})
	}
}

// pairCommands are an online program with a request every 100 ms and an offline one that computes all
// the time; both check their results and end by themselves.
func pairCommands(t *testing.T, platform string) (online, offline string) {
	t.Helper()
	tenant, err := embedded.Unpack(embedded.Tenant)
	if err != nil {
		t.Skip(err)
	}
	api := map[string]string{PlatformNVIDIA: "cuda", PlatformAMD: "hip"}[platform]
	command := func(what string, seconds int, flags string) string {
		return fmt.Sprintf("{ echo %s; sleep %d; echo quit; } | %s --api %s %s >/dev/null", what, seconds, tenant, api, flags)
	}
	return command("rate 10", 4, "--name online --kernel-us 1000"), command("loop", 8, "--name offline --kernel-us 5000 --depth 2")
}

// TestPairMeetsItsTargets: the report of each way to stop the offline program shows every target met, on
// the doubles and with their costs. The CPUs are shared, and a wake-up that comes late is none of the
// devices' doing: each target is to be met in one of four runs, and nothing lost in any.
func TestPairMeetsItsTargets(t *testing.T) {
	exe := program(t)
	for _, c := range []struct {
		name, platform, route string
		attach                bool
	}{
		{"NVIDIA", PlatformNVIDIA, "channels", false},
		{"AMD, through the program itself", PlatformAMD, "owner", false},
		{"AMD, through the debugger", PlatformAMD, "debugger", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			online, offline := pairCommands(t, c.platform)
			missed := map[string]string{"any": "not run"}
			for range 4 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				out := t.TempDir()
				r, err := Colocate(ctx, ColocateOptions{
					Online: online, Offline: offline, Virtual: true, Platform: c.platform, Attach: c.attach, Alone: time.Second, Out: out, Exe: exe,
				})
				cancel()
				if err != nil {
					t.Fatal(err)
				}
				checkPair(t, r, out, c.route)
				delete(missed, "any")
				for _, target := range r.Targets {
					if before, tried := missed[target.Name]; target.Met {
						missed[target.Name] = ""
					} else if !tried || before != "" {
						missed[target.Name] = target.Got
					}
				}
				if !slices.ContainsFunc(slices.Collect(maps.Values(missed)), func(got string) bool { return got != "" }) {
					break
				}
			}
			for name, got := range missed {
				if got != "" {
					t.Errorf("%s was never met: %s", name, got)
				}
			}
		})
	}
}

func checkPair(t *testing.T, r *ColocateReport, out, route string) {
	t.Helper()
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", table.String())
	for _, target := range []string{"suspend", "resume", "online request", "offline loss", "nothing lost"} {
		if !strings.Contains(table.String(), target) {
			t.Errorf("the report does not show %q", target)
		}
	}
	if r.Route != route || r.Suspensions < 20 || r.Requests.N < 20 || r.AfterRequest < 20 || !r.Throughput.Measured {
		t.Errorf("%+v", r)
	}
	// Nothing is lost whatever the machine does.
	if last := r.Targets[len(r.Targets)-1]; last.Name != "nothing lost" || !last.Met {
		t.Errorf("%+v", last)
	}
	text, err := os.ReadFile(filepath.Join(out, "pair.json"))
	var back ColocateReport
	if err == nil {
		err = json.Unmarshal(text, &back)
	}
	if err != nil || len(back.Targets) != 5 {
		t.Errorf("pair.json: %+v %v", back.Targets, err)
	}
	if text, err := os.ReadFile(filepath.Join(out, "pair.md")); err != nil || !bytes.Contains(text, []byte("TARGET")) {
		t.Errorf("pair.md: %v", err)
	}
}

// TestPairSlice: a request that does not end does not starve the offline program: it gets turns.
func TestPairSlice(t *testing.T) {
	exe := program(t)
	tenant, err := embedded.Unpack(embedded.Tenant)
	if err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := Colocate(ctx, ColocateOptions{
		// Two requests: on a busy machine the first may begin before both are measured, and does not count then.
		Online:  fmt.Sprintf("{ for i in 1 2; do sleep 1.5; echo loop; sleep 1.5; echo pause; done; sleep 0.2; echo quit; } | %s --api hip --kernel-us 2000 --depth 4 >/dev/null", tenant),
		Offline: fmt.Sprintf("{ echo loop; sleep 12; echo quit; } | %s --api hip --kernel-us 5000 --depth 2 >/dev/null", tenant),
		Virtual: true, Platform: PlatformAMD, Slice: 50 * time.Millisecond, Alone: time.Second, Exe: exe,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.AfterSlice < 5 || len(r.Lost) != 0 {
		t.Errorf("resumed %d times after a slice, lost %v", r.AfterSlice, r.Lost)
	}
}

// TestPairProvesThatTheyMet: programs that never meet, or that don't use the GPU, are not reported on.
func TestPairProvesThatTheyMet(t *testing.T) {
	exe := program(t)
	online, offline := pairCommands(t, PlatformAMD)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if r, err := Colocate(ctx, ColocateOptions{Online: "XSCHED_DISABLE=1; export XSCHED_DISABLE; " + online, Offline: offline, Virtual: true, Platform: PlatformAMD, Alone: 100 * time.Millisecond, Exe: exe}); err == nil {
		t.Errorf("an inert shim was reported on: %+v", r)
	}
	if _, err := Colocate(ctx, ColocateOptions{Online: "true", Offline: "false", Virtual: true, Platform: PlatformAMD, Exe: exe}); err == nil || !strings.Contains(err.Error(), "offline program ended too early") {
		t.Errorf("a program that fails: %v", err)
	}
}
