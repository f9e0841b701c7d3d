// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"xsched/internal/control"
	"xsched/internal/control/upstream"
	"xsched/internal/daemon"
	"xsched/internal/identity"
	"xsched/internal/logging"
	"xsched/internal/model"
	"xsched/internal/policy"
	"xsched/internal/virtual"
)

// A private scheduler is a daemon for one program and its children, in a directory of its own. The
// program must not get an unexpected child, so `run` starts `private`, which starts the daemon and
// exits; init adopts the daemon. The shim starts `private` for a program that asks for the local
// scheduler itself (shim/core/private.c).

const (
	envScheduler    = "XSCHED_SCHEDULER"
	envSchedulerOld = "XSCHED_SCHED" // another spelling in use
	envPolicy       = "XSCHED_POLICY"
	envDir          = "XSCHED_DIR"
	envBinary       = "XSCHED_BINARY" // this program, which the shim starts for a private scheduler

	envAuto = "XSCHED_AUTO_XQUEUE"

	schedulerGlobal = "GLB"
	schedulerLocal  = "LCL"
	schedulerApp    = "APP"

	privatePrefix = "xsched-local-"
	lookPeriod    = 200 * time.Millisecond // of the check for remaining children
)

// scheduler is the requested scheduler in upper case.
func (e *environment) scheduler() string {
	for _, name := range []string{envScheduler, envSchedulerOld} {
		if value := e.get(name); value != "" {
			return strings.ToUpper(value)
		}
	}
	return ""
}

// wantsPrivate reports whether to start a private scheduler. As in upstream's library, a known policy
// in the environment is that of a private one, whatever scheduler is requested; a daemon that the caller names
// keeps its own. A program that already runs under a private one shares it with its children.
func wantsPrivate(a *app, env *environment, asked bool) bool {
	return asked || env.get(envSocket) == "" &&
		(env.scheduler() == schedulerLocal || policy.Number(env.get(envPolicy)) != 0 && namedDir(a, env) == "")
}

// namedDir returns the directory of the daemon that the caller names, if any.
func namedDir(a *app, env *environment) string { return cmp.Or(a.dir, env.get(envDir)) }

// warnVariables names the variables of upstream's library that have no effect here, and a policy that
// has or lacks a surprising one.
func warnVariables(a *app, env *environment, private, asked bool) {
	s, name := env.scheduler(), env.get(envPolicy)
	switch {
	case name == "" || s == schedulerLocal || env.get(envSocket) != "":
	case private && s != "":
		a.warn("%s selects a private scheduler, so %s=%s is ignored; set the daemon's policy with `xsched policy`", envPolicy, envScheduler, s)
	case private && !asked:
		a.warn("%s=%s selects a private scheduler; unset it to use the machine's daemon", envPolicy, name)
	case !private && policy.Number(name) == 0:
		a.warn("%s=%s is ignored; use one of %s", envPolicy, name, strings.Join(policy.Names(), ", "))
	case !private:
		a.warn("%s=%s is ignored, because the daemon in %s has its own; use --local for a private one", envPolicy, name, namedDir(a, env))
	}
	warnNames(a, env)
	for _, v := range upstream.Variables() {
		if v.Ignored(env.get(v.Name)) {
			a.warn("%s has no effect: %s", v.Name, v.Instead)
		}
	}
}

// warnNames names a scheduler that does not exist, and variables of queues that do not.
func warnNames(a *app, env *environment) {
	for _, name := range []string{envScheduler, envSchedulerOld} {
		value := env.get(name)
		switch strings.ToUpper(value) {
		case "", schedulerGlobal, schedulerLocal, schedulerApp:
		default:
			a.warn("%s=%s is ignored; use GLB, LCL or APP (%s sets a policy)", name, value, envPolicy)
		}
	}
	for _, pair := range env.list() {
		name, _, _ := strings.Cut(pair, "=")
		known := name == envAuto || slices.ContainsFunc(model.HintFields(), func(f model.HintField) bool { return f.Env == name })
		if strings.HasPrefix(name, envAuto) && !known {
			a.warn("%s is ignored: there is no such variable; see `xsched run --help` for the options", name)
		}
	}
}

// startPrivate starts a private daemon that ends with this process and points env at it.
func startPrivate(ctx context.Context, a *app, env *environment, policy string, virtual bool) error {
	if policy == "" {
		policy = env.get(envPolicy)
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	args := []string{"private", "--pid", strconv.Itoa(os.Getpid()), "--policy", policy}
	if virtual {
		args = append(args, "--virtual")
	}
	cmd := exec.CommandContext(ctx, exe, args...)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		text := strings.TrimPrefix(oneLine(complaint.String()), "xsched: ")
		if text == "" {
			text = err.Error()
		}
		return fmt.Errorf("start private scheduler: %s", text)
	}
	dir := strings.TrimSpace(string(out))
	a.dir = dir
	env.set(envScheduler, schedulerLocal)
	env.set(envDir, dir)
	if policy != "" {
		env.set(envPolicy, policy)
	}
	return nil
}

func privateCommand(a *app) *cobra.Command {
	var (
		o      daemon.Options
		pid    int
		folder string
		ready  int
	)
	c := &cobra.Command{
		Use:    "private",
		Short:  "Run a private scheduler for one program (started by run --local)",
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if folder == "" {
				return launchPrivate(cmd.Context(), a.stdout, pid, o.Policy, o.Virtual)
			}
			report := newReadiness(ready)
			o.Dir, o.Version, o.Private = folder, version, true
			useDevice(&o)
			if err := setSelfTest(&o, selfTestAuto); err != nil {
				return err
			}
			err := servePrivate(cmd.Context(), a, o, pid, report)
			report.done(err)
			return err
		},
	}
	f := c.Flags()
	f.IntVar(&pid, "pid", 0, "`PID` of the program")
	f.StringVar(&o.Policy, "policy", "", "initial policy")
	f.BoolVar(&o.Virtual, "virtual", false, "use a private virtual GPU")
	f.StringVar(&folder, "folder", "", "run the daemon in `DIR`")
	f.IntVar(&ready, "ready-fd", -1, "file descriptor to report readiness on")
	return c
}

// useDevice makes a private daemon use the virtual GPU that its program uses, if any.
func useDevice(o *daemon.Options) {
	if p, socket, ok := virtual.Selected(os.Getenv); ok && !o.Virtual {
		o.Virtual, o.Platform, o.VGPUSocket = true, p.Name, socket
	}
}

// launchPrivate starts the daemon and prints its directory when it is ready.
func launchPrivate(ctx context.Context, out io.Writer, pid int, policy string, virtual bool) error {
	dir, err := privateDir()
	if err != nil {
		return err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("create pipe: %w", err)
	}
	defer reader.Close()
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	args := []string{"private", "--pid", strconv.Itoa(pid), "--folder", dir, "--policy", policy, "--ready-fd", "3"}
	if virtual {
		args = append(args, "--virtual")
	}
	// Inherited descriptors belong to the program. A pipe that the daemon kept open would outlive it.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	cmd := exec.Command(exe, args...)
	cmd.ExtraFiles = []*os.File{writer}
	// A new session: an interrupt from the keyboard is for the program, whose end stops the daemon.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = writer.Close()
	if err == nil {
		err = awaitReady(ctx, reader)
	}
	if err != nil {
		if cmd.Process != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		_ = os.RemoveAll(dir)
		return err
	}
	fmt.Fprintln(out, dir)
	return nil
}

// privateDir creates a directory whose socket paths fit into a socket address.
func privateDir() (string, error) {
	const room = 60 // of 108 bytes
	for _, base := range []string{os.Getenv("XDG_RUNTIME_DIR"), os.TempDir(), "/tmp"} {
		if base == "" || len(base) > room {
			continue
		}
		if dir, err := os.MkdirTemp(base, privatePrefix); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("can't create a directory for the private scheduler; set TMPDIR to a writable directory")
}

// servePrivate runs the daemon while the program or one of its connected children lives.
func servePrivate(ctx context.Context, a *app, o daemon.Options, pid int, report *readiness) error {
	defer func() { _ = os.RemoveAll(o.Dir) }()
	program, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("watch process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(program) }()
	file, err := os.OpenFile(filepath.Join(o.Dir, "serve.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("create log: %w", err)
	}
	defer file.Close()
	log := logging.New(file, func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) })
	defer log.Close(flushTime)
	o.Log = slog.New(log)
	o.Mode = model.ModeLive
	ctx, stop := untilSignal(ctx)
	defer stop()
	ready := func(c control.Control) {
		report.done(nil)
		go func() {
			defer stop()
			awaitEnd(ctx, program)
			for ctx.Err() == nil && hasClients(ctx, c) {
				select {
				case <-ctx.Done():
				case <-time.After(lookPeriod):
				}
			}
		}()
	}
	return serveDaemon(ctx, a, o, virtual.Options{}, webOptions{addr: webOff}, ready)
}

// awaitEnd waits for the end of a pidfd's process.
func awaitEnd(ctx context.Context, pidfd int) {
	for ctx.Err() == nil {
		p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, int(time.Second.Milliseconds()))
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func hasClients(ctx context.Context, c control.Control) bool {
	list, err := c.List(ctx, control.Caller{User: identity.OnHost(os.Geteuid())})
	return err == nil && len(list.Processes) > 0
}
