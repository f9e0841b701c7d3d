// SPDX-License-Identifier: Apache-2.0

// Command site renders the documentation as static pages. It fails if a link or an anchor leads
// nowhere, or if a page would load something from another host.
//
//	go run ./tools/site -out out/site
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	root := flag.String("root", ".", "`FOLDER` of the repository")
	out := flag.String("out", "out/site", "write the pages to `FOLDER`")
	flag.Parse()
	n, err := build(*root, *out)
	if err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
	fmt.Printf("site: %d pages in %s\n", n, *out)
}
