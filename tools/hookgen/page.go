// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

var (
	titles = map[string]string{"cuda": "CUDA driver", "hip": "HIP", "opencl": "OpenCL"}
	words  = map[string]string{
		"hooked": "hooked", "passes": "passes", "shares": "passes", "unloads": "passes",
		"cannot": "can't submit", "events": "can't submit", "code": "can't submit", "asks": "can't submit",
	}
)

// printTable writes one line per entry point of a version; an empty version means all.
func printTable(w io.Writer, root, version string) error {
	for _, dir := range runtimes {
		list, err := readEntries(root, dir)
		if err != nil {
			return err
		}
		for _, e := range list.entries {
			if version != "" && !list.in(e, version) {
				continue
			}
			since := e.first
			if e.last != "" {
				since += "-" + e.last
			}
			fmt.Fprintf(w, "%-7s %-46s %-10s %-13s %s\n", dir, e.name, since, words[e.class], e.reason)
		}
	}
	return nil
}

// page is docs/platforms/hooks.md.
func page(root string) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(`# Hooked entry points

Written by ` + "`make hooks-page`" + ` from ` + "`shim/runtime/*/entry_points.txt`" + `. Do not edit.

Each entry point of a runtime has one of three classes:

- **hooked**: the shim accounts for it. A few hooks only count the call, because it is order and not
  work (` + "`pass` in `hooks.table`" + `).
- **passes**: it may submit, wait or order, and the shim does not account for it. Each has a reason
  below.
- **can't submit**: it does none of this.

` + "`make hooks`" + ` prints every entry point with its class, version and reason. ` + "`go test ./tools/hookgen`" + `
fails if the vendor's header that ` + "`make setup`" + ` installs has a name without a class.

The launches of a CUDA program may wait on the device as a batch. The shim releases batches before
each call, unless it is known to return at once (` + "`asks` in `entry_points.txt`" + `). This includes
calls that are newer than the shim. A program that shares memory or order with others (` + "`shares`" + `)
has no batches from then on.

If a program asks for an unknown name that looks like submission, capture or wait, the shim logs the
name once and counts it. ` + "`xsched status`" + ` shows the count.
`)
	for _, dir := range runtimes {
		list, err := readEntries(root, dir)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "\n## %s\n\n| version | hooked | passes | can't submit |\n|---|---:|---:|---:|\n", titles[dir])
		for _, v := range list.versions {
			count := map[string]int{}
			for _, e := range list.entries {
				if list.in(e, v) {
					count[words[e.class]]++
				}
			}
			fmt.Fprintf(&b, "| %s | %d | %d | %d |\n", v, count["hooked"], count["passes"], count["can't submit"])
		}
		b.WriteString("\nWhat passes, and why:\n\n")
		writeReasons(&b, list)
	}
	return b.Bytes(), nil
}

func writeReasons(b *bytes.Buffer, list entryList) {
	var order []string
	names := map[string][]string{}
	for _, e := range list.entries {
		if words[e.class] != "passes" {
			continue
		}
		if names[e.reason] == nil {
			order = append(order, e.reason)
		}
		names[e.reason] = append(names[e.reason], "`"+e.name+"`")
	}
	for _, reason := range order {
		b.WriteString(wrap("- "+strings.ToUpper(reason[:1])+reason[1:]+": "+strings.Join(names[reason], ", ")+".", 100))
	}
}

// wrap breaks a list item at width columns.
func wrap(text string, width int) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		switch {
		case i > 0 && column+1+len(word) > width:
			b.WriteString("\n  ")
			column = 2
		case i > 0:
			b.WriteString(" ")
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String() + "\n"
}
