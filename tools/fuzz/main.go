// SPDX-License-Identifier: Apache-2.0

// Command fuzz runs the fuzz targets of test/fuzz/targets.txt, keeps their corpus and records how
// long each has run.
//
//	fuzz run      fuzz every target; -users and -others set the time of each
//	fuzz build    write instrumented test binaries and this command to -bin, for another machine
//	fuzz table    write the table of trust boundaries into SECURITY.md
//
// Run it from the root of the repository.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"time"
)

const (
	targetsFile = "test/fuzz/targets.txt"
	recordFile  = "test/fuzz/record.json"
	corpusFile  = "test/fuzz/corpus.tar.gz"
	tableFile   = "SECURITY.md"
)

type options struct {
	users, others string // of -test.fuzztime
	bin, corpus   string
	jobs          int
	keep          bool
	only          string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("no command: use run, build or table")
	}
	var o options
	flags := flag.NewFlagSet("fuzz "+args[0], flag.ContinueOnError)
	flags.StringVar(&o.users, "users", "10s", "time or number of inputs for targets that face unprivileged users")
	flags.StringVar(&o.others, "others", "10s", "time or number of inputs for all other targets")
	flags.StringVar(&o.bin, "bin", "", "folder of test binaries that `fuzz build` wrote; empty: build them")
	flags.StringVar(&o.corpus, "corpus", "build/fuzz/corpus", "folder of the corpus; starts with "+corpusFile)
	flags.IntVar(&o.jobs, "jobs", runtime.NumCPU(), "targets to run at the same time")
	flags.BoolVar(&o.keep, "keep", false, "add this run to "+recordFile+" and "+corpusFile)
	flags.StringVar(&o.only, "only", "", "run only targets whose package and name match this pattern")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	targets, err := readTargets(targetsFile)
	if err != nil {
		return err
	}
	switch args[0] {
	case "run":
		return fuzzAll(ctx, targets, &o)
	case "build":
		if o.bin == "" {
			return fmt.Errorf("build needs -bin FOLDER")
		}
		return build(ctx, targets, o.bin)
	case "table":
		return writeTable(targets, recordFile, tableFile)
	}
	return fmt.Errorf("unknown command %q: use run, build or table", args[0])
}

// today is the date of a record.
func today() string { return time.Now().UTC().Format(time.DateOnly) }
