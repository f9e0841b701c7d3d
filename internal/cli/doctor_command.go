// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"xsched/internal/atomicfile"
	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/doctor"
	"xsched/internal/driver"
	"xsched/internal/driver/registry"
)

const (
	trialPeriod = 50 * time.Millisecond // between two looks at the command's processes
	trialGrace  = 5 * time.Second       // from SIGTERM to SIGKILL
)

// trialOptions are the flags for `doctor -- CMD`.
type trialOptions struct {
	virtual bool
	limit   time.Duration // 0: until CMD ends
	asJSON  bool
}

// tryCommand runs a command under the shim and reports what of its GPU work is scheduled.
func tryCommand(ctx context.Context, a *app, args []string, o trialOptions) error {
	program, err := findProgram(args[0])
	if err != nil {
		return err
	}
	log, err := os.MkdirTemp("", "xsched-doctor-")
	if err != nil {
		return fmt.Errorf("create a folder for the shim's log: %w; set TMPDIR to a writable directory", atomicfile.WithoutPath(err))
	}
	defer os.RemoveAll(log)
	env := newEnvironment(os.Environ())
	private, err := trialDaemon(ctx, a, env, o.virtual)
	if err != nil {
		return err
	}
	native := checkPreload(program)
	platform, err := (&launch{a, env, needs{virtual: o.virtual, native: native}}).joinDaemon(ctx)
	if err != nil {
		return err
	}
	if err := env.preloadShim(platform, native.musl); err != nil {
		return err
	}
	daemon, running, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer daemon.Close()
	w := &watch{
		daemon: daemon, logFile: filepath.Join(log, "shim.log"), users: usersOf(running),
		seen: map[int]*doctor.Process{},
	}
	env.set("XSCHED_LOG", w.logFile)
	env.set("XSCHED_LOG_LEVEL", "info")
	trial := doctor.Trial{Command: args, Daemon: running.Dir, Private: private}
	if trial.Ended, trial.Failed, err = runTrial(ctx, a, program, args, env, o, w); err != nil {
		return err
	}
	trial.Processes = w.processes()
	report := doctor.Judge(trial)
	if err := a.show(report, nil, o.asJSON, func(out io.Writer) { writeTrial(out, report, a.colours()) }); err != nil {
		return err
	}
	if !report.OK {
		return errors.New(verdict(report) + "; see the report above")
	}
	return nil
}

// trialDaemon starts a private daemon if no other one answers.
func trialDaemon(ctx context.Context, a *app, env *environment, virtual bool) (private bool, err error) {
	if !wantsPrivate(a, env, false) {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		c, _, err := a.connect(ctx)
		if err == nil {
			c.Close()
			return false, nil
		}
		if !errors.Is(err, client.ErrNoDaemon) {
			return false, err
		}
	}
	return true, startPrivate(ctx, a, env, "", virtual)
}

// usersOf opens the drivers that a daemon uses, to ask them which GPUs a process uses.
func usersOf(running control.Version) []driver.Instance {
	o := driver.Options{Place: driver.Place{Dir: running.Dir}, Version: version}
	if running.Virtual {
		if p, err := findPlatform(running.Platform); err == nil {
			o.Place = driver.Place{Dir: running.Dir, Virtual: true, Socket: p.Socket(running.Dir)}
		}
	}
	o.StateDir = stateDir(running.Dir, running.Virtual)
	var out []driver.Instance
	for _, d := range registry.All() {
		if running.Virtual && d.Name() != running.Platform {
			continue
		}
		if i, err := d.Open(o); err == nil {
			out = append(out, i)
		}
	}
	return out
}

// runTrial runs CMD as a child and observes it until it ends or its time is over.
func runTrial(ctx context.Context, a *app, program string, args []string, env *environment, o trialOptions, w *watch) (ended string, failed bool, err error) {
	// Orphans of CMD become our children, so that they stay in view.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	cmd := exec.Command(program)
	cmd.Args, cmd.Env = args, env.list()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, a.stdout, a.stderr
	if o.asJSON {
		cmd.Stdout = a.stderr
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return "", false, exitError{exitNotExecutable, fmt.Errorf("run %s: %w", args[0], atomicfile.WithoutPath(err))}
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	w.main = cmd.Process.Pid
	var limit <-chan time.Time
	if o.limit > 0 {
		limit = time.After(o.limit)
	}
	tick := time.NewTicker(trialPeriod)
	defer tick.Stop()
	stopped := false
	stop := func(s os.Signal) {
		stopped = true
		_ = cmd.Process.Signal(s)
		time.AfterFunc(trialGrace, func() { _ = cmd.Process.Kill() })
	}
	for {
		select {
		case err := <-done:
			w.readLog()
			state := cmd.ProcessState
			if state == nil {
				return "", false, fmt.Errorf("wait for %s: %w", args[0], err)
			}
			if stopped {
				return "", false, nil
			}
			return ending(state), !state.Success(), nil
		case s := <-signals:
			// The keyboard's interrupt reaches CMD as well.
			if s == syscall.SIGINT && term.IsTerminal(int(os.Stdin.Fd())) {
				stopped = true
				continue
			}
			stop(s)
		case <-limit:
			stop(syscall.SIGTERM)
		case <-tick.C:
			w.look(ctx)
		}
	}
}

// ending describes the end of a process.
func ending(s *os.ProcessState) string {
	if status, ok := s.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return "signal " + unix.SignalName(status.Signal())
	}
	return fmt.Sprintf("exit code %d", s.ExitCode())
}

func writeTrial(w io.Writer, r doctor.CommandReport, c colours) {
	where := "daemon in " + r.Daemon
	if r.Private {
		where = "private daemon"
	}
	fmt.Fprintf(w, "checked with a %s: %s\n", where, printable(strings.Join(r.Command, " ")))
	writeChecks(w, r.Checks, c)
	fmt.Fprintln(w, verdict(r))
}

func verdict(r doctor.CommandReport) string {
	switch {
	case r.OK:
		return "all GPU work that was observed is scheduled"
	case !r.UsedGPU():
		return "no GPU work of the command was observed"
	}
	return "not all GPU work of the command is scheduled"
}
