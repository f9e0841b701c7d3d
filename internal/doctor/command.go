// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Trial is what was observed while a command ran under the shim.
type Trial struct {
	Command []string `json:"command"`
	// Ended tells how the command ended, for example "exit code 0"; empty: it was stopped on time.
	Ended  string `json:"ended"`
	Failed bool   `json:"failed"` // it ended by itself, but not with success
	// Daemon is the directory of the daemon that scheduled it; Private: started for it.
	Daemon  string `json:"daemon"`
	Private bool   `json:"private"`
	// Processes are the command and its descendants; the command is the first.
	Processes []Process `json:"processes"`
}

// Process is one process of a trial.
type Process struct {
	PID    int    `json:"pid"`
	Name   string `json:"name"`
	Joined bool   `json:"joined"` // the shim connected it to the daemon
	// Native is why the loader does not load the shim; empty: it does.
	Native string `json:"native,omitempty"`
	// NoPreload: the process was started without the shim in LD_PRELOAD.
	NoPreload bool `json:"no_preload"`
	// GPUs that it uses, by the driver's evidence.
	GPUs []string `json:"gpus"`
	// Queues counts its queues; Level is the lowest of their levels, LevelReason why it is not 3.
	Queues      int    `json:"queues"`
	Level       int    `json:"level"`
	LevelReason string `json:"level_reason,omitempty"`
	Calls       Calls  `json:"calls"`
	// Preemption is the result of suspending and resuming it once.
	Preemption Preemption `json:"preemption"`
	Log        []string   `json:"log"` // warnings and errors of the shim
}

// Calls are the driver calls that the shim saw.
type Calls struct {
	Hooked   uint64 `json:"hooked"`
	Launches uint64 `json:"launches"`
	Copies   uint64 `json:"copies"`
	Syncs    uint64 `json:"syncs"`
	Unhooked uint64 `json:"unhooked"` // entry points that it looked up and the shim does not know
}

// Preemption is the result of a suspension on request.
type Preemption struct {
	Tried bool   `json:"tried"`
	Error string `json:"error,omitempty"`
	Level int    `json:"level,omitempty"`
}

// CommandReport is the judgement of a trial.
type CommandReport struct {
	Schema int  `json:"schema"`
	OK     bool `json:"ok"` // all GPU work that was observed is scheduled
	Trial
	Checks []Check `json:"checks"` // the most important first
}

// Judge says what the trial shows, the most important first.
func Judge(t Trial) CommandReport {
	r := CommandReport{Schema: Schema, Trial: t}
	r.Checks = []Check{}
	scheduled, used := false, t.UsedGPU()
	for i := range t.Processes {
		p := &t.Processes[i]
		r.Checks = append(r.Checks, judgeProcess(p, i == 0)...)
		scheduled = scheduled || p.scheduled()
	}
	switch {
	case !used && len(t.Processes) > 0 && t.Processes[0].Native != "":
		r.Checks[0].Status = Missing // the likely reason
	case !used:
		r.Checks = append(r.Checks, Check{
			Name: "GPU", Status: Missing, Detail: "no process of the command used a GPU while it was observed",
			Remedy: "give a command that does; for a service add --for 30s and send it requests",
		})
	}
	if t.Failed {
		r.Checks = append(r.Checks, Check{Name: "command", Status: Note, Detail: "ended with " + t.Ended})
	}
	slices.SortStableFunc(r.Checks, func(a, b Check) int {
		return cmp.Compare(slices.Index(severity, a.Status), slices.Index(severity, b.Status))
	})
	r.OK = scheduled && len(r.Checks) > 0 && r.Checks[0].Status != Missing
	return r
}

// UsedGPU reports whether a process used a GPU while it was observed.
func (t *Trial) UsedGPU() bool {
	return slices.ContainsFunc(t.Processes, func(p Process) bool { return p.usesGPU() })
}

func (p *Process) usesGPU() bool { return p.Queues > 0 || len(p.GPUs) > 0 }

// scheduled reports that the daemon knows when the process has work.
func (p *Process) scheduled() bool {
	return p.Joined && p.Queues > 0 && p.Calls.Launches+p.Calls.Copies > 0
}

// judgeProcess examines one process; main is the command itself.
func judgeProcess(p *Process, main bool) []Check {
	name := fmt.Sprintf("%s (pid %d)", p.Name, p.PID)
	check := func(s Status, remedy, format string, args ...any) Check {
		return Check{Name: name, Status: s, Detail: fmt.Sprintf(format, args...), Remedy: remedy}
	}
	var out []Check
	switch {
	case p.Joined && !p.usesGPU():
		out = append(out, check(OK, "", "joined; it used no GPU"))
	case p.Joined && p.Calls.Hooked == 0:
		out = append(out, check(Missing, ownRemedy, "it uses a GPU, but the shim saw none of its calls: it finds the driver's functions by itself"))
	case p.Joined && !p.scheduled():
		out = append(out, check(Limited, "give it work; for a service add --for 30s and send it requests",
			"joined; %d calls seen, but neither a launch nor a copy", p.Calls.Hooked))
	case p.Joined:
		out = append(out, judgeCalls(p, check)...)
	case len(p.GPUs) > 0:
		why, remedy := p.bypass()
		out = append(out, check(Missing, remedy, "it uses %s without scheduling: %s", strings.Join(p.GPUs, ", "), why))
	case main && p.Native != "":
		out = append(out, check(Limited, linkRemedy, "%s", p.Native))
	}
	for _, line := range p.Log {
		out = append(out, check(Note, "", "%s", line))
	}
	return out
}

const (
	linkRemedy = "use `xsched attach PID` on it, or link it dynamically with glibc"
	ownRemedy  = "use `xsched attach PID` on it, or let it use dlsym or the functions that the driver's library exports"
)

// bypass explains why a process that uses a GPU did not join.
func (p *Process) bypass() (why, remedy string) {
	switch {
	case p.Native != "":
		return p.Native, linkRemedy
	case p.NoPreload:
		return "it was started without the shim", "keep LD_PRELOAD in its environment (env -i, sudo and some launchers drop it), or use `xsched attach PID`"
	case len(p.Log) > 0:
		return "its shim did not connect", "see the notes, or use `xsched attach PID`"
	default:
		return "the shim saw none of its calls, because it finds the driver's functions by itself", ownRemedy
	}
}

// judgeCalls examines a scheduled process.
func judgeCalls(p *Process, check func(Status, string, string, ...any) Check) []Check {
	c := p.Calls
	out := []Check{check(OK, "", "joined; %d calls seen: %d launches, %d copies, %d waits", c.Hooked, c.Launches, c.Copies, c.Syncs)}
	if c.Unhooked > 0 {
		out = append(out, check(Limited, "use a newer XSched; the notes name them",
			"entry points unknown to the shim were looked up (%d): their work is not accounted for", c.Unhooked))
	}
	switch {
	case p.Preemption.Error != "":
		out = append(out, check(Missing, "run `xsched doctor --self-test`", "preemption failed: %s", p.Preemption.Error))
	case p.Preemption.Tried:
		out = append(out, check(OK, "", "preemption works: suspended at level %d and resumed", p.Preemption.Level))
	default:
		out = append(out, check(Note, "", "preemption was not tried, because its queues had no work when looked at"))
	}
	if p.Level < 3 {
		why := p.LevelReason
		if why == "" {
			why = "as requested"
		}
		out = append(out, check(Limited, "see `xsched doctor`", "level %d: %s", p.Level, why))
	}
	return out
}
