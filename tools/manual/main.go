// SPDX-License-Identifier: Apache-2.0

// Command manual writes the manual pages and shell completions of xsched, from the definitions of its
// commands.
package main

import (
	"fmt"
	"os"

	"xsched/internal/cli"
	"xsched/tools/manual/pages"
)

func main() {
	if err := pages.Run(os.Args[1:], cli.Command()); err != nil {
		fmt.Fprintln(os.Stderr, "manual:", err)
		os.Exit(1)
	}
}
