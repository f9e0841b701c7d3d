// SPDX-License-Identifier: Apache-2.0

// Command xsched schedules the programs that share a GPU: the daemon, the
// launcher and the tools are all this one binary.
package main

import (
	"os"

	"xsched/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
