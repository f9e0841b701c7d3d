// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/spf13/cobra"
)

// kubeProgram has the Kubernetes commands. Its libraries would make every xsched command larger and
// slower to start.
const kubeProgram = "xsched-kube"

func kubeCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "kube COMMAND [ARG...]",
		Short: "Run XSched on Kubernetes nodes",
		Long: `Run the Kubernetes node plugin and the tools for clusters. The commands are those of
the program xsched-kube, which is installed next to xsched, by a package of its own
or by ` + "`make kube`" + `. With it, --help lists them.`,
		Example: `  xsched kube node --help
  xsched kube version`,
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			program, err := findKube()
			switch {
			case err != nil && (len(args) == 0 || slices.Contains([]string{"help", "-h", "--help"}, args[0])):
				a.warn("%v", err)
				return c.Help()
			case err != nil:
				return exitError{exitNotFound, err}
			}
			err = syscall.Exec(program, append([]string{kubeProgram}, args...), os.Environ())
			return exitError{exitNotExecutable, fmt.Errorf("start %s: %w; install it again", program, err)}
		},
	}
}

// findKube returns the path of xsched-kube: next to this program, else in PATH.
func findKube() (string, error) {
	if own, err := os.Executable(); err == nil {
		if found, err := exec.LookPath(filepath.Join(filepath.Dir(own), kubeProgram)); err == nil {
			return found, nil
		}
	}
	if found, err := exec.LookPath(kubeProgram); err == nil {
		return found, nil
	}
	return "", errors.New(kubeProgram + " is neither next to xsched nor in PATH; install it, or build it with `make kube`")
}
