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

func runCommand(a *app) *cobra.Command {
	var (
		hints   hintFlags
		virtual bool
		local   bool
		policy  string
		require bool
	)
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
		RunE: func(cmd *cobra.Command, args []string) error {
			want := wish{virtual: virtual, require: require, hints: hints.changed(cmd)}
			env, given := newEnvironment(os.Environ()), map[string]string{} // hints by variable
			err := hints.read(cmd, func(f *model.HintField, v model.HintValue) {
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
			if want.native = checkPreload(program); want.native.reason != "" {
				if err := runNatively(a, want, want.native.reason); err != nil {
					return err
				}
			}
			private := wantsPrivate(a, env, local)
			warnVariables(a, env, private, local)
			if policy != "" && !private {
				return usagef("--policy sets the policy of a private daemon; add --local, or use `xsched policy`")
			}
			if _, err := unpackFor(""); err != nil { // before starting anything
				if err := withoutShim(a, want, err); err != nil {
					return err
				}
				return replaceWith(program, args, env)
			}
			if private {
				if err := startPrivate(a, cmd.Context(), env, policy, virtual); err != nil {
					return err
				}
			}
			platform, err := joinDaemon(a, cmd.Context(), env, want)
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
		},
	}
	c.Flags().SetInterspersed(false) // flags after CMD belong to CMD, with or without --
	hints.add(c)
	c.Flags().BoolVar(&local, "local", false, "start a private daemon for CMD and its children")
	c.Flags().StringVar(&policy, "policy", "", "with --local: scheduling policy (default $XSCHED_POLICY, else HPF)")
	_ = c.RegisterFlagCompletionFunc("policy", completePolicies)
	c.Flags().BoolVar(&require, "require", false, "fail instead of running CMD without scheduling")
	c.Flags().BoolVar(&virtual, "virtual", false, "run CMD on the virtual GPU of a daemon started with serve --virtual")
	return c
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

// wish is what the daemon must support for this run.
type wish struct {
	priority int
	level    model.Level
	virtual  bool
	require  bool
	native   native // CMD itself runs without scheduling
	hints    []model.HintField
}

// runNatively warns that CMD runs without scheduling, or refuses that.
func runNatively(a *app, want wish, reason string) error {
	if want.require {
		return &control.Error{Kind: control.ErrNotSupported, Cause: reason, Remedy: "run it without --require"}
	}
	a.warn("running without scheduling: %s", reason)
	return nil
}

// withoutShim warns that CMD runs natively because the shim can't be unpacked, for example into a
// home folder that is not writable. The virtual GPU needs its libraries, so it has no native run.
func withoutShim(a *app, want wish, cause error) error {
	if want.require || want.virtual {
		return cause
	}
	a.warn("running without scheduling: %s", oneLine(cause.Error()))
	return nil
}

// joinDaemon finds the daemon that CMD will use, points the shim at it and refuses what it does
// not support. A missing daemon is no error. platform is that of CMD's virtual GPU, or empty.
func joinDaemon(a *app, ctx context.Context, env *environment, want wish) (platform string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if a.dir != "" {
		env.set(envSocket, filepath.Join(a.dir, control.ClientSocket))
	}
	daemon, running, err := a.connect(ctx)
	if err != nil {
		if want.virtual {
			return virtualWithoutDaemon(a, env, want, err)
		}
		return "", withoutDaemon(a, want, err)
	}
	defer daemon.Close()
	if top := running.MaxPriority; top != nil && want.priority > int(*top) {
		a.warn("running at priority %d, the limit of this user; %d needs root, or `xsched serve --max-priority USER=N`", *top, want.priority)
	}
	_ = warnUnread(a, ctx, daemon, want.hints) // CMD runs without this warning, too
	if want.virtual {
		if !running.Virtual {
			return "", fmt.Errorf("the daemon in %s has no virtual GPU; start one with `xsched serve --virtual --dir DIR` and use --dir DIR here", running.Dir)
		}
		env.set(envSocket, filepath.Join(running.Dir, control.ClientSocket))
		platform = running.Platform
		pointAt(env, running.Dir, platform)
	}
	if want.level > model.LevelBlock {
		return platform, checkLevel(ctx, daemon, want.level)
	}
	return platform, nil
}

// withoutDaemon warns, or refuses, unless the program itself was the reason for a warning.
func withoutDaemon(a *app, want wish, cause error) error {
	if want.native.reason != "" {
		return nil
	}
	return runNatively(a, want, oneLine(cause.Error()))
}

// virtualWithoutDaemon uses a virtual GPU that outlived its daemon.
func virtualWithoutDaemon(a *app, env *environment, want wish, cause error) (string, error) {
	for _, dir := range a.dirs() {
		if platform := answeringDevice(dir); platform != "" {
			pointAt(env, dir, platform)
			env.set(envSocket, filepath.Join(dir, control.ClientSocket))
			return platform, withoutDaemon(a, want, cause)
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
