// SPDX-License-Identifier: Apache-2.0

// Command attack runs every known attack of an unprivileged user against a root daemon, with real
// processes on the virtual GPUs, and states what each costs the programs of other users and the
// operator. docs/threat-model.md describes the attacks and the bounds.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"xsched/internal/virtual"
	"xsched/test/proc"
)

const help = `Usage: attack [flags]

Attacks a root daemon as an unprivileged user, one attack after the other, while programs of other
users run on two virtual GPUs: a latency-critical service and a job on the first one, a job on the
second one. Needs root, to start the daemon and to change to other users. Uses loopback only.

Each attack runs in rounds of three blocks: without an attacker (alone), with the attacker
(attacked), and with a control: a program of the same user that uses as much CPU time as the
attacker did, and does not touch the daemon. A user's own CPU time disturbs others natively, and a
machine with two cores shows it. An attack breaks its bound if the ratio of attacked to alone AND the
ratio of attacked to control are above the limit, each with its whole interval of confidence (95 %).

Time during which the host withheld the CPUs from a thread of the highest priority does not count.

The victims run with the CPU priority that benchmarks of this project use (SCHED_FIFO), so the ratios
show the daemon's decisions. Where the kernel refuses it, they have CPUs of their own, if there are
enough. What an attack costs in CPU time is a bound of its own (cpu).

The daemon runs under the restrictions of the shipped systemd unit: address families, open files,
nice value; the bench ends a daemon that exceeds the unit's MemoryMax.

The status is 1 if an attack breaks a bound, and 2 if the bench could not run.

Flags:
`

func main() {
	err := error(nil)
	command := ""
	if len(os.Args) > 1 {
		command = os.Args[1]
	}
	switch command {
	case "act":
		err = act(os.Args[2:])
	case "sandbox":
		err = sandbox(os.Args[2:])
	case "fuse":
		err = serveFUSE(os.Args[2:])
	default:
		err = run(os.Args[1:])
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errBroken):
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "attack:", err)
		os.Exit(2)
	}
}

// errBroken ends the program with status 1.
var errBroken = errors.New("an attack broke a bound")

// settings are what the command line selects.
type settings struct {
	rounds  int
	block   time.Duration
	short   bool // without controls and restarts, where the attack does not need them
	verbose bool
	out     string
}

func run(args []string) error {
	var s settings
	f := flag.NewFlagSet("attack", flag.ContinueOnError)
	binary := f.String("binary", "bin/xsched", "the binary under test")
	libraries := f.String("virtual", "build/virtual", "folder of the virtual driver's files")
	unit := f.String("unit", "deploy/systemd/xsched.service", "the unit whose restrictions apply; empty: none")
	platform := f.String("platform", "", "only attacks on this virtual GPU; empty: all")
	only := f.String("only", "", "names or ids of attacks, separated by commas; empty: all")
	short := f.Bool("short", false, "one round of short blocks, for tests on a busy machine: jobs may take twice the time, the daemon a core; the P99 is not judged")
	list := f.Bool("list", false, "list the attacks")
	table := f.String("table", "", "print the figures of such a file as the table of docs/results/attacks.md")
	asJSON := f.Bool("json", false, "print JSON")
	f.StringVar(&s.out, "out", "", "write the figures as JSON to this file, after each attack")
	f.IntVar(&s.rounds, "rounds", 3, "rounds of each attack")
	f.DurationVar(&s.block, "block", 600*time.Millisecond, "length of a block")
	f.BoolVar(&s.verbose, "v", false, "print progress to standard error")
	f.Usage = func() {
		fmt.Fprint(f.Output(), help)
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return err
	}
	if *list {
		for _, a := range attacks() {
			fmt.Printf("%-18s %-4s %s\n", a.name, a.id, a.what)
		}
		return nil
	}
	if *table != "" {
		return printTable(os.Stdout, *table)
	}
	if os.Geteuid() != 0 {
		return errors.New("the bench starts programs of several users; run it as root")
	}
	bounds := usualBounds()
	if *short {
		// One round: a ratio shows only gross damage. On two busy cores the P99 of half a second varies a
		// hundredfold without an attack, and floods of connections cost up to 0.7 cores (2026-11-18).
		s.rounds, s.block, s.short = 1, 500*time.Millisecond, true
		bounds.Ratio, bounds.CPU, bounds.P99 = 2, 100, false
	}
	selected, err := choose(*only)
	if err != nil {
		return err
	}
	limits, err := readUnit(*unit)
	limits.cores = division().daemon
	if err != nil {
		return err
	}
	folder, err := proc.Collect(*binary, *libraries)
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	r := Report{Version: versionOf(*binary), CPUs: runtime.NumCPU(), Load: division().String(), Bounds: bounds, begin: time.Now()}
	if err := r.run(*platform, folder, limits, selected, s); err != nil {
		return err
	}
	if err := r.print(*asJSON); err != nil {
		return err
	}
	if r.Broken() > 0 {
		return errBroken
	}
	return nil
}

// run runs attacks on the virtual GPUs.
func (r *Report) run(platform, folder string, limits unitLimits, selected []attack, s settings) error {
	if err := raise(); err != nil {
		return err
	}
	host() // measures from now on
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	for _, p := range virtual.All() {
		if platform != "" && platform != p.Name {
			continue
		}
		if err := runOn(p, folder, limits, selected, s, r, stop); err != nil {
			return err
		}
	}
	if len(r.Rows) == 0 {
		return errors.New("no attack was selected; see --list")
	}
	return nil
}

// choose returns the attacks that the flag --only selects.
func choose(only string) ([]attack, error) {
	if only == "" {
		return attacks(), nil
	}
	var out []attack
	for name := range strings.SplitSeq(only, ",") {
		found := false
		for _, a := range attacks() {
			if a.name == name || a.id == name {
				out, found = append(out, a), true
			}
		}
		if !found {
			return nil, fmt.Errorf("unknown attack %q; see --list", name)
		}
	}
	return out, nil
}

// runOn runs the attacks for one virtual GPU.
func runOn(p virtual.Platform, folder string, limits unitLimits, selected []attack, s settings, r *Report, stop <-chan os.Signal) (err error) {
	var w *world
	defer func() {
		if w != nil {
			w.close()
		}
	}()
	for _, a := range selected {
		if !a.runsOn(p) {
			continue
		}
		if w == nil {
			if w, err = newWorld(p, folder, limits); err != nil {
				return err
			}
		}
		select {
		case <-stop:
			return errors.New("stopped by a signal")
		default:
		}
		if s.verbose {
			fmt.Fprintf(os.Stderr, "%-8s %-18s %s\n", p.Name, a.name, a.what)
		}
		row, err := w.measure(a, s, r.Bounds)
		if err != nil {
			return fmt.Errorf("%s on %s: %w", a.name, p.Name, err)
		}
		r.Rows = append(r.Rows, row)
		r.Seconds = time.Since(r.begin).Seconds()
		if err := r.save(s.out); err != nil {
			return err
		}
		if s.verbose {
			fmt.Fprintln(os.Stderr, row.line())
			for _, text := range row.Broken {
				fmt.Fprintln(os.Stderr, "   ", text)
			}
		}
	}
	return nil
}
