// SPDX-License-Identifier: Apache-2.0

package top_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/screen"
	"xsched/internal/top"
	"xsched/internal/top/toptest"
)

func statusText(s top.Status, width int) string {
	var b strings.Builder
	s.Write(&b, width)
	return b.String()
}

func TestStatus(t *testing.T) {
	s := toptest.Scene(8)
	stats := control.Stats{UptimeNS: int64(3 * time.Hour), HeartbeatAgeNS: 12e6, Scheduling: "SCHED_FIFO 1", Config: control.ConfigState{
		File: "/etc/xsched/config.yaml", ReadNS: s.TimeNS - int64(90*time.Minute), RunTime: []string{"mode", "policy"},
	}, Targets: []control.TargetStats{{PID: 4890, Device: "0000:01:00.0", StuckForMS: 900}, {PID: 5120, Device: "0000:02:00.0", Off: "resume\nfailed"}}}
	status := top.Examine(&s, &stats, "2.1.0")
	if status.Healthy || status.Worst == nil || status.Worst.PID != 5001 {
		t.Errorf("%+v", status)
	}
	got := statusText(status, 0)
	want := `daemon    running for 3.0h, version 2.0.0, PID 812, user root, in /run/xsched
engine    last heartbeat 12ms ago, scheduling class SCHED_FIFO 1
config    /etc/xsched/config.yaml, read 90m ago; set at run time: mode, policy
policy    HPF
mode      live
GPU       0000:01:00.0  97% used, Example GPU 80GB, driver virtual, level up to 3, 3 programs
GPU       0000:02:00.0  41% used, Example GPU 80GB, driver virtual, level up to 3, 2 programs, policy CFS, 1 unmanaged
programs  6: 2 running, 1 preempted, 1 waiting, 1 idle, 1 held
worst     5001 /opt/tools/render --scene cit… (carla) misses its SLO of 50ms, P99 61ms
problem   program 5001 misses its SLO of 50ms: 86.0% of its requests meet it, 99% should; raise it with ` + "`xsched hint 5001 --priority N`" + `, or lower the others
problem   an operation on program 4890 on 0000:01:00.0 is stuck for 900 ms; see ` + "`xsched list --stats`" + ` and the daemon's log
problem   program 5120 on 0000:02:00.0 is not scheduled: resume?failed; see the kernel's log for errors of the driver
note      the daemon has version 2.0.0, this command 2.1.0; restart the daemon after an upgrade
note      0000:02:00.0: 1 program uses it unmanaged; see ` + "`xsched attach --help`" + `
note      1 program is suspended by hand; see ` + "`xsched resume --help`" + `
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for line := range strings.Lines(statusText(status, 60)) {
		if n := screen.Width(strings.TrimSuffix(line, "\n")); n > 60 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

func TestHealthyStatus(t *testing.T) {
	s := toptest.Scene(8)
	s.List.Processes = s.List.Processes[:2]
	status := top.Examine(&s, &control.Stats{}, "2.0.0")
	if !status.Healthy || status.Worst == nil || status.Worst.PID != 4890 || !strings.Contains(status.Worst.Why, "lost 4.3% of its time") {
		t.Errorf("%+v", status.Worst)
	}
	if text := statusText(status, 0); !strings.Contains(text, "health    no problems") {
		t.Error(text)
	}
}

// A machine on which nothing can be scheduled is not healthy, whatever the programs do.
func TestStatusOfTheHost(t *testing.T) {
	why := control.Problem{Cause: "driver: no kernel module is loaded", Remedy: "load it; the virtual GPU works without"}
	for _, c := range []struct {
		name string
		in   control.Snapshot
		want []string
	}{
		{"no driver", control.Snapshot{Problems: []control.Problem{why}}, []string{"GPU       none", "problem   driver: no kernel module is loaded; load it; the virtual"}},
		{"no GPU", control.Snapshot{}, []string{"problem   the daemon knows no GPU; see `xsched doctor`"}},
	} {
		status := top.Examine(&c.in, &control.Stats{}, "")
		text := statusText(status, 0)
		for _, want := range c.want {
			if status.Healthy || len(status.Problems) != 1 || strings.Contains(text, "no problems") || !strings.Contains(text, want) {
				t.Errorf("%s: healthy %v, no %q in\n%s", c.name, status.Healthy, want, text)
			}
		}
	}
	v := newView(t, 40, 24)
	v.Take(control.Snapshot{Problems: []control.Problem{why}}, nil)
	if text := v.text(40, 24); !strings.Contains(text, "problem: driver: no kernel module") || !strings.Contains(text, "\nwithout") {
		t.Errorf("top:\n%s", text)
	}
}

// The status tells what limits GPUs, and where the configuration in force is not the one of the file.
func TestStatusNotes(t *testing.T) {
	s := toptest.Scene(8)
	s.List.Processes = nil
	for i := range s.Devices {
		s.Devices[i].MaxLevel, s.Devices[i].LevelReason = 1, "the driver has not passed the self-test"
	}
	status := top.Examine(&s, &control.Stats{Config: control.ConfigState{File: "/etc/x.yaml", Changed: true, Restart: []string{"http.address"}}, Alerts: &control.AlertStats{Sent: 5, Lost: 2}}, "2.0.0")
	for _, want := range []string{
		"2 GPUs: only level 1: the driver has not passed the self-test",
		"/etc/x.yaml is not what the daemon has read; apply it with `sudo xsched config reload`",
		"new values of http.address take effect at the next start",
		"2 alerts were not delivered since the daemon started; try `xsched alert-test`",
	} {
		if !strings.Contains(strings.Join(status.Notes, "\n"), want) {
			t.Errorf("no %q in %q", want, status.Notes)
		}
	}
}

// The status and top have a line for the sensors of each GPU that has some, and warn of a full memory and of errors.
func TestSensors(t *testing.T) {
	s := toptest.Scene(8)
	bare := top.Examine(&s, &control.Stats{}, "2.0.0")
	if text := statusText(bare, 0); strings.Contains(text, "memory") || strings.Contains(text, "unknown") {
		t.Errorf("without sensors:\n%s", text)
	}
	s.Devices[0].Sensors = &control.Sensors{
		MemoryTotalBytes: new(uint64(80 << 30)), MemoryUsedBytes: new(uint64(78 << 30)), MemoryFreeBytes: new(uint64(2 << 30)), MemoryLow: true, PowerWatts: new(310.4),
		Xids: []control.Xid{{Code: 31, Count: 2, LastNS: s.TimeNS - 300e9}, {Code: 13, Count: 1, LastNS: s.TimeNS - 7200e9}},
	}
	s.Devices[1].Sensors = &control.Sensors{Unknown: "GPU is\x1b[2J lost"}
	status := top.Examine(&s, &control.Stats{}, "2.0.0")
	text := statusText(status, 0)
	v := newView(t, 120, 40)
	v.Take(s, nil)
	const values, lost = "memory 78GiB of 80GiB, 310 W, Xid 31, Xid 13", "sensors unknown: GPU is"
	for _, line := range []string{values, lost} {
		if !strings.Contains(text, line) || !strings.Contains(v.text(120, 40), line) {
			t.Errorf("no %q in\n%s\n%s", line, text, v.text(120, 40))
		}
	}
	// Where there is little room, only the GPU whose memory is full has its line.
	if small := v.text(80, 14); !strings.Contains(small, values) || strings.Contains(small, lost) {
		t.Errorf("small:\n%s", small)
	}
	want := []string{
		"GPU " + s.Devices[0].ID + ": 97 % of its memory is used; the next allocation may fail. `xsched list` shows who has it, `xsched evict --help` how to move some",
		"GPU " + s.Devices[0].ID + ": its driver reported Xid 31 2 times, the last time 5.0m ago; see `dmesg`",
	}
	if got := status.Notes[:2]; !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

// A dead engine is not an unreachable daemon.
func TestDeadStatus(t *testing.T) {
	refused := top.Unreachable(control.Errorf(control.ErrNotAllowed, "use the host", "not in a container"))
	if text := statusText(refused, 0); !strings.Contains(text, "may not see its status") || strings.Contains(text, "not reachable") {
		t.Error(text)
	}
	if text := statusText(top.Dead("engine loop: no sign of life"), 0); !strings.Contains(text, "daemon   dead") || strings.Contains(text, "not reachable") {
		t.Error(text)
	}
}

// A program that waits for nobody gets no advice to raise its priority.
func TestSLORemedy(t *testing.T) {
	s := toptest.Scene(8)
	for wait, want := range map[float64]string{0: "a higher priority does not help", 20_000: "--priority N"} {
		s.List.Processes[2].Latency.Wait.P99US = wait
		status := top.Examine(&s, &control.Stats{}, "2.0.0")
		if got := status.Problems[0].Remedy; !strings.Contains(got, want) {
			t.Errorf("P99 of the wait %v us: %q", wait, got)
		}
	}
}

// TestModeLevel: status and top tell the level of mode level, also of one GPU.
// Entry points that the shim does not know: counted over all programs, and no problem of its own.
func TestUnknownEntryPoints(t *testing.T) {
	s := toptest.Scene(8)
	s.List.Processes = s.List.Processes[:2]
	s.List.Processes[0].Counters.Unhooked, s.List.Processes[1].Counters.Unhooked = 3, 4
	status := top.Examine(&s, &control.Stats{}, "2.0.0")
	if text := statusText(status, 0); status.Unknown != 7 || !status.Healthy || !strings.Contains(text, "2 programs looked up entry points that this release does not know (7)") {
		t.Errorf("unknown %d, healthy %v:\n%s", status.Unknown, status.Healthy, text)
	}
}

func TestModeLevel(t *testing.T) {
	s := toptest.Scene(8)
	s.List.Mode, s.List.ModeLevel = "level", 2
	s.List.Devices[0].Mode, s.List.Devices[0].Level = "level", 1
	status := top.Examine(&s, &control.Stats{}, "2.0.0")
	v := newView(t, 120, 40)
	v.Take(s, nil)
	for where, text := range map[string]string{"status": statusText(status, 0), "top": v.text(120, 40)} {
		for _, want := range []string{"level 2", "policy CFS, mode level 1"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in\n%s", where, want, text)
			}
		}
	}
	if status.ModeLevel != 2 {
		t.Errorf("level %d", status.ModeLevel)
	}
}

// TestManyProblems checks that the status fits one screen.
func TestManyProblems(t *testing.T) {
	s := many(500)
	var stats control.Stats
	for i := range s.List.Processes {
		p := &s.List.Processes[i]
		p.SLO = &control.SLO{TargetUS: 1, Objective: 0.99, Missed: 1}
		p.PriorityReason = "not granted"
		stats.Targets = append(stats.Targets, control.TargetStats{PID: p.PID, Off: "why"})
	}
	text := statusText(top.Examine(&s, &stats, "2.0.0"), 80)
	if n := strings.Count(text, "\n"); n > 30 {
		t.Errorf("%d lines\n%s", n, text)
	}
	if !strings.Contains(text, "995 more problems") {
		t.Error(text)
	}
}

func TestNoDaemon(t *testing.T) {
	status := top.Unreachable(errors.New("no daemon at X; start one with `xsched serve`"))
	if status.Healthy || len(status.Problems) != 1 || status.Problems[0].Remedy != "start one with `xsched serve`" {
		t.Errorf("%+v", status)
	}
	if text := statusText(status, 0); !strings.Contains(text, "not reachable") {
		t.Error(text)
	}
}
