// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/window"
)

func windowCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "window",
		Short: "Prefer the programs of the active window",
		Long: `Tools for policy AWF on X11 desktops. ` + "`follow`" + ` reports to the daemon which programs
belong to the active window, ` + "`launch`" + ` starts programs with their priorities, and
` + "`list`" + ` shows which programs belong to which window.`,
	}
	onlySubcommands(c)
	c.AddCommand(windowFollowCommand(a), windowLaunchCommand(a), windowListCommand(a))
	return c
}

func windowFollowCommand(a *app) *cobra.Command {
	var (
		displays []string
		all      bool
		pids     bool
		logLevel string
		logJSON  bool
	)
	c := &cobra.Command{
		Use:   "follow",
		Short: "Report to the daemon which programs belong to the active window",
		Long: `Follow the active window and set the hint window-active for your programs that
belong to it, so that policy AWF prefers them. A program belongs to the nearest
of its parents that has a window: a job in a terminal belongs to the terminal.
Run it as the user of the desktop, once per daemon. While it runs, it owns the
hint of all your programs. When it ends, no program has the hint.

It waits for a daemon or an X server that is not there, and connects again to
one that was restarted. With --pids it follows no X display: another program
writes the PID of the active window to its standard input, one per line, and 0 if
there is none. This serves Wayland desktops.`,
		Example: `  xsched policy AWF
  xsched window follow
  xsched window follow --display :0 --display :1
  xsched window follow --all
  my-compositor-events | xsched window follow --pids`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f := window.Follower{Displays: func() []string { return nil }}
			var err error
			switch {
			case pids && (all || len(displays) > 0):
				return usagef("--pids excludes --all and --display; use one")
			case pids:
				f.PIDs = cmd.InOrStdin()
			default:
				f.Displays, err = displayNames(displays, all)
			}
			if err != nil {
				return err
			}
			return followWindows(cmd.Context(), a, &f, logLevel, logJSON)
		},
	}
	displayFlag(c, &displays)
	c.Flags().BoolVar(&all, "all", false, "follow all local displays, also those that start later")
	c.Flags().BoolVar(&pids, "pids", false, "read the PID of the active window from standard input instead")
	logFlags(c, &logLevel, &logJSON)
	return c
}

func displayFlag(c *cobra.Command, into *[]string) {
	c.Flags().StringArrayVar(into, "display", nil, "use the X server at `DISPLAY`; repeatable (default $DISPLAY)")
}

// followWindows runs a follower until a signal, or until its input ends.
func followWindows(ctx context.Context, a *app, f *window.Follower, logLevel string, logJSON bool) error {
	log, flush, err := a.logger(logLevel, logJSON)
	if err != nil {
		return err
	}
	defer flush()
	unlock, err := lockFollower(a)
	if err != nil {
		return err
	}
	defer unlock()
	ctx, stop := untilSignal(ctx)
	defer stop()
	daemon := &windowScheduler{app: a}
	defer daemon.close()
	f.Scheduler, f.Processes, f.Log = daemon, window.Host(), log
	f.Run(ctx)
	return nil
}

// socketFolder holds the sockets of local X servers.
const socketFolder = "/tmp/.X11-unix"

// displayNames returns the displays to use: those given, else $DISPLAY, or all local ones.
func displayNames(given []string, all bool) (func() []string, error) {
	switch {
	case all && len(given) > 0:
		return nil, usagef("--all and --display exclude each other; use one")
	case all:
		return localDisplays, nil
	case len(given) == 0 && os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") != "":
		return nil, errors.New("this is a Wayland session without X windows; use --pids, see docs/windows.md")
	case len(given) == 0 && os.Getenv("DISPLAY") == "":
		return nil, errors.New("no X display is known; set DISPLAY, or use --display or --all")
	case len(given) == 0:
		given = []string{os.Getenv("DISPLAY")}
	}
	for i, name := range given {
		if given[i] = window.DisplayName(name); !strings.Contains(name, ":") {
			return nil, usagef("%q is not a display; use a name such as :0", name)
		}
	}
	slices.Sort(given)
	given = slices.Compact(given)
	return func() []string { return given }, nil
}

func localDisplays() []string {
	entries, _ := os.ReadDir(socketFolder) // without the folder there is no X server
	var names []string
	for _, e := range entries {
		if number, ok := strings.CutPrefix(e.Name(), "X"); ok {
			if _, err := strconv.ParseUint(number, 10, 16); err == nil {
				names = append(names, ":"+number)
			}
		}
	}
	return names
}

// lockFollower refuses a second follower of this user and daemon: each would undo the other's hints.
func lockFollower(a *app) (unlock func(), err error) {
	dir := a.dirs()[0]
	if err := control.PrepareDir(dir, os.Geteuid()); err != nil {
		a.warn("cannot check for a second follower: %s", oneLine(err.Error()))
		return func() {}, nil
	}
	path := filepath.Join(dir, "window.lock")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		return nil, errors.New("another follower serves this daemon; stop it, or name all displays to one follower")
	}
	return func() { _ = file.Close() }, nil
}

// windowScheduler is the daemon as package window sees it.
type windowScheduler struct {
	app    *app
	daemon *client.Client // nil: not connected
}

// callTime bounds one request, so that a stuck daemon does not delay the next window for long.
const callTime = 5 * time.Second

func (s *windowScheduler) close() {
	if s.daemon != nil {
		s.daemon.Close()
		s.daemon = nil
	}
}

// Programs returns the caller's own programs. Those of others it may not change.
func (s *windowScheduler) Programs(ctx context.Context) ([]window.Program, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if s.daemon == nil {
		daemon, _, err := s.app.connect(ctx)
		if err != nil {
			return nil, err
		}
		s.daemon = daemon
	}
	list, err := s.daemon.List(ctx)
	if err != nil {
		s.close() // another daemon may run elsewhere
		return nil, err
	}
	var programs []window.Program
	for _, p := range list.Processes {
		if p.UID == os.Geteuid() {
			programs = append(programs, window.Program{PID: p.PID, Active: p.Hints.WindowActive})
		}
	}
	return programs, nil
}

// SetActive sets the hint of one program.
func (s *windowScheduler) SetActive(ctx context.Context, pid int, active bool) error {
	if s.daemon == nil {
		return nil // the daemon is gone, and its hints with it
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	_, err := s.daemon.Hint(ctx, control.HintRequest{PID: pid, WindowActive: &active})
	if errors.Is(err, control.ErrNotFound) {
		return nil
	}
	return err
}
