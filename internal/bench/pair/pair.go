// SPDX-License-Identifier: Apache-2.0

// Package pair runs an online and an offline program on one GPU and reports the cost for both.
package pair

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/bench"
	"xsched/internal/control"
	"xsched/internal/report"
	"xsched/internal/virtual"
)

// Options configure a run. Zero values select the defaults.
type Options struct {
	Online, Offline string // commands, for a shell; both empty, on the virtual GPU: Load
	Load            Load
	OfflineEnv      []string // further variables of the offline program
	Virtual         bool
	Platform        string        // of the virtual GPU; default: the first of internal/virtual
	Attach          bool          // the offline program runs without the shim and is controlled from outside
	Slice           time.Duration // maximum suspension of the offline program; 0: the daemon's bound
	Hold            time.Duration // of the daemon; 0: its default, below 0: none
	Alone           time.Duration // duration of the measurement alone; default 2 s
	Together        time.Duration // maximum duration of both programs; 0: until the online one ends
	Linger          time.Duration // time for each program to end afterwards; default 10 s
	Out             string        // folder for pair.json and report.html; empty: none
	Progress        io.Writer     // gets a line at the start of each phase; nil: none
	Output          io.Writer     // receives the programs' output; nil: discard
	Exe             string        // the xsched program; empty: this one
}

// The priorities distinguish the two programs, because the daemon serves no others.
const (
	onlinePriority  = 10
	offlinePriority = -10

	joinLimit  = 30 * time.Second // for a program to use the GPU
	samplePace = 50 * time.Millisecond
	settleTime = 300 * time.Millisecond
	endLimit   = 3 * time.Second // after SIGTERM
)

func (o *Options) defaults() error { return bench.Complete(o.check(), o.Out, &o.Exe) }

// check sets defaults, and returns the first option that is out of range.
func (o *Options) check() error {
	bench.Default(&o.Platform, virtual.Default().Name)
	bench.Default(&o.Alone, 2*time.Second)
	bench.Default(&o.Linger, 10*time.Second)
	switch {
	case o.Virtual && o.Online == "" && o.Offline == "":
		if err := o.Load.defaults(); err != nil {
			return err
		}
	case strings.TrimSpace(o.Online) == "" || strings.TrimSpace(o.Offline) == "":
		return errors.New("both commands are needed; use --online CMD --offline CMD")
	case o.Slice < 0 || o.Alone < 0 || o.Together < 0 || o.Linger < 0:
		return errors.New("times can't be negative")
	case o.Slice != 0 && o.Slice < time.Millisecond:
		return fmt.Errorf("a slice of %v is too short; use at least 1ms", o.Slice)
	}
	return nil
}

// colocation is one run.
type colocation struct {
	Options
	rig    *bench.Rig
	record string
	report *Report

	online, offline *side
	alone, together progress
	expired         bool         // both ran for the maximum duration
	lastPIDs        map[int]bool // of the online program
	drawn           bench.Window // shown by the timeline
	segments        []bench.Segment
}

// side is one program and its children.
type side struct {
	name string
	cmd  *exec.Cmd
	errs bench.Tail
	done chan struct{}
	err  error // exit error
	// ended means that we ended the program, so its exit code has no meaning.
	ended bool
	pids  map[int]bool // of its processes that use the GPU
}

// progress is the work of the offline program in an interval.
type progress struct {
	from, to         int64
	ran              time.Duration // on the GPU, by its own record
	launches         uint64        // by the shim
	onlineRan        time.Duration
	recorded, hooked bool
}

// Run runs the offline program alone, then both, and reports the cost to each. Without proof that
// the online program preempted the offline one, Run returns an error instead of a report.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	c := &colocation{Options: o, lastPIDs: map[int]bool{}}
	if err := c.run(ctx); err != nil {
		return nil, bench.WithContext(ctx, err)
	}
	if err := c.prove(); err != nil {
		return nil, err
	}
	if o.Out != "" {
		if err := c.report.save(o.Out); err != nil {
			return nil, err
		}
	}
	return c.report, nil
}

func (c *colocation) run(ctx context.Context) error {
	folder, remove, err := bench.Folder("xsched-pair-")
	if err != nil {
		return err
	}
	defer remove()
	c.record = filepath.Join(folder, "recording")
	online, offline := c.Online, c.Offline
	if online == "" && offline == "" {
		online, offline = c.Load.describe()
		if err := c.builtIn(folder); err != nil {
			return err
		}
	}
	flags := []string{"--record", c.record, "--policy", "HPF", "--mode", "suspend"}
	if c.Slice > 0 {
		flags = append(flags, "--starvation-bound", c.Slice.String())
	}
	if c.Hold != 0 {
		flags = append(flags, "--hold", max(c.Hold, 0).String())
	}
	platform := ""
	if c.Virtual {
		platform = c.Platform
	}
	// On a real host the daemon does not compete with other measurements for a CPU.
	scheduling, err := bench.Prioritized(func() (err error) {
		c.rig, err = bench.OpenPrivate(ctx, c.Exe, bench.Private{Platform: platform, Serve: flags})
		return err
	})
	if err != nil {
		return err
	}
	defer c.rig.Close()
	c.report = &Report{
		Device: "GPU", Date: time.Now(), Machine: bench.ThisMachine(), Online: online, Offline: offline, SliceMS: report.MS(c.Slice),
	}
	c.report.Machine.Scheduling = scheduling
	if c.Virtual {
		c.report.Device, c.report.Platform = bench.VirtualDevice, c.Platform
	}
	defer c.endAll()
	if err := c.runAlone(ctx); err != nil {
		return err
	}
	if err := c.runTogether(ctx); err != nil {
		return err
	}
	if err := c.finish(ctx); err != nil {
		return err
	}
	c.rig.Serve.Stop() // writes the end of the recording
	return c.readRecording()
}

// environment is that of a program: this process's, with the daemon of the run in place of any other
// scheduler. The last of equal names counts, as os/exec has it.
func (c *colocation) environment(offline bool) []string {
	env := slices.DeleteFunc(os.Environ(), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.Contains([]string{"XSCHED_SOCKET", "XSCHED_SCHEDULER", "XSCHED_SCHED", "XSCHED_POLICY"}, name)
	})
	env = append(env, "XSCHED_DIR="+c.rig.Dir)
	if offline {
		env = append(env, c.OfflineEnv...)
	}
	return env
}

// start runs a command, with or without the daemon.
func (c *colocation) start(name, command string, priority int, bare bool) (*side, error) {
	s := &side{name: name, done: make(chan struct{}), pids: map[int]bool{}}
	argv := []string{c.Exe, "run", "--priority", strconv.Itoa(priority)}
	if c.Virtual {
		argv = append(argv, "--virtual")
	}
	argv = append(argv, "--", "/bin/sh", "-c", command)
	env := c.environment(priority < 0)
	if bare {
		argv = []string{"/bin/sh", "-c", command}
		if c.Virtual {
			more, err := c.rig.DeviceEnv()
			if err != nil {
				return nil, err
			}
			env = append(env, more...)
		}
	}
	s.cmd = exec.Command(argv[0], argv[1:]...)
	s.cmd.Env, s.cmd.Stderr, s.cmd.Stdout = env, &s.errs, c.Output
	if c.Output != nil {
		s.cmd.Stderr = io.MultiWriter(&s.errs, c.Output)
	}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	s.cmd.WaitDelay = endLimit
	if _, err := bench.Prioritized(s.cmd.Start); err != nil {
		return nil, fmt.Errorf("start the %s program: %w", name, err)
	}
	go func() {
		s.endChildren()
		s.err = s.cmd.Wait()
		close(s.done)
	}()
	return s, nil
}

// endChildren waits until a program has ended and kills its remaining children. The kernel does not
// reuse the PID and the process group before the program is reaped.
func (s *side) endChildren() {
	pid := s.cmd.Process.Pid
	for {
		if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	for limit, told := time.Now().Add(endLimit), false; len(groupOf(pid)) > 0; time.Sleep(samplePace / 5) {
		switch {
		case time.Now().After(limit):
			_ = syscall.Kill(-pid, syscall.SIGKILL)
			return
		case !told:
			told = true
			_ = syscall.Kill(-pid, syscall.SIGTERM)
		}
	}
}

// stop ends a program and its children, with SIGTERM, then SIGKILL.
func (s *side) stop() {
	if s == nil {
		return
	}
	select {
	case <-s.done:
		return
	default:
	}
	s.ended = true
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGTERM)
	select {
	case <-s.done:
		return
	case <-time.After(endLimit):
	}
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	<-s.done
}

func (c *colocation) endAll() {
	c.online.stop()
	c.offline.stop()
}

// running reports whether a program has not ended.
func (s *side) running() bool {
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

func (s *side) gone() error {
	err := s.err
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("the %s program ended too early (%w)%s; try it by itself with `xsched run`, or see what it writes with --output", s.name, err, s.errs.Suffix())
}

// isOnline reports whether a process belongs to the online program.
func isOnline(p control.Process) bool { return p.Priority > 0 }
