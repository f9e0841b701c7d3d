// SPDX-License-Identifier: Apache-2.0

// Command amdloggen writes a log in the format of AMD's HIP runtime with
// AMD_LOG_LEVEL=4, of any length, with damaged and truncated lines. Equal
// arguments give equal bytes.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

// Cases a and b have the size of two real logs.
var cases = map[string]struct{ lines, kernels int }{
	"a":     {6160000, 127099},
	"b":     {13120000, 261809},
	"small": {60000, 1237},
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "amdloggen:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("amdloggen", flag.ContinueOnError)
	var (
		which   = flags.String("case", "small", "a: 6.16 million lines, b: 13.12 million, small: 60,000")
		lines   = flags.Int("lines", 0, "number of lines, instead of the case's")
		kernels = flags.Int("kernels", 0, "number of kernels, instead of the case's")
		seed    = flags.Uint64("seed", 1, "of everything that varies")
		era     = flags.String("era", "7.0", "form of the lines: "+strings.Join(eraNames, ", ")+" or mixed")
		broken  = flags.Int("broken", 5000, "one line in this many is damaged, cut or glued; 0 none")
		out     = flags.String("o", "-", "file to write")
		expect  = flags.String("expect", "", "file for the counts that a reader must find")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	size, ok := cases[*which]
	if !ok {
		return fmt.Errorf("unknown case %q: known are a, b, small", *which)
	}
	if *lines > 0 {
		size.lines = *lines
	}
	if *kernels > 0 {
		size.kernels = *kernels
	}
	if size.lines < 30*size.kernels+overhead {
		return fmt.Errorf("%d lines are too few for %d kernels: at least 30 each and %d more", size.lines, size.kernels, overhead)
	}
	forms, err := formsOf(*era)
	if err != nil {
		return err
	}
	sink := stdout
	if *out != "-" {
		file, err := os.Create(*out)
		if err != nil {
			return err
		}
		defer file.Close()
		sink = file
	}
	w := bufio.NewWriterSize(sink, 1<<20)
	g := newGenerator(w, *seed, *broken, forms)
	g.log(size.lines, size.kernels)
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write log: %w", err)
	}
	if file, ok := sink.(*os.File); ok && *out != "-" {
		if err := file.Close(); err != nil {
			return fmt.Errorf("write log: %w", err)
		}
	}
	if *expect != "" {
		text, err := json.MarshalIndent(g.counts, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(*expect, append(text, '\n'), 0o644); err != nil {
			return fmt.Errorf("write counts: %w", err)
		}
	}
	return nil
}
