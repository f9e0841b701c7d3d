// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/doctor"
	"xsched/internal/driver"
	"xsched/internal/embedded"
)

const (
	trialHold    = 20 * time.Millisecond // how long the trial keeps a process suspended
	maxTrialLogs = 8                     // lines of the shim's log per process
)

// watch collects what is known of a command's processes.
type watch struct {
	daemon  *client.Client
	users   []driver.Instance
	logFile string
	main    int // PID of the command
	seen    map[int]*doctor.Process
}

// look examines all processes of the command that live now.
func (w *watch) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	pids := descendants(os.Getpid())
	list, err := w.daemon.List(ctx)
	if err != nil {
		list.Processes = nil
	}
	for _, pid := range pids {
		p := w.of(pid)
		for _, g := range w.users {
			for _, id := range g.UsedBy(pid) {
				if !slices.Contains(p.GPUs, id.String()) {
					p.GPUs = append(p.GPUs, id.String())
				}
			}
		}
		i := slices.IndexFunc(list.Processes, func(l control.Process) bool { return l.PID == pid && !l.Attached })
		if i < 0 {
			w.inspect(p)
			continue
		}
		keepView(p, &list.Processes[i])
		if !p.Preemption.Tried && !list.Processes[i].Held && slices.ContainsFunc(list.Processes[i].Queues, func(q control.Queue) bool { return q.Busy }) {
			p.Preemption = w.preempt(ctx, pid)
		}
	}
}

// of returns the record of a process.
func (w *watch) of(pid int) *doctor.Process {
	if w.seen[pid] == nil {
		w.seen[pid] = &doctor.Process{PID: pid, Name: strconv.Itoa(pid), GPUs: []string{}, Log: []string{}}
	}
	return w.seen[pid]
}

// keepView keeps what the daemon knows of a process.
func keepView(p *doctor.Process, l *control.Process) {
	p.Joined, p.Native, p.NoPreload = true, "", false
	if name := control.TenantName(l.Command); name != "" {
		p.Name = name
	}
	c := l.Counters
	p.Calls = doctor.Calls{Hooked: c.HookedCalls, Launches: c.Launches, Copies: c.Copies, Syncs: c.Syncs, Unhooked: c.Unhooked}
	p.Queues = max(p.Queues, len(l.Queues))
	for i, q := range l.Queues {
		if i == 0 || q.Level < p.Level {
			p.Level, p.LevelReason = q.Level, q.LevelReason
		}
	}
}

// inspect finds out why a process has not joined.
func (w *watch) inspect(p *doctor.Process) {
	if p.Joined {
		return
	}
	proc := func(name string) string { return filepath.Join("/proc", strconv.Itoa(p.PID), name) }
	if text, err := os.ReadFile(proc("cmdline")); err == nil && len(text) > 0 {
		p.Name = cmp.Or(control.TenantName(strings.ReplaceAll(string(text), "\x00", " ")), p.Name)
	}
	if exe, err := os.Readlink(proc("exe")); err == nil {
		p.Native = checkPreload(exe).reason
	}
	if text, err := os.ReadFile(proc("environ")); err == nil && len(text) > 0 {
		p.NoPreload = !slices.ContainsFunc(strings.Split(string(text), "\x00"), func(pair string) bool {
			return strings.HasPrefix(pair, "LD_PRELOAD=") && strings.Contains(pair, embedded.Shim)
		})
	}
}

// preempt suspends a busy process for a moment.
func (w *watch) preempt(ctx context.Context, pid int) doctor.Preemption {
	before := w.errorsOf(ctx, pid)
	reply, err := w.daemon.Suspend(ctx, pid)
	if err != nil {
		return doctor.Preemption{Tried: true, Error: oneLine(err.Error())}
	}
	out := doctor.Preemption{Tried: true, Level: reply.Level}
	time.Sleep(trialHold)
	if _, err := w.daemon.Resume(ctx, pid); err != nil && alive(pid) {
		out.Error = oneLine(err.Error())
	}
	if n := w.errorsOf(ctx, pid); out.Error == "" && n > before {
		out.Error = fmt.Sprintf("%d operations on its hardware queues failed", n-before)
	}
	return out
}

// errorsOf counts the failed operations on a process's hardware queues.
func (w *watch) errorsOf(ctx context.Context, pid int) (n uint64) {
	stats, err := w.daemon.Stats(ctx)
	if err != nil {
		return 0
	}
	for _, t := range stats.Targets {
		if t.PID == pid {
			n += t.Errors
		}
	}
	return n
}

func alive(pid int) bool {
	_, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid)))
	return err == nil
}

// reLog is a line of the shim's log.
var reLog = regexp.MustCompile(`^\S+ xsched\[(\d+)\] (\w+): (.*)$`)

// readLog adds what the shims of the command's processes logged. It also shows that a process joined
// that ended between two looks.
func (w *watch) readLog() {
	text, err := os.ReadFile(w.logFile)
	if err != nil {
		return
	}
	for line := range strings.Lines(string(text)) {
		m := reLog.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		pid, err := strconv.Atoi(m[1])
		if err != nil {
			continue
		}
		p := w.of(pid)
		switch m[2] {
		case "info":
			p.Joined = p.Joined || strings.HasPrefix(m[3], "joined ")
		case "warn", "error":
			if len(p.Log) < maxTrialLogs && !slices.Contains(p.Log, m[3]) {
				p.Log = append(p.Log, m[3])
			}
		}
	}
}

// processes returns the records, the command first.
func (w *watch) processes() []doctor.Process {
	out := []doctor.Process{}
	for _, p := range w.seen {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b doctor.Process) int {
		if (a.PID == w.main) != (b.PID == w.main) {
			return map[bool]int{true: -1, false: 1}[a.PID == w.main]
		}
		return cmp.Compare(a.PID, b.PID)
	})
	return out
}

// descendants returns the processes below one.
func descendants(pid int) []int {
	var out []int
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range tasks {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		for word := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(word); err == nil {
				out = append(append(out, child), descendants(child)...)
			}
		}
	}
	return out
}
