// SPDX-License-Identifier: Apache-2.0

// Package cli is the command line of xsched: one file a subcommand, on the
// typed client of package api. A failure is one line on standard error,
// "xsched: cause; remedy". Exit codes: 0 done, 1 failed, 2 used wrongly; `run`
// becomes its command and exits with that command's code.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

const (
	exitFailure       = 1
	exitUsage         = 2
	exitNotExecutable = 126 // as shells say it
	exitNotFound      = 127
)

// app is what the subcommands share.
type app struct {
	stdout, stderr io.Writer
	dir            string // --dir
	started        bool   // the arguments were understood, a subcommand runs
}

// usageError is a mistake in the arguments that only the subcommand could see.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exitError ends the program with its own code.
type exitError struct {
	code int
	error
}

// Unwrap gives the cause.
func (e exitError) Unwrap() error { return e.error }

// Main runs the command line and returns the exit code. Under the name of one of
// XSched's own tools, xserver or xcli, the program is that tool.
func Main(argv []string) int {
	a := &app{stdout: os.Stdout, stderr: os.Stderr}
	name, args := "", []string(nil)
	if len(argv) > 0 {
		name, args = filepath.Base(argv[0]), argv[1:]
	}
	// A daemon starts its helpers from its own file, which may have that name.
	helper := len(args) > 0 && (args[0] == "guardian" || args[0] == "vgpu")
	var root *cobra.Command
	switch {
	case name == "xserver" && !helper:
		root = a.xserver()
	case name == "xcli":
		root = a.xcli()
	default:
		root = a.root()
	}
	root.SetArgs(args)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return 0
	}
	code, remedy := exitFailure, ""
	if _, ok := errors.AsType[usageError](err); ok || !a.started {
		code = exitUsage
		if !strings.Contains(err.Error(), "; ") {
			remedy = a.usageRemedy(root, args)
		}
	}
	if e, ok := errors.AsType[exitError](err); ok {
		code = e.code
	}
	fmt.Fprintf(a.stderr, "%s: %s%s\n", root.Name(), oneLine(err.Error()), remedy)
	return code
}

// usageRemedy points to the help of the command that was meant.
func (a *app) usageRemedy(root *cobra.Command, args []string) string {
	command, _, err := root.Find(args)
	if err == nil && command != root {
		return "; see `" + command.CommandPath() + " --help`"
	}
	if len(args) > 0 {
		if near := root.SuggestionsFor(args[0]); len(near) > 0 {
			return "; did you mean `" + root.Name() + " " + near[0] + "`?"
		}
	}
	return "; see `" + root.Name() + " --help`"
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "xsched",
		Short: "Schedule the programs that share a GPU",
		Long: `XSched lets a latency-critical program share a GPU with throughput work.

` + "`xsched serve`" + ` is the daemon that decides; ` + "`xsched run -- CMD`" + ` starts an
unmodified program under it. The other commands look at and steer a running
daemon. Without a daemon every program runs as if XSched were not there.`,
		Example: `  xsched serve &
  xsched run --priority 10 -- python serve_model.py
  xsched run --priority -10 -- python train.py
  xsched list`,
		SilenceErrors:      true,
		SilenceUsage:       true,
		DisableSuggestions: true, // they take several lines; usageRemedy says it in one
		PersistentPreRun:   func(*cobra.Command, []string) { a.started = true },

		SuggestionsMinimumDistance: 2,
	}
	onlySubcommands(root)
	root.PersistentFlags().StringVar(&a.dir, "dir", "", "folder of the daemon's sockets (default $XSCHED_DIR, /run/xsched for root, else your own)")
	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Run programs:"},
		&cobra.Group{ID: "steer", Title: "Look at and steer a daemon:"},
		&cobra.Group{ID: "measure", Title: "Measure:"},
	)
	for group, commands := range map[string][]*cobra.Command{
		"run":     {a.serveCommand(), a.runCommand()},
		"steer":   {a.listCommand(), a.queuesCommand(), a.hintCommand(), a.policyCommand(), a.modeCommand(), a.suspendCommand(), a.resumeCommand(), a.attachCommand(), a.detachCommand()},
		"measure": {a.runtimeLogCommand(), a.benchCommand(), a.colocateCommand(), a.demoCommand(), a.simCommand(), a.replayCommand(), a.vgpuCommand()},
		"":        {a.doctorCommand(), a.versionCommand(), a.guardianCommand(), a.privateCommand(), a.renderCommand()},
	} {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	return root
}

// onlySubcommands makes a command show its help when it is alone and refuse
// what is none of its subcommands; cobra by itself would show help and succeed.
func onlySubcommands(c *cobra.Command) {
	c.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("unknown command %q for %q", args[0], c.CommandPath())
		}
		return nil
	}
	c.RunE = func(*cobra.Command, []string) error { return c.Help() }
}

// untilSignal is a context that ends on SIGINT or SIGTERM. `run` must not use
// it: the command it becomes inherits which signals are ignored.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
}

// jsonFlag adds --json to a command that reads.
func jsonFlag(c *cobra.Command, into *bool) {
	c.Flags().BoolVar(into, "json", false, "print JSON")
}

func (a *app) printJSON(value any) error {
	encoder := json.NewEncoder(a.stdout)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	return nil
}

func (a *app) warn(format string, args ...any) {
	fmt.Fprintf(a.stderr, "xsched: warning: "+format+"\n", args...)
}

// oneLine keeps an error on the one line that it is promised.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
