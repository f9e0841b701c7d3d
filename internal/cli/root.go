// SPDX-License-Identifier: Apache-2.0

// Package cli owns the command line of xsched: one file per subcommand, on the typed client of package
// control. It must not know how the daemon schedules. A failure prints one line to standard error,
// "xsched: cause; remedy". Exit codes: 0 success, 1 failure, 2 usage error. `run` replaces itself with
// its command, so its exit code is the command's.
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
	"regexp"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"xsched/internal/control"
)

const (
	exitFailure       = 1
	exitUsage         = 2
	exitNotExecutable = 126 // the shells' codes
	exitNotFound      = 127
)

// app is the state that subcommands share.
type app struct {
	stdout, stderr io.Writer
	dir            string // --dir
	started        bool   // argument parsing succeeded and a subcommand runs
}

// usageError is a mistake in the arguments that only the subcommand can detect.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exitError carries an exit code.
type exitError struct {
	code int
	error
}

// Unwrap returns the cause.
func (e exitError) Unwrap() error { return e.error }

// Main runs the command line and returns the exit code. If argv[0] is the name of a tool
// of upstream XSched, the program takes the command line of that tool.
func Main(argv []string) int {
	a := &app{stdout: os.Stdout, stderr: os.Stderr}
	name, args := "", []string(nil)
	if len(argv) > 0 {
		name, args = filepath.Base(argv[0]), argv[1:]
	}
	// A daemon starts its helpers from its own executable, which may have the name xserver.
	helper := len(args) > 0 && (args[0] == "guardian" || args[0] == "vgpu")
	var root *cobra.Command
	switch {
	case name == "xserver" && !helper:
		root = xserverRoot(a)
	case name == "xcli":
		root = xcliRoot(a)
	case name == "x11_monitor":
		root = x11MonitorRoot(a)
	case name == "x11_launcher":
		root = x11LauncherRoot(a)
	case name == "queue_finder":
		root, args = newRoot(a), append([]string{"queues"}, args...)
	default:
		root = newRoot(a)
	}
	root.SetArgs(args)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return 0
	}
	code, remedy := exitFailure, ""
	if _, ok := errors.AsType[usageError](err); ok || !a.started || errors.Is(err, control.ErrInvalid) {
		code = exitUsage
		if !strings.Contains(err.Error(), "; ") {
			remedy = usageRemedy(root, args)
		}
	}
	if e, ok := errors.AsType[exitError](err); ok {
		code = e.code
	}
	fmt.Fprintf(a.stderr, "%s: %s%s\n", root.Name(), oneLine(err.Error()), remedy)
	return code
}

// Command returns the commands of xsched, for its manual and completions.
func Command() *cobra.Command { return newRoot(&app{stdout: io.Discard, stderr: io.Discard}) }

// usageRemedy points to the help of the intended command.
func usageRemedy(root *cobra.Command, args []string) string {
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

// dirHelp describes --dir.
const dirHelp = "use the daemon's sockets in `DIR` (default $XSCHED_DIR, /run/xsched for root, else the user's runtime directory)"

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "xsched",
		Short: "Preemptive GPU scheduler",
		Long: `XSched lets a latency-critical program share a GPU with best-effort work.

` + "`xsched serve`" + ` runs the scheduling daemon. ` + "`xsched run -- CMD`" + ` starts an
unmodified program under it. The other commands inspect and control a running
daemon. Without a daemon, programs run natively.`,
		Example: `  xsched serve &
  xsched run -- python serve.py
  xsched run --priority -10 -- python train.py
  xsched top`,
		SilenceErrors:      true,
		SilenceUsage:       true,
		DisableSuggestions: true, // usageRemedy has them on one line
		PersistentPreRun:   func(*cobra.Command, []string) { a.started = true },

		SuggestionsMinimumDistance: 2,
	}
	onlySubcommands(root)
	root.Version = version
	root.SetVersionTemplate("xsched {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().StringVar(&a.dir, "dir", "", dirHelp)
	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Run programs:"},
		&cobra.Group{ID: "control", Title: "Inspect and control a daemon:"},
		&cobra.Group{ID: "measure", Title: "Measure and analyse:"},
		&cobra.Group{ID: "setup", Title: "Set up:"},
	)
	root.SetHelpCommandGroupID("setup")
	root.SetCompletionCommandGroupID("setup")
	for group, commands := range map[string][]*cobra.Command{
		"run":     {serveCommand(a), runCommand(a)},
		"control": {topCommand(a), statusCommand(a), healthCommand(a), listCommand(a), queuesCommand(a), logsCommand(a), reportCommand(a), hintCommand(a), policyCommand(a), modeCommand(a), suspendCommand(a), resumeCommand(a), evictCommand(a), restoreCommand(a), attachCommand(a), detachCommand(a), windowCommand(a)},
		"measure": {runtimeLogCommand(a), benchCommand(a), colocateCommand(a), demoCommand(a), simCommand(a), replayCommand(a), vgpuCommand(a)},
		"setup":   {configCommand(a), doctorCommand(a), linkRuntimesCommand(a), kubeCommand(a), alertTestCommand(a), supportBundleCommand(a), versionCommand(a)},
		"":        {guardianCommand(a), privateCommand(a), renderCommand(a)},
	} {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	rejectUnknown(root)
	noFileNames(root)
	plainDefaults(root)
	return root
}

// reZeros are what Go writes behind a number and behind the hours or minutes of a duration.
var reZeros = regexp.MustCompile(`(\d)\.0+\b|([hm])0m0s\b|(m)0s\b`)

// plainDefaults shows the defaults of flags as a user writes them: "10,50" for "[10.000000,50.000000]".
func plainDefaults(c *cobra.Command) {
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		kind, list := strings.CutSuffix(f.Value.Type(), "Slice")
		if list && f.DefValue != "[]" { // of no values, which the help leaves out
			f.DefValue = strings.Trim(f.DefValue, "[]")
		}
		if kind == "float64" || kind == "duration" {
			f.DefValue = reZeros.ReplaceAllString(f.DefValue, "$1$2$3")
		}
	})
	for _, sub := range c.Commands() {
		plainDefaults(sub)
	}
}

// rejectUnknown makes cobra's own commands refuse what they do not know, instead of printing help.
func rejectUnknown(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd("completion")
	for _, c := range root.Commands() {
		switch c.Name() {
		case "completion":
			onlySubcommands(c)
		case "help":
			c.Args = func(_ *cobra.Command, args []string) error {
				if found, _, err := root.Find(args); len(args) > 0 && (err != nil || found == root) {
					return fmt.Errorf("unknown command %q", args[0])
				}
				return nil
			}
		}
	}
}

// noFileNames keeps the shells from offering files to commands without arguments.
func noFileNames(c *cobra.Command) {
	if c.ValidArgsFunction == nil && !strings.Contains(c.Use, " ") {
		c.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, sub := range c.Commands() {
		noFileNames(sub)
	}
}

// onlySubcommands makes a command print its help without arguments and reject unknown
// subcommands, for which cobra would print help and succeed.
func onlySubcommands(c *cobra.Command) {
	c.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("unknown command %q", args[0])
		}
		return nil
	}
	c.RunE = func(*cobra.Command, []string) error { return c.Help() }
}

// untilSignal returns a context that ends on SIGINT or SIGTERM. `run` must not use it, because
// exec preserves ignored signals.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
}

// jsonFlag adds --json.
func jsonFlag(c *cobra.Command, into *bool) {
	c.Flags().BoolVar(into, "json", false, "print JSON")
}

func (a *app) printJSON(value any) error {
	encoder := json.NewEncoder(escaping{a.stdout})
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	return nil
}

// escaping writes JSON with escapes for what a terminal obeys: control and formatting characters, such
// as those that reverse text. Only strings of JSON contain them.
type escaping struct{ io.Writer }

func (e escaping) Write(b []byte) (int, error) {
	var out []byte
	for _, r := range string(b) {
		if r >= 0x7f && unicode.In(r, unicode.Cc, unicode.Cf) {
			for _, unit := range utf16.Encode([]rune{r}) {
				out = fmt.Appendf(out, "\\u%04x", unit)
			}
			continue
		}
		out = utf8.AppendRune(out, r)
	}
	if _, err := e.Writer.Write(out); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (a *app) warn(format string, args ...any) {
	fmt.Fprintf(a.stderr, "xsched: warning: "+format+"\n", args...)
}

// oneLine puts an error on one line.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
