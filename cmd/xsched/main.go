// SPDX-License-Identifier: Apache-2.0

// Command xsched schedules the programs that share a GPU: the daemon, the
// launcher and the tools are all this one binary. Under the names of upstream's
// tools (xserver, xcli, x11_monitor, x11_launcher) it takes their command lines.
package main

import (
	"os"

	"xsched/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args)) }
