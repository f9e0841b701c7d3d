// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/model"
)

// The shim's environment variables; upstream XSched's names where they exist.
const (
	envSocket = "XSCHED_SOCKET"
)

// runner is the command run.
type runner struct {
	app     *app
	hints   hintFlags
	virtual bool
	local   bool
	policy  string
	require bool
}

func runCommand(a *app) *cobra.Command {
	r := &runner{app: a}
	c := &cobra.Command{
		Use:   "run [flags] -- CMD [ARG...]",
		Short: "Run a program under the scheduler",
		Long: `Replace this process with CMD and preload the shim into it. Exit code, signals,
standard streams and the PID are those of CMD. Child processes inherit the shim
and the hints.

Without a daemon, CMD runs natively and a warning is printed; it connects to a
daemon that starts later. So does a program that can't load the shim, because it
is statically linked or uses musl; its children are scheduled. If the shim can't
be unpacked into the cache folder, CMD and its children run natively. With
--require, CMD is not started in these cases. With --local (or
XSCHED_SCHEDULER=LCL, or XSCHED_POLICY), CMD and its children get a private
daemon that ends with them. XSCHED_DISABLE=1 disables the
shim; XSCHED_LOG=FILE enables its log.`,
		Example: `  xsched run -- python serve.py
  xsched run --priority -10 -- python train.py
  xsched run --share 75 -- ./job   # under policy UP
  xsched run --slo 20ms -- python serve.py   # under policy SLO
  xsched run --gang ranks -- python train.py --rank 0
  xsched run --local --policy UP -- ./several-workers
  xsched run --virtual -- ./my-program`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no command given; use `xsched run [flags] -- CMD [ARG...]`")
			}
			return nil
		},
		RunE: r.run,
	}
	r.flags(c)
	return c
}

func (r *runner) flags(c *cobra.Command) {
	c.Flags().SetInterspersed(false) // flags after CMD belong to CMD, with or without --
	r.hints.add(c)
	c.Flags().BoolVar(&r.local, "local", false, "start a private daemon for CMD and its children")
	c.Flags().StringVar(&r.policy, "policy", "", "with --local: scheduling policy (default $XSCHED_POLICY, else HPF)")
	_ = c.RegisterFlagCompletionFunc("policy", completePolicies)
	c.Flags().BoolVar(&r.require, "require", false, "fail instead of running CMD without scheduling")
	c.Flags().BoolVar(&r.virtual, "virtual", false, "run CMD on the virtual GPU of a daemon started with serve --virtual")
}

func (r *runner) run(cmd *cobra.Command, args []string) error {
	want := needs{virtual: r.virtual, require: r.require, hints: r.hints.changed(cmd)}
	env, given := newEnvironment(os.Environ()), map[string]string{} // hints by variable
	err := r.hints.read(cmd, func(f *model.HintField, v model.HintValue) {
		given[f.Env] = f.EnvText(v)
		switch f.Name {
		case "level":
			want.level = model.Level(v.Number)
		case "priority", "lax_priority", "critical_priority":
			want.priority = max(want.priority, int(v.Number))
		}
	})
	if err != nil {
		return err
	}
	program, err := findProgram(args[0])
	if err != nil {
		return err
	}
	want.native = checkPreload(program)
	l := &launch{r.app, env, want}
	if want.native.reason != "" {
		if err := l.runNatively(want.native.reason); err != nil {
			return err
		}
	}
	private := wantsPrivate(r.app, env, r.local)
	warnVariables(r.app, env, private, r.local)
	if r.policy != "" && !private {
		return usagef("--policy sets the policy of a private daemon; add --local, or use `xsched policy`")
	}
	if _, err := unpackFor(""); err != nil { // before starting anything
		if err := l.withoutShim(err); err != nil {
			return err
		}
		return replaceWith(program, args, env)
	}
	if private {
		if err := startPrivate(cmd.Context(), r.app, env, r.policy, r.virtual); err != nil {
			return err
		}
	}
	platform, err := l.joinDaemon(cmd.Context())
	if err != nil {
		return err
	}
	if err := env.preloadShim(platform, want.native.musl); err != nil {
		return err
	}
	for name, value := range given {
		env.set(name, value)
	}
	return replaceWith(program, args, env)
}

// replaceWith executes CMD in this process. It returns only if that failed.
func replaceWith(program string, args []string, env *environment) error {
	err := syscall.Exec(program, args, env.list())
	if errors.Is(err, syscall.ENOENT) {
		return exitError{exitNotFound, fmt.Errorf("run %s: interpreter not found; check the first line of the script or the ELF interpreter", args[0])}
	}
	return exitError{exitNotExecutable, fmt.Errorf("run %s: %w; check that it is an executable for this machine", args[0], err)}
}

// findProgram resolves CMD and returns a shell's exit codes.
func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, exec.ErrDot):
		return "", exitError{exitNotFound, fmt.Errorf("run %s: found only in the current directory; use ./%s", name, name)}
	case errors.Is(err, fs.ErrPermission), isDirectory(name):
		return "", exitError{exitNotExecutable, fmt.Errorf("run %s: not executable; check its mode with `ls -l`", name)}
	default:
		return "", exitError{exitNotFound, fmt.Errorf("run %s: command not found; check the spelling and PATH", name)}
	}
}

func isDirectory(name string) bool {
	info, err := os.Stat(name)
	return strings.Contains(name, "/") && err == nil && info.IsDir()
}

// preload is the configuration of the dynamic loader.
type preload struct {
	libraries []string
	folder    string // of the virtual driver library, or empty
}

// preloadShim makes a program load the shim and, on a virtual GPU of a platform, its libraries.
func (e *environment) preloadShim(platform string, musl bool) error {
	preload, err := unpackFor(platform)
	if err != nil {
		return err
	}
	if musl {
		preload.libraries = preload.libraries[:1] // loads in any program, and its children may use glibc
	}
	e.prepend("LD_PRELOAD", preload.libraries...)
	// Without this, gcc's AddressSanitizer refuses to start behind a preloaded library.
	e.prepend("ASAN_OPTIONS", "verify_asan_link_order=0")
	if preload.folder != "" {
		e.prepend("LD_LIBRARY_PATH", preload.folder)
	}
	if exe, err := os.Executable(); err == nil {
		e.set(envBinary, exe)
	}
	return nil
}

// needs is what the daemon must support for this run.
type needs struct {
	priority int
	level    model.Level
	virtual  bool
	require  bool
	native   native // CMD itself runs without scheduling
	hints    []model.HintField
}

// launch prepares the environment in which a command runs.
type launch struct {
	app  *app
	env  *environment
	want needs
}

// runNatively warns that CMD runs without scheduling, or refuses that.
func (l *launch) runNatively(reason string) error {
	if l.want.require {
		return &control.Error{Kind: control.ErrNotSupported, Cause: reason, Remedy: "run it without --require"}
	}
	l.app.warn("running without scheduling: %s", reason)
	return nil
}

// withoutShim warns that CMD runs natively because the shim can't be unpacked, for example into a
// home folder that is not writable. The virtual GPU needs its libraries, so it has no native run.
func (l *launch) withoutShim(cause error) error {
	if l.want.require || l.want.virtual {
		return cause
	}
	l.app.warn("running without scheduling: %s", oneLine(cause.Error()))
	return nil
}

// joinDaemon finds the daemon that CMD will use, points the shim at it and refuses what it does
// not support. A missing daemon is no error. platform is that of CMD's virtual GPU, or empty.
func (l *launch) joinDaemon(ctx context.Context) (platform string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if l.app.dir != "" {
		l.env.set(envSocket, filepath.Join(l.app.dir, control.ClientSocket))
	}
	daemon, running, err := l.app.connect(ctx)
	if err != nil {
		if l.want.virtual {
			return l.virtualWithoutDaemon(err)
		}
		return "", l.withoutDaemon(err)
	}
	defer daemon.Close()
	if top := running.MaxPriority; top != nil && l.want.priority > int(*top) {
		l.app.warn("running at priority %d, the limit of this user; %d needs root, or `xsched serve --max-priority USER=N`", *top, l.want.priority)
	}
	_ = warnUnread(ctx, l.app, daemon, l.want.hints) // CMD runs without this warning, too
	if l.want.virtual {
		if !running.Virtual {
			return "", fmt.Errorf("the daemon in %s has no virtual GPU; start one with `xsched serve --virtual --dir DIR` and use --dir DIR here", running.Dir)
		}
		l.env.set(envSocket, filepath.Join(running.Dir, control.ClientSocket))
		platform = running.Platform
		pointAt(l.env, running.Dir, platform)
	}
	if l.want.level > model.LevelBlock {
		return platform, checkLevel(ctx, daemon, l.want.level)
	}
	return platform, nil
}

// withoutDaemon warns, or refuses, unless the program itself was the reason for a warning.
func (l *launch) withoutDaemon(cause error) error {
	if l.want.native.reason != "" {
		return nil
	}
	return l.runNatively(oneLine(cause.Error()))
}

// virtualWithoutDaemon uses a virtual GPU that outlived its daemon.
func (l *launch) virtualWithoutDaemon(cause error) (string, error) {
	for _, dir := range l.app.dirs() {
		if platform := answeringDevice(dir); platform != "" {
			pointAt(l.env, dir, platform)
			l.env.set(envSocket, filepath.Join(dir, control.ClientSocket))
			return platform, l.withoutDaemon(cause)
		}
	}
	return "", errors.New("no virtual GPU is running; start one with `xsched serve --virtual`")
}

// checkLevel refuses a level that no known GPU supports. Without a known GPU, the daemon decides
// when the program connects.
func checkLevel(ctx context.Context, daemon *client.Client, want model.Level) error {
	reply, err := daemon.Devices(ctx)
	if err != nil || len(reply.Devices) == 0 {
		return err
	}
	best := reply.Devices[0]
	for _, d := range reply.Devices {
		if d.MaxLevel > best.MaxLevel {
			best = d
		}
	}
	if best.MaxLevel >= int(want) {
		return nil
	}
	reason := best.LevelReason
	if reason == "" {
		reason = "not supported by its driver"
	}
	return &control.Error{
		Kind: control.ErrNotSupported, Cause: fmt.Sprintf("level %d is not available on %s: %s", int(want), best.ID, reason),
		Remedy: fmt.Sprintf("use --level auto or %d", best.MaxLevel),
	}
}
