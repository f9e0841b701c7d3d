// SPDX-License-Identifier: Apache-2.0

// Command chaos injects faults into worlds of a daemon, a virtual GPU and tenants, and checks what
// must hold: progress, nobody held, checksums, no leaks. docs/chaos.md describes it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"xsched/test/proc"
)

func main() {
	err := error(nil)
	switch {
	case len(os.Args) > 1 && os.Args[1] == "act":
		err = act(os.Args[2:])
	case len(os.Args) > 1 && os.Args[1] == "enter":
		err = enter(os.Args[2:])
	default:
		// nohup ignores this signal, and children inherit that: a daemon that does not handle it would
		// survive the fault.
		if signal.Ignored(syscall.SIGHUP) {
			signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
		}
		err = run(os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

// errBroken ends the program with status 1.
var errBroken = errors.New("a promise was broken; see the report")

func run(args []string) error {
	var c campaign
	f := flag.NewFlagSet("chaos", flag.ContinueOnError)
	binary := f.String("binary", "bin/xsched", "the binary under test")
	other := f.String("other-binary", "", "another release, for upgrades and downgrades")
	kube := f.String("kube-binary", "", "build of xsched-kube, for faults of a node plugin and its API server")
	libraries := f.String("virtual", "build/virtual", "folder of the virtual driver's files")
	out := f.String("out", "", "folder of the report; empty: none")
	replay := f.String("replay", "", "replay the schedule of a failure file")
	times := f.Int("times", 3, "with --replay: how often")
	only := f.String("only", "", "kinds of faults, separated by commas; empty: all")
	list := f.Bool("list", false, "list the kinds of faults")
	want := f.String("want-rule", "", "succeed only if a failure breaks one of these rules, separated by commas; for planted bugs")
	f.Uint64Var(&c.seed, "seed", 1, "seed of all schedules")
	f.IntVar(&c.faults, "faults", 300, "number of faults")
	f.IntVar(&c.worlds, "worlds", 2, "worlds at the same time")
	f.DurationVar(&c.limit, "for", 0, "stop after this time; 0: no limit")
	f.DurationVar(&c.box, "shrink", time.Minute, "time to shrink one failure; 0: do not")
	f.IntVar(&c.stopAt, "stop-after", 3, "stop after so many failures")
	confirm := f.Bool("confirm", false, "let only failures that repeat while shrinking fail the run, or that leave damage")
	f.BoolVar(&c.verbose, "v", false, "print progress")
	f.IntVar(&c.plan.segments, "segments", 3, "segments an episode; each ends with a check of everything")
	f.IntVar(&c.plan.faults, "segment-faults", 20, "faults a segment")
	f.Float64Var(&c.plan.rate, "rate", 5, "faults a second in each world")
	f.StringVar(&c.plan.platform, "platform", "", "only worlds with this virtual GPU; empty: all")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *list {
		for _, k := range kinds() {
			fmt.Printf("%-18s %s\n", k.name, k.what)
		}
		return nil
	}
	if *only != "" {
		c.plan.only = strings.Split(*only, ",")
		for _, name := range c.plan.only {
			if _, ok := findKind(name); !ok {
				return fmt.Errorf("unknown kind of fault %q; see --list", name)
			}
		}
	}
	if *want != "" {
		c.want = strings.Split(*want, ",")
	}
	c.plan.root, c.plan.older, c.plan.kube = os.Geteuid() == 0, *other != "", *kube != ""
	if done, err := ownMounts(); done || err != nil {
		return err
	}
	var err error
	if c.tools, err = collect(*binary, *other, *kube, *libraries); err != nil {
		return err
	}
	defer os.RemoveAll(c.tools.folder)
	c.plan.spaces = possibleSpaces(c.tools.self)
	var mu sync.Mutex
	begin := time.Now()
	c.say = func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf("%5.0f s  %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
	}
	c.stalls = measureStalls()
	if *replay != "" {
		return c.replay(*replay, *times)
	}
	c.run()
	r := c.report(time.Since(begin), c.stalls.in(0, now()))
	r.Version, r.Other = versionOf(*binary), versionOf(*other)
	fmt.Print(r)
	if *out != "" {
		if err := r.write(*out); err != nil {
			return err
		}
	}
	failed := len(r.Broken) > 0 || slices.ContainsFunc(r.Failures, func(f Failure) bool { return !*confirm || f.Repeats || f.damage() })
	switch {
	case *want != "" && c.found() == 0:
		return fmt.Errorf("no failure broke the rule %s, although the binary has a planted bug", *want)
	case *want == "" && failed:
		return errBroken
	}
	return nil
}

// timing are the rules that a delay of the machine can break. All others mean lasting damage.
var timing = []string{"late", "held", "rejoin"}

// damage reports whether a failure can't come from a delay.
func (f *Failure) damage() bool {
	return slices.ContainsFunc(f.Violations, func(v Violation) bool { return !slices.Contains(timing, v.Rule) })
}

// replay repeats one schedule.
func (c *campaign) replay(path string, times int) error {
	s, err := readSchedule(path)
	if err != nil {
		return err
	}
	failures := 0
	for i := range times {
		o, err := c.episode(s, make(chan struct{}))
		if err != nil {
			return err
		}
		c.say("replay %d: %d violations", i+1, len(o.violations))
		for _, v := range o.violations {
			c.say("  %v", v)
		}
		if len(o.violations) > 0 {
			failures++
			for _, line := range o.log {
				fmt.Println("    ", line)
			}
		}
	}
	if failures > 0 {
		return errBroken
	}
	return nil
}

// ownMounts runs this program again in a mount namespace of its own, so that the small file systems
// of its worlds end with it. Only root needs it.
func ownMounts() (done bool, err error) {
	const mark = "CHAOS_OWN_MOUNTS=1"
	if os.Geteuid() != 0 || os.Getenv("CHAOS_OWN_MOUNTS") != "" {
		if os.Geteuid() == 0 {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		return false, err
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), mark)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); errors.Is(err, syscall.EPERM) {
		return false, nil // a container: without full disks
	} else if err != nil {
		return true, err
	}
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		os.Exit(max(1, exit.ExitCode()))
	}
	return true, err
}

// collect copies the files under test.
func collect(binary, other, kube, libraries string) (t tools, err error) {
	if t.folder, err = proc.Collect(binary, libraries); err != nil {
		return t, err
	}
	t.libraries = t.folder
	t.xsched, t.self, t.tenant = filepath.Join(t.folder, "xsched"), filepath.Join(t.folder, "self"), filepath.Join(t.folder, "tenant")
	if other != "" {
		t.other = filepath.Join(t.folder, "xsched-other")
		err = proc.CopyFile(t.other, other)
	}
	if kube != "" {
		t.kube = filepath.Join(t.folder, "xsched-kube")
		err = errors.Join(err, proc.CopyFile(t.kube, kube))
	}
	return t, err
}

func versionOf(binary string) string {
	if binary == "" {
		return ""
	}
	text, err := exec.Command(binary, "--version").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}
