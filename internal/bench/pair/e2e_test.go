// SPDX-License-Identifier: Apache-2.0

package pair

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"xsched/internal/bench/benchtest"
	"xsched/internal/embedded"
)

// commands are an online program with a request every 50 ms and an offline program that always
// computes, until the online one has ended. Both verify their results and exit on their own, the online
// one some time after it has left the GPU.
func commands(t *testing.T, platform string) (online, offline string) {
	t.Helper()
	tenant, err := embedded.Unpack(embedded.Tenant)
	if err != nil {
		t.Skip(err)
	}
	api := map[string]string{"nvidia": "cuda", "amd": "hip"}[platform]
	over := filepath.Join(t.TempDir(), "over")
	command := func(what, until, flags string) string {
		return fmt.Sprintf("{ echo %s; %s; echo quit; } | %s --api %s %s >/dev/null", what, until, tenant, api, flags)
	}
	return command("rate 20", "sleep 2", "--name online --kernel-us 1000") + " && sleep 0.3 && touch " + over,
		command("loop", "until [ -e "+over+" ]; do sleep 0.1; done", "--name offline --kernel-us 5000 --depth 8")
}

// TestTargets checks the report for each way to suspend the offline program. Nothing may be lost, and
// every suspension ends after its request. Other processes share the CPUs and may delay most operations, so
// one in ten, not 99 %, must be within its target. A cause in XSched delays all of them.
func TestTargets(t *testing.T) {
	exe := benchtest.Program(t)
	for _, c := range []struct {
		name, platform, route string
		attach                bool
	}{
		{"NVIDIA", "nvidia", "channels", false},
		{"AMD, through the program itself", "amd", "owner", false},
		{"AMD, through the debugger", "amd", "debugger", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			online, offline := commands(t, c.platform)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			out := t.TempDir()
			r, err := Run(ctx, Options{
				Online: online, Offline: offline, Virtual: true, Platform: c.platform, Attach: c.attach, Alone: 500 * time.Millisecond, Out: out, Exe: exe,
			})
			if err != nil {
				t.Fatal(err)
			}
			checkPair(t, r, out, c.route)
			for name, o := range map[string]Operation{"suspend": r.Suspend, "resume": r.Resume} {
				if 10*o.Within < o.N {
					t.Errorf("%s: only %d of %d within the target", name, o.Within, o.N)
				}
			}
			if r.Requests.P50 >= onlineTarget || r.Throughput.Loss > 0.25 {
				t.Errorf("online P50 %.2f ms, offline loss %.2f", r.Requests.P50, r.Throughput.Loss)
			}
		})
	}
}

func checkPair(t *testing.T, r *Report, out, route string) {
	t.Helper()
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", table.String())
	for _, target := range []string{"suspend", "resume", "online request", "offline loss", "nothing leaked", "nothing lost"} {
		if !strings.Contains(table.String(), target) {
			t.Errorf("the report does not show %q", target)
		}
	}
	if r.Route != route || r.Suspensions < 10 || r.Requests.N < 10 || r.AfterRequest < 10 || !r.Throughput.Measured {
		t.Errorf("%+v", r)
	}
	// The load of the machine must not cause losses.
	if last := r.Targets[len(r.Targets)-1]; last.Name != "nothing lost" || !last.Met {
		t.Errorf("%+v", last)
	}
	text, err := os.ReadFile(filepath.Join(out, "pair.json"))
	var back Report
	if err == nil {
		err = json.Unmarshal(text, &back)
	}
	if err != nil || len(back.Targets) != 6 {
		t.Errorf("pair.json: %+v %v", back.Targets, err)
	}
	page, err := os.ReadFile(filepath.Join(out, "report.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{">Latency distribution<", "suspended by XSched", ">Latency against throughput<", ">TARGET<", fmt.Sprintf("online P99 %.2f ms", r.Requests.P99)} {
		if !bytes.Contains(page, []byte(part)) {
			t.Errorf("report.html lacks %q", part)
		}
	}
}

// TestSlice checks that an endless request does not starve the offline program.
func TestSlice(t *testing.T) {
	t.Parallel()
	exe := benchtest.Program(t)
	tenant, err := embedded.Unpack(embedded.Tenant)
	if err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var progress strings.Builder
	r, err := Run(ctx, Options{
		// Two requests: on a busy machine the first may begin before both are measured, and does not count then.
		Online:  fmt.Sprintf("{ for i in 1 2; do sleep 0.8; echo loop; sleep 0.8; echo pause; done; sleep 0.2; echo quit; } | %s --api hip --kernel-us 2000 --depth 4 >/dev/null", tenant),
		Offline: fmt.Sprintf("{ echo loop; sleep 6; echo quit; } | %s --api hip --kernel-us 5000 --depth 2 >/dev/null", tenant),
		Virtual: true, Platform: "amd", Slice: 50 * time.Millisecond, Alone: 500 * time.Millisecond, Exe: exe,
		Progress: &progress,
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := "the offline program runs alone for 500ms\nboth programs run until the online one ends\neach program has 10s to end\n"; progress.String() != want {
		t.Errorf("progress %q, want %q", progress.String(), want)
	}
	if r.AfterSlice < 5 || len(r.Lost) != 0 {
		t.Errorf("resumed %d times after a slice, lost %v", r.AfterSlice, r.Lost)
	}
}

// TestProof checks that programs that never compete, or do not use the GPU, get no report.
func TestProof(t *testing.T) {
	t.Parallel()
	exe := benchtest.Program(t)
	online, offline := commands(t, "amd")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if r, err := Run(ctx, Options{Online: "XSCHED_DISABLE=1; export XSCHED_DISABLE; " + online, Offline: offline, Virtual: true, Platform: "amd", Alone: 100 * time.Millisecond, Exe: exe}); err == nil {
		t.Errorf("an inert shim was reported on: %+v", r)
	}
	if _, err := Run(ctx, Options{Online: "true", Offline: "false", Virtual: true, Platform: "amd", Exe: exe}); err == nil || !strings.Contains(err.Error(), "offline program ended too early") {
		t.Errorf("a program that fails: %v", err)
	}
}

// TestJointPause checks by the device's record that a pause of all queues takes one remap, and a
// resume another one, however many queues a program has. Two programs take two each.
func TestJointPause(t *testing.T) {
	t.Parallel()
	exe, joint := benchtest.Program(t), []string{"XSCHED_AMD_SESSION=1"}
	for _, c := range []struct {
		name  string
		load  Load
		env   []string
		least float64 // remaps per suspension and its resume
		most  float64
	}{
		{"one program", Load{Rate: 20}, joint, 0, 2.5},
		{"ten queues of two programs", Load{Rate: 20, Queues: 10}, joint, 0, 2.5},
		{"one request per queue", Load{Rate: 20}, nil, 3.5, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for range 3 { // on a busy machine, recoveries remap too
				r, err := Run(ctx, Options{Load: c.load, OfflineEnv: c.env, Virtual: true, Platform: "amd", Alone: 200 * time.Millisecond, Together: 1500 * time.Millisecond, Exe: exe})
				if err != nil {
					t.Fatal(err)
				}
				got := float64(r.Remaps) / float64(r.Suspensions)
				t.Logf("%d remaps for %d suspensions, want %g to %g each; lost %v", r.Remaps, r.Suspensions, c.least, c.most, r.Lost)
				if len(r.Lost) != 0 {
					break
				}
				if r.Suspensions >= 10 && got >= c.least && got <= c.most {
					return
				}
			}
			t.Error("never so many remaps for each suspension")
		})
	}
}

// TestHold checks that the offline program stays suspended for the hold after a request.
func TestHold(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const hold = 50 * time.Millisecond
	r, err := Run(ctx, Options{Load: Load{}, Hold: hold, Virtual: true, Platform: "amd", Alone: 200 * time.Millisecond, Together: 1500 * time.Millisecond, Exe: benchtest.Program(t)})
	if err != nil {
		t.Fatal(err)
	}
	longest := time.Duration(0)
	for _, w := range r.raw.Pauses {
		longest = max(longest, w.Length())
	}
	if longest < hold {
		t.Errorf("the longest of %d suspensions is %v, want at least the hold", len(r.raw.Pauses), longest)
	}
}

// TestLongRuns are the long runs of the documentation, shortened. Nothing may be lost or leak, and
// requests are served from the first to the last tenth of the time.
func TestLongRuns(t *testing.T) {
	exe := benchtest.Program(t)
	for _, c := range []struct {
		name string
		load Load
	}{
		{"stability", Load{}},
		{"requests of 10 ms", Load{Request: 10 * time.Millisecond}},
		{"ten offline queues", Load{Queues: 10}},
		{"leak check", Load{Rate: 50, Request: time.Millisecond}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			r, err := Run(ctx, Options{Load: c.load, Virtual: true, Platform: "amd", Alone: 500 * time.Millisecond, Together: 8 * time.Second, Exe: exe})
			if err != nil {
				t.Fatal(err)
			}
			if leaks := leaked(r.Usage); len(r.Lost)+len(leaks) != 0 || len(r.Usage) < 3 || r.Tenths[0] == nil || r.Tenths[9] == nil || r.Suspensions < 20 {
				t.Errorf("lost %v, leaked %v, %d processes, tenths %s, %d suspensions", r.Lost, leaks, len(r.Usage), tenths(r.Tenths), r.Suspensions)
			}
		})
	}
}
