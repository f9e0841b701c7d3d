// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"slices"
	"strings"
	"testing"

	"xsched/internal/control"
)

func TestEnvironmentPrepend(t *testing.T) {
	for _, test := range []struct{ name, old, want string }{
		{"none", "", "/c/libxsched.so:/c/libvgpu.so"},
		{"others stay, in order", "/a.so:/b.so", "/c/libxsched.so:/c/libvgpu.so:/a.so:/b.so"},
		{"blanks separate too", "/a.so /b.so", "/c/libxsched.so:/c/libvgpu.so:/a.so:/b.so"},
		{"an older shim goes", "/old/libxsched.so:/a.so", "/c/libxsched.so:/c/libvgpu.so:/a.so"},
		{"so do its other names", "/lib/libshimcuda.so:/a.so:/lib/libxsched.so.2", "/c/libxsched.so:/c/libvgpu.so:/a.so"},
		{"but no similar ones", "/lib/libshimmer.so", "/c/libxsched.so:/c/libvgpu.so:/lib/libshimmer.so"},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newEnvironment([]string{"A=1", "LD_PRELOAD=" + test.old, "LD_PRELOAD=/second.so"})
			e.prepend("LD_PRELOAD", "/c/libxsched.so", "/c/libvgpu.so")
			want := []string{"A=1", "LD_PRELOAD=" + test.want}
			if got := e.list(); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
	e := newEnvironment([]string{"LD_LIBRARY_PATH=/lib dir:/x"})
	e.prepend("LD_LIBRARY_PATH", "/v")
	if got := e.get("LD_LIBRARY_PATH"); got != "/v:/lib dir:/x" {
		t.Errorf("LD_LIBRARY_PATH = %q", got)
	}
}

func TestWriteList(t *testing.T) {
	list := control.List{Policy: "HPF", Mode: "live", Processes: []control.Process{
		{PID: 12, User: "root", Priority: 10, Command: "serve", State: "running", GPUShare: 1.204, Latency: &control.Latency{
			Requests: 900, Total: control.Histogram{Recent: 90, P50US: 712.4, P99US: 1041.6}, Wait: control.Histogram{Recent: 90, P99US: 3.25},
		}, SLO: &control.SLO{TargetUS: 1000, Objective: 0.99, Met: 890, Missed: 10, Attainment: 0.995, BudgetLeft: 0.5}, Counters: control.Counters{Launches: 42}, Queues: []control.Queue{
			{Device: "0000:01:00.0", Busy: true, State: "running", Level: 3, SliceUS: 1000000},
			{Device: "0000:02:00.0", State: "idle", Level: 1},
		}, Protection: []control.Protection{
			{Device: "0000:01:00.0", State: "protected", GainP99US: 4120, NativeSource: "modelled", CostRatio: 0.031},
			{Device: "0000:02:00.0", State: "native", GainP99US: -80, NativeSource: "measured", CostRatio: 0.2},
		}},
		{PID: 13, UID: 12345678, User: "12345678", State: "preempted", Preemptions: 3, LostNS: 2_345_678_901, SLO: &control.SLO{Missed: 1, Attainment: 0.4, BudgetLeft: -59}, Latency: &control.Latency{Requests: 5}, Priority: -3, Utilization: 25, Command: "tr\x1b[2Jain\n", Queues: []control.Queue{
			{Device: "0000:01:00.0", Busy: true, State: "suspended", Level: 3, OwnSliceUS: 2048},
		}},
		{PID: 14, User: "root", State: "held", Held: true, Attached: true, Command: "old"},
		{PID: 15, User: "root", State: "idle", SLO: &control.SLO{Attainment: 1, BudgetLeft: 1}, WantLevel: 3, PriorityReason: "priority 9 was not granted", Command: "x", Queues: []control.Queue{
			{Device: "0000:01:00.0", State: "idle", Level: 1, LevelReason: "Lv3 was requested: no driver"},
		}, Protection: []control.Protection{{Device: "0000:01:00.0", State: "learning", Requests: 7, NativeSource: "modelled"}}},
		{PID: 16, User: "root", State: "idle", Command: "y", Protection: []control.Protection{{
			State: "protected", GainP99US: 900, NativeSource: "modelled", CostRatio: 0.0001, Submission: control.Submission{Strategy: "batches", Reason: "70 kernels"},
		}}},
	}}
	var text strings.Builder
	writeList(&text, list, 0)
	want := `policy HPF, mode live
PID  USER      DEVICE        PRIO  SHARE  LEVEL  STATE  SCHED      SLICE      LAUNCHES  GPU   P50    P99     WAIT    SLO               PREEMPTED  COMMAND
12   root      0000:01:00.0  10    -      Lv3    busy   run        1s         42        120%  712µs  1.04ms  3.25µs  99.5% (50% left)  -          serve
12   root      0000:02:00.0  10    -      Lv1    idle   run        -          "         "     "      "       "       "                 "          serve
14   root      -             0     -      auto   -      held       -          0         0%    -      -       -       -                 -          old (attached)
15   root      0000:01:00.0  0     -      Lv1    idle   run        -          0         0%    -      -       -       -                 -          x
16   root      -             0     -      auto   -      run        -          0         0%    -      -       -       -                 -          y
13   12345678  0000:01:00.0  -3    25%    Lv3    busy   suspended  (2.048ms)  0         0%    -      -       -       40.0%! (0% left)  3, 2.35s   tr?[2Jain?
protection: 12 on 0000:01:00.0: -4.1 ms P99 (modelled), costs others up to 3.1 %
protection: 12 on 0000:02:00.0: +0.1 ms P99 (measured), not worth its cost
note: 15: priority 9 was not granted
note: 15: Lv1 on 0000:01:00.0: Lv3 was requested: no driver
protection: 15: learning, 7 requests
protection: 16: -0.9 ms P99 (modelled), costs others nothing
strategy: 16: batches (70 kernels)
`
	if got := text.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}

	text.Reset()
	list.Processes = list.Processes[:3] // notes are not shortened
	writeList(&text, list, 80)
	if got, want := text.String(), `policy HPF, mode live
PID  USER      PRIO  STATE      GPU   P50    P99     WAIT    SLO     COMMAND
12   root      10    running    120%  712µs  1.04ms  3.25µs  99.5%   serve
14   root      0     held       0%    -      -       -       -       old (attac…
13   12345678  -3    preempted  0%    -      -       -       40.0%!  tr?[2Jain?
protection: 12 on 0000:01:00.0: -4.1 ms P99 (modelled), costs others up to 3.1 %
protection: 12 on 0000:02:00.0: +0.1 ms P99 (measured), not worth its cost
`; got != want {
		t.Errorf("narrow: got\n%s\nwant\n%s", got, want)
	}
	text.Reset()
	list.Processes[0].Namespace, list.Processes[0].Pod, list.Processes[0].PodContainer = "ml", "serve-0", "main"
	writeList(&text, list, 120)
	for _, want := range []string{
		" 99.5% (50% left)  serve\n", " 40.0%! (0% left)  tr", "PID  USER      POD              PRIO  STATE ", "12   root      ml/serve-0/main  10    running ", "13   12345678  -                -3 ",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("with a pod: no %q in\n%s", want, text.String())
		}
	}
	text.Reset()
	list.Mode = "off"
	writeList(&text, list, 20)
	for line := range strings.Lines(text.String()) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 20 {
			t.Errorf("%q is %d wide", line, n)
		}
	}
	text.Reset()
	writeList(&text, control.List{}, 0)
	if !strings.Contains(text.String(), "xsched run") {
		t.Errorf("an empty list does not say what to do: %q", text.String())
	}
}

func TestWriteStats(t *testing.T) {
	var text strings.Builder
	writeStats(&text, control.Stats{
		Refused:     map[string]uint64{"wrong version": 3},
		SuspendTime: control.Histogram{Count: 2, P50US: 600.4, P99US: 700, MaxUS: 710},
		Targets:     []control.TargetStats{{PID: 9, Device: "0000:01:00.0", StuckForMS: 120}},
	})
	for _, want := range []string{"P50 600.4 us, P99 700.0 us, max 710.0 us (2)", "3: wrong version", "PID 9 on 0000:01:00.0 for 120 ms"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in\n%s", want, text.String())
		}
	}
}

func TestWriteDevices(t *testing.T) {
	var text strings.Builder
	writeDevices(&text, control.Devices{Devices: []control.Device{
		{ID: "0000:01:00.0", Name: "NVIDIA H200", Driver: "580.1", MaxLevel: 3, Slices: true, ComputeMode: "default"},
		{ID: "0000:02:00.0", Driver: "580.1", MaxLevel: 1, LevelReason: "MPS: the channels belong to the MPS server", ComputeMode: "exclusive process", MIG: true},
	}})
	for _, want := range []string{"NVIDIA H200", "MPS: the channels belong to the MPS server; compute mode exclusive process; MIG"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in\n%s", want, text.String())
		}
	}
}

// Without a driver, the list says why it is empty.
func TestWriteNoDevices(t *testing.T) {
	for want, reply := range map[string]control.Devices{
		"problem: no driver; load it\n": {Problems: []control.Problem{{Cause: "no driver", Remedy: "load it"}}},
		"no GPU known yet":              {},
	} {
		var text strings.Builder
		writeDevices(&text, reply)
		if !strings.Contains(text.String(), want) || strings.Contains(text.String(), "known yet") != (len(reply.Problems) == 0) {
			t.Errorf("%+v: %q", reply, text.String())
		}
	}
}

// Where commands do not fit, programs of one kind differ by their names.
func TestListNames(t *testing.T) {
	list := control.List{Processes: []control.Process{
		{PID: 1, User: "root", State: "idle", Command: "python3 /srv/serve.py --model large --port 8001"},
		{PID: 2, User: "root", State: "idle", Command: "python3 /srv/serve.py --model large --port 8002"},
		{PID: 3, User: "root", State: "idle", Command: "train --fast"},
	}}
	control.NameProcesses(list.Processes)
	for width, ends := range map[int][]string{
		90:  {"  serve.py --port 8001", "  serve.py --port 8002", "  train --fast"},
		139: {list.Processes[0].Command, list.Processes[1].Command, "  train --fast"},
	} {
		var text strings.Builder
		writeList(&text, list, width)
		for _, end := range ends {
			if !strings.Contains(text.String(), end+"\n") {
				t.Errorf("at width %d no line ends with %q:\n%s", width, end, text.String())
			}
		}
	}
}

// A result of another user than the root daemon's is reported as unused.
func TestUnusedSelfTestResult(t *testing.T) {
	for _, c := range []struct {
		daemon, caller int
		unused         bool
	}{{0, 1000, true}, {0, 0, false}, {1000, 1000, false}} {
		note := unusedResult(c.daemon, c.caller)
		if (note != "") != c.unused || c.unused && !strings.Contains(note, "sudo xsched doctor --self-test") {
			t.Errorf("%+v: %q", c, note)
		}
	}
	var text strings.Builder
	writeSelfTest(&text, selfTestReport{Note: unusedResult(0, 1000)})
	if !strings.Contains(text.String(), "note: the running daemon belongs to root") {
		t.Error(text.String())
	}
}

// The guide explains columns that the table has: first those of a narrow terminal, then the others.
func TestGuideColumns(t *testing.T) {
	text, err := os.ReadFile("../../docs/guides/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "## What works when it works")
	section, _, _ := strings.Cut(rest, "\n## ")
	tables := strings.Split(section, "| column | expected |")
	if !found || len(tables) != 3 {
		t.Fatalf("%d tables in the section", len(tables)-1)
	}
	for i, width := range []int{80, 0} {
		var out strings.Builder
		writeList(&out, control.List{Processes: []control.Process{{PID: 1}}}, width)
		known := strings.Fields(strings.Split(out.String(), "\n")[1])
		explained := 0
		for line := range strings.Lines(tables[i+1]) {
			cells := strings.Split(line, "|")
			if len(cells) < 3 || strings.HasPrefix(line, "|-") {
				continue
			}
			for name := range strings.SplitSeq(cells[1], ",") {
				if explained++; !slices.Contains(known, strings.TrimSpace(name)) {
					t.Errorf("width %d: the guide explains the column %q, the table has %v", width, name, known)
				}
			}
		}
		if explained < 5 {
			t.Errorf("width %d: %d columns are explained", width, explained)
		}
	}
}
