// SPDX-License-Identifier: Apache-2.0

// Package cli implements the command lines of xsched-kube and of the kubectl plugin kubectl-xsched,
// one file per subcommand. A failure prints one line to standard error, "PROGRAM: cause; remedy".
// Exit codes: 0 success, 1 failure, 2 usage error.
package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"xsched/internal/version"
)

const (
	exitFailure = 1
	exitUsage   = 2
)

// app is the state that subcommands share.
type app struct {
	stdout, stderr io.Writer
	started        bool // argument parsing succeeded and a subcommand runs
}

// pluginName is the program's name as a kubectl plugin.
const pluginName = "kubectl-xsched"

// Main runs the command line and returns the exit code.
func Main(argv []string) int {
	a := &app{stdout: os.Stdout, stderr: os.Stderr}
	root := a.root()
	if len(argv) > 0 && filepath.Base(argv[0]) == pluginName {
		root = a.plugin()
	}
	return a.run(root, argv[min(1, len(argv)):])
}

func (a *app) run(root *cobra.Command, args []string) int {
	root.SetArgs(args)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return 0
	}
	text := strings.Join(strings.Fields(err.Error()), " ")
	if a.started {
		fmt.Fprintf(a.stderr, "%s: %s\n", root.Name(), text)
		return exitFailure
	}
	if !strings.Contains(text, "; ") {
		command := root
		if found, _, err := root.Find(args); err == nil {
			command = found
		}
		text += "; see `" + command.CommandPath() + " --help`"
	}
	fmt.Fprintf(a.stderr, "%s: %s\n", root.Name(), text)
	return exitUsage
}

// Commands returns the commands of xsched-kube and of the kubectl plugin, for manual and completions.
func Commands() []*cobra.Command {
	a := &app{stdout: io.Discard, stderr: io.Discard}
	return []*cobra.Command{a.root(), a.plugin()}
}

// root has the commands of xsched-kube.
func (a *app) root() *cobra.Command {
	c := a.newRoot("xsched-kube", "Run XSched on Kubernetes nodes")
	c.Long = `XSched-kube connects the scheduling daemon of a node with Kubernetes. The
scheduler of Kubernetes places pods; the daemon preempts on the GPU.`
	c.AddCommand(a.nodeCommand(), a.healthCommand(), a.evictCommand(), a.uninstallCommand(), a.cleanupCommand(), a.versionCommand())
	return c
}

// plugin has the commands of the kubectl plugin.
func (a *app) plugin() *cobra.Command {
	c := a.newRoot(pluginName, "Inspect XSched in a cluster")
	c.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl xsched"}
	c.AddCommand(a.topCommand(), a.listCommand(), a.statusCommand(), a.logsCommand(), a.suspendCommand(), a.resumeCommand(), a.versionCommand())
	return c
}

func (a *app) newRoot(name, short string) *cobra.Command {
	c := &cobra.Command{
		Use: name, Short: short,
		SilenceErrors: true, SilenceUsage: true, DisableSuggestions: true,
		PersistentPreRun: func(*cobra.Command, []string) { a.started = true },
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q", args[0])
			}
			return nil
		},
	}
	c.RunE = func(*cobra.Command, []string) error { return c.Help() }
	c.Version = version.String()
	c.SetVersionTemplate(name + " {{.Version}}\n")
	return c
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version, which is that of xsched",
		Args:  cobra.NoArgs,
		Run: func(c *cobra.Command, _ []string) {
			fmt.Fprintf(a.stdout, "%s %s (%s, %s/%s)\n", c.Root().Name(), version.String(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
		},
	}
}
