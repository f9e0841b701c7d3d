// SPDX-License-Identifier: Apache-2.0

// Command xsched-kube connects XSched with Kubernetes: the node plugin of the DaemonSet and the tools
// for clusters. Under the name kubectl-xsched it is a kubectl plugin.
package main

import (
	"os"

	"xsched/internal/kube/cli"
)

func main() { os.Exit(cli.Main(os.Args)) }
