// SPDX-License-Identifier: Apache-2.0

// Command kube writes the manual pages and shell completions of xsched-kube, and the pages of the
// kubectl plugin. It is apart from manual, because Kubernetes' libraries take minutes to build.
package main

import (
	"fmt"
	"os"

	"xsched/internal/kube/cli"
	"xsched/tools/manual/pages"
)

func main() {
	if err := pages.Run(os.Args[1:], cli.Commands()...); err != nil {
		fmt.Fprintln(os.Stderr, "manual/kube:", err)
		os.Exit(1)
	}
}
