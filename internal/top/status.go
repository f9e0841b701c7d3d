// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"xsched/internal/control"
	"xsched/internal/screen"
)

// Status is a summary of a daemon.
type Status struct {
	Healthy   bool             `json:"healthy"` // without problems
	Daemon    *control.Version `json:"daemon,omitempty"`
	Policy    string           `json:"policy,omitempty"`
	Mode      string           `json:"mode,omitempty"`
	ModeLevel int              `json:"mode_level,omitempty"` // of mode "level"
	Devices   []control.Device `json:"devices,omitempty"`
	// Programs counts the programs by state.
	Programs map[string]int `json:"programs,omitempty"`
	Worst    *Worst         `json:"worst,omitempty"`
	// Unknown counts entry points that programs looked up and the shim does not know.
	Unknown  uint64    `json:"unknown_entry_points"`
	Problems []Problem `json:"problems"`
	Notes    []string  `json:"notes"`

	Config control.ConfigState `json:"config"`
	// HeartbeatAgeNS is the age of the engine's last heartbeat, Scheduling the class of its thread.
	HeartbeatAgeNS int64  `json:"heartbeat_age_ns,omitempty"`
	Scheduling     string `json:"scheduling,omitempty"`
	// HostMemory may be used for moves of GPU memory; HostMemoryGranted of it is given to programs.
	HostMemory        int64 `json:"host_memory_bytes,omitempty"`
	HostMemoryGranted int64 `json:"host_memory_granted,omitempty"`

	absent string // why there is nothing about the daemon
	list   control.List
	now    time.Time
	up     time.Duration
	read   time.Duration // since the configuration file was read
}

// Worst is the tenant that suffers most.
type Worst struct {
	PID     int    `json:"pid"`
	User    string `json:"user"`
	Pod     string `json:"pod,omitempty"` // "namespace/pod/container"
	Command string `json:"command"`
	Why     string `json:"why"`
}

// Problem is a defect that needs attention.
type Problem = control.Problem

// Unreachable is the status without a daemon.
func Unreachable(err error) Status {
	cause, remedy, _ := strings.Cut(oneLine(err.Error()), "; ")
	out := Status{Problems: []Problem{{Cause: cause, Remedy: remedy}}, Notes: []string{}, absent: "not reachable"}
	if errors.Is(err, control.ErrNotAllowed) { // as in a container
		out.absent = "running; this user may not see its status"
	}
	return out
}

// Dead is the status of a daemon that a restart helps.
func Dead(part string) Status {
	return Status{Problems: []Problem{{Cause: part, Remedy: "restart the daemon; programs run unscheduled meanwhile"}}, Notes: []string{}, absent: "dead: it answers, but does not schedule"}
}

// Examine summarises a snapshot. version is that of the caller.
func Examine(s *control.Snapshot, stats *control.Stats, version string) Status {
	out := Status{
		Daemon: &s.Daemon, Policy: s.List.Policy, Mode: s.List.Mode, ModeLevel: s.List.ModeLevel, Devices: s.Devices, Programs: map[string]int{},
		Worst: worst(s.List.Processes), Problems: []Problem{}, Notes: []string{},
		Config: stats.Config, HeartbeatAgeNS: stats.HeartbeatAgeNS, Scheduling: stats.Scheduling, HostMemory: stats.HostMemoryBytes, HostMemoryGranted: stats.HostMemoryGranted,
		list: s.List, now: s.Time(), up: time.Duration(stats.UptimeNS), read: time.Duration(s.TimeNS - stats.Config.ReadNS),
	}
	out.host(s)
	grouped := out.programs(s.List.Processes)
	out.daemon(s, stats)
	out.sensors()
	out.configuration()
	if s.Daemon.Version != version {
		out.note("the daemon has version %s, this command %s; restart the daemon after an upgrade", s.Daemon.Version, version)
	}
	for _, d := range s.Devices {
		if d.Others > 0 {
			out.note("%s: %s unmanaged; see `xsched attach --help`", d.ID, count(d.Others, "program uses it", "programs use it"))
		}
	}
	if n := out.Programs[control.StateHeld] - grouped; n > 0 {
		out.note("%s suspended by hand; see `xsched resume --help`", count(n, "program is", "programs are"))
	}
	if grouped > 0 {
		out.note("%s suspended with a group on all nodes; see `kubectl xsched resume --help`", count(grouped, "program is", "programs are"))
	}
	out.Healthy = len(out.Problems) == 0
	return out
}

func (s *Status) problem(remedy, format string, args ...any) {
	s.Problems = append(s.Problems, Problem{Cause: fmt.Sprintf(format, args...), Remedy: remedy})
}

func (s *Status) note(format string, args ...any) {
	s.Notes = append(s.Notes, fmt.Sprintf(format, args...))
}

// host reports drivers and GPUs. It agrees with `xsched doctor`.
func (s *Status) host(snapshot *control.Snapshot) {
	s.Problems = append(s.Problems, snapshot.Problems...)
	if len(s.Problems) == 0 && len(s.Devices) == 0 {
		s.problem("see `xsched doctor`", "the daemon knows no GPU")
	}
	limited := map[string]int{} // GPUs by the reason for a low level
	for i := range s.Devices {
		if d := &s.Devices[i]; d.MaxLevel < 3 && d.LevelReason != "" && len(s.Problems) == 0 {
			limited[fmt.Sprintf("only level %d: %s", d.MaxLevel, d.LevelReason)]++
		}
	}
	for _, why := range slices.Sorted(maps.Keys(limited)) {
		s.note("%s: %s", count(limited[why], "GPU", "GPUs"), why)
	}
}

// programs reports those that suffer, and returns how many are suspended with a group.
func (s *Status) programs(all []control.Process) (grouped int) {
	for i := range all {
		p := &all[i]
		s.Programs[cmp.Or(p.State, control.StateIdle)]++
		if p.State == control.StateHeld && p.GroupHeld && !p.Held {
			grouped++
		}
		if Missed(p.SLO) {
			s.problem(sloRemedy(p), "%s misses its SLO of %s: %.1f%% of its requests meet it, %g%% should",
				program(p), duration(float64(p.SLO.TargetUS)), 100*p.SLO.Attainment, 100*p.SLO.Objective)
		}
		if cause, remedy, ok := strings.Cut(p.Impaired, "; "); ok {
			s.problem(remedy, "%s: %s", program(p), cause)
		}
		if p.PriorityReason != "" {
			s.note("%s: %s", program(p), p.PriorityReason)
		}
		for k := range p.Memory {
			if m := &p.Memory[k]; m.Evicted && m.AwayBytes > 0 {
				s.note("%s: %s of its memory are away by hand; see `xsched restore --help`", program(p), control.Amount(m.AwayBytes))
			}
		}
	}
	return grouped
}

// daemon reports what does not work in the daemon or was lost there.
func (s *Status) daemon(snapshot *control.Snapshot, stats *control.Stats) {
	tenants := map[int]string{}
	for i := range snapshot.List.Processes {
		p := &snapshot.List.Processes[i]
		tenants[p.PID] = program(p)
	}
	for _, t := range stats.Targets {
		name := cmp.Or(tenants[t.PID], fmt.Sprintf("program %d", t.PID))
		if t.Off != "" {
			s.problem("see the kernel's log for errors of the driver", "%s on %s is not scheduled: %s", name, t.Device, t.Off)
		}
		if t.StuckForMS > 0 {
			s.problem("see `xsched list --stats` and the daemon's log", "an operation on %s on %s is stuck for %d ms", name, t.Device, t.StuckForMS)
		}
	}
	for i := range stats.Parts {
		if p := &stats.Parts[i]; p.Late {
			s.problem(cmp.Or(p.Remedy, "see the daemon's log, and the disk or the reader that it waits for"), "%s", p)
		}
	}
	if unknown, programs := unknownEntryPoints(snapshot.List.Processes); unknown > 0 {
		s.Unknown = unknown
		s.note("%s looked up entry points that this release does not know (%d): their work is not accounted for; `xsched doctor -- COMMAND` names them",
			count(programs, "program", "programs"), unknown)
	}
	if stats.LogDropped > 0 {
		s.note("%d log lines were dropped", stats.LogDropped)
	}
	if a := stats.Alerts; a != nil && a.Lost > 0 {
		s.note("%s not delivered since the daemon started; try `xsched alert-test`", count(int(a.Lost), "alert was", "alerts were"))
	}
	if stats.DeviceErrors > 0 {
		s.note("%d device errors since the daemon started, see `xsched list --stats`", stats.DeviceErrors)
	}
}

// recently is the time that the daemon's history covers.
const recently = time.Hour

// sensors reports what the hardware warns of.
func (s *Status) sensors() {
	for i := range s.Devices {
		v := s.Devices[i].Sensors
		if v == nil {
			continue
		}
		if v.MemoryLow {
			s.note("GPU %s: %s; the next allocation may fail. `xsched list` shows who has it, `xsched evict --help` how to move some", s.Devices[i].ID, v.MemoryText())
		}
		for _, x := range v.Xids {
			if ago := s.now.Sub(time.Unix(0, x.LastNS)); ago < recently {
				s.note("GPU %s: its driver reported Xid %d %s, the last time %s ago; see `dmesg`", s.Devices[i].ID, x.Code, often(x.Count), duration(float64(ago.Microseconds())))
			}
		}
	}
}

// sensorText describes the hardware of a GPU; empty: nothing is known.
func sensorText(d *control.Device) string {
	if d.Sensors == nil {
		return ""
	}
	return screen.Clean(d.Sensors.Text())
}

// configuration reports where the configuration in force differs from what an operator may expect.
func (s *Status) configuration() {
	if s.Config.Changed {
		s.note("%s is not what the daemon has read; apply it with `sudo xsched config reload`", s.Config.File)
	}
	if keys := s.Config.Restart; len(keys) > 0 {
		s.note("new values of %s take effect at the next start of the daemon", strings.Join(keys, ", "))
	}
	if s.Mode == "off" {
		s.note("mode off: programs are not preempted")
	}
}

// sloRemedy is for a program that misses its SLO. A priority helps only one that waits for others.
func sloRemedy(p *control.Process) string {
	if l := p.Latency; l.Certain() && l.Wait.P99US < littleWait*l.Total.P99US {
		return fmt.Sprintf("its requests take P99 %s without waiting for others, so a higher priority does not help: shorten them, or raise the SLO", duration(l.Own.P99US))
	}
	return fmt.Sprintf("raise it with `xsched hint %d --priority N`, or lower the others", p.PID)
}

// littleWait is the part of a request's time below which waiting does not matter.
const littleWait = 0.05

// unknownEntryPoints returns how many were looked up, and by how many programs.
func unknownEntryPoints(all []control.Process) (total uint64, programs int) {
	for i := range all {
		total += all[i].Counters.Unhooked
		if all[i].Counters.Unhooked > 0 {
			programs++
		}
	}
	return total, programs
}

func podOf(p *control.Process) string {
	return control.PodName(p.Namespace, p.Pod, p.PodContainer)
}

// program names a tenant in a sentence.
func program(p *control.Process) string {
	if pod := podOf(p); pod != "" {
		return fmt.Sprintf("program %d of pod %s", p.PID, pod)
	}
	return fmt.Sprintf("program %d", p.PID)
}

// worst returns the tenant with the least error budget left if one misses its SLO, else the one that
// lost the largest part of its time to preemption; nil: none lost any.
func worst(all []control.Process) *Worst {
	var slo, lost *control.Process
	part := func(p *control.Process) float64 { return float64(p.LostNS) / max(float64(p.AgeMS)*1e6, 1) }
	for i := range all {
		p := &all[i]
		if Missed(p.SLO) && (slo == nil || p.SLO.BudgetLeft < slo.SLO.BudgetLeft) {
			slo = p
		}
		if p.LostNS > 0 && (lost == nil || part(p) > part(lost)) {
			lost = p
		}
	}
	switch {
	case slo != nil:
		return &Worst{slo.PID, User(slo), podOf(slo), slo.Command, fmt.Sprintf("misses its SLO of %s, P99 %s", duration(float64(slo.SLO.TargetUS)), latency(slo, true))}
	case lost != nil:
		return &Worst{lost.PID, User(lost), podOf(lost), lost.Command, fmt.Sprintf("was preempted %s and lost %.1f%% of its time", often(lost.Preemptions), min(100*part(lost), 100))}
	}
	return nil
}

// Write prints the status on one screen; width 0 means unlimited.
func (s *Status) Write(w io.Writer, width int) {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 4, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(table, "%s\t%s\n", name, screen.Clean(fmt.Sprintf(format, args...)))
	}
	if d := s.Daemon; d != nil {
		line("daemon", "running for %s, version %s, PID %d, user %s, in %s", duration(float64(s.up)/1e3), d.Version, d.PID, userName(d.UID), d.Dir)
		if s.Scheduling != "" {
			line("engine", "last heartbeat %s ago, scheduling class %s", duration(float64(s.HeartbeatAgeNS)/1e3), s.Scheduling)
		}
		line("config", "%s", s.configText())
		line("policy", "%s", s.Policy)
		line("mode", "%s", control.ModeText(s.Mode, s.ModeLevel))
		if len(s.Devices) == 0 {
			line("GPU", "none")
		}
		own := settings(&s.list)
		for i, g := range s.Devices {
			if i == maxStatusGPUs {
				line("", "%s", rest(s.Devices[i:]).String())
				break
			}
			line("GPU", "%s  %s used, %s, level up to %d, %s", g.ID, percent(g.Utilization), hardware(&g), g.MaxLevel, gpuNotes(&g, own[g.ID]))
			if text := sensorText(&g); text != "" {
				line("", "%s", text)
			}
		}
		line("programs", "%s", s.programsText())
		if s.HostMemory > 0 {
			line("host memory", "%s for moves of GPU memory, %s granted", control.Amount(s.HostMemory), control.Amount(s.HostMemoryGranted))
		}
	} else {
		line("daemon", "%s", s.absent)
	}
	if b := s.Worst; b != nil {
		line("worst", "%d %s (%s) %s", b.PID, screen.Cut(cmp.Or(screen.Clean(b.Command), "-"), 30), cmp.Or(b.Pod, b.User), b.Why)
	}
	for _, p := range s.Problems[:min(len(s.Problems), maxStatusLines)] {
		line("problem", "%s", strings.TrimSuffix(p.Cause+"; "+p.Remedy, "; "))
	}
	if n := len(s.Problems) - maxStatusLines; n > 0 {
		line("", "%d more problems; see `xsched status --json`", n)
	}
	for _, n := range s.Notes[:min(len(s.Notes), maxStatusLines)] {
		line("note", "%s", n)
	}
	if n := len(s.Notes) - maxStatusLines; n > 0 {
		line("", "%d more notes; see `xsched status --json`", n)
	}
	if s.Healthy {
		line("health", "no problems")
	}
	_ = table.Flush() // into memory
	for l := range strings.Lines(text.String()) {
		fmt.Fprintln(w, screen.Cut(strings.TrimRight(l, " \n"), width))
	}
}

// The status fits one screen.
const (
	maxStatusGPUs  = 8
	maxStatusLines = 5
)

// hardware names a GPU and its driver.
func hardware(g *control.Device) string {
	if g.Name == "" || g.Driver == "" {
		return cmp.Or(g.Name, g.Driver, "unknown")
	}
	return g.Name + ", driver " + g.Driver
}

// programsText counts the programs by state.
func (s *Status) programsText() string {
	var states []string
	total := 0
	for _, state := range []string{control.StateRunning, control.StatePreempted, control.StateWaiting, control.StateIdle, control.StateHeld, control.StateAway} {
		if n := s.Programs[state]; n > 0 {
			states = append(states, fmt.Sprintf("%d %s", n, state))
			total += n
		}
	}
	return strings.TrimSuffix(fmt.Sprintf("%d: %s", total, strings.Join(states, ", ")), ": ")
}

// configText names the file in force and the settings that differ from it.
func (s *Status) configText() string {
	text := cmp.Or(s.Config.File, "no file")
	if s.Config.ReadNS != 0 {
		text += fmt.Sprintf(", read %s ago", duration(float64(s.read)/1e3))
	}
	if keys := s.Config.RunTime; len(keys) > 0 {
		text += "; set at run time: " + strings.Join(keys, ", ")
	}
	return text
}

func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return strconv.Itoa(uid)
}

// count returns a number with its noun.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// often says how many times.
func often(n uint64) string {
	if n == 1 {
		return "once"
	}
	return number(n) + " times"
}
