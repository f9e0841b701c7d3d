// SPDX-License-Identifier: Apache-2.0

package pair

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"xsched/internal/bench"
	"xsched/internal/control"
)

// runAlone starts the offline program, waits until it uses the GPU and measures it alone.
func (c *colocation) runAlone(ctx context.Context) (err error) {
	if c.offline, err = c.start("offline", c.Offline, offlinePriority, c.Attach); err != nil {
		return err
	}
	if c.Attach {
		if err := c.attach(ctx); err != nil {
			return err
		}
	}
	if err := c.await(ctx, c.offline, func(p control.Process) bool { return !isOnline(p) && works(p) }); err != nil {
		return err
	}
	if err := bench.Sleep(ctx, settleTime); err != nil {
		return err
	}
	c.say("the offline program runs alone for %v", c.Alone)
	if c.alone, err = c.measure(ctx, func() bool { return false }, c.Alone); err != nil {
		return err
	}
	if !c.offline.running() {
		return c.offline.gone()
	}
	return nil
}

// say tells the user which phase begins.
func (c *colocation) say(format string, args ...any) {
	if c.Progress != nil {
		fmt.Fprintf(c.Progress, format+"\n", args...)
	}
}

// works reports whether a process is known to have submitted work.
func works(p control.Process) bool {
	for _, q := range p.Queues {
		if p.Attached || p.Counters.Launches > 0 || q.Submitted > 0 || q.Route == "owner" {
			return true
		}
	}
	return false
}

// attach attaches the daemon to the process of the offline program that uses the GPU.
func (c *colocation) attach(ctx context.Context) error {
	priority := int32(offlinePriority)
	var last error
	ok, err := bench.Until(ctx, joinLimit, samplePace, func() (bool, error) {
		if !c.offline.running() {
			return false, c.offline.gone()
		}
		for _, pid := range groupOf(c.offline.cmd.Process.Pid) {
			_, err := c.rig.Daemon.AttachWith(ctx, control.ProcessRequest{PID: pid, Priority: &priority})
			if err == nil {
				return true, nil
			}
			if !errors.Is(err, control.ErrNotFound) || last == nil {
				last = err
			}
		}
		return false, nil
	})
	if err != nil || ok {
		return err
	}
	return fmt.Errorf("attach to the offline program: %w", last)
}

// groupOf returns the processes of a process group that have not ended.
func groupOf(group int) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		// The name may contain any byte, so count fields from its end: state, parent, group.
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(fields) > 2 && fields[2] == strconv.Itoa(group) && fields[0] != "Z" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// await waits until a process of a side satisfies the condition.
func (c *colocation) await(ctx context.Context, s *side, wanted func(control.Process) bool) error {
	ok, err := bench.Until(ctx, joinLimit, samplePace, func() (bool, error) {
		list, err := c.rig.Daemon.List(ctx)
		if err != nil {
			return false, fmt.Errorf("read the daemon's list: %w", err)
		}
		found := slices.ContainsFunc(list.Processes, wanted)
		if !found && !s.running() {
			return false, s.gone()
		}
		return found, nil
	})
	if err != nil || ok {
		return err
	}
	return fmt.Errorf("%w: the %s program has not used the GPU within %v, or the shim in it is inert", bench.ErrProof, s.name, joinLimit)
}

// runTogether starts the online program and measures until it ends, or long enough.
func (c *colocation) runTogether(ctx context.Context) (err error) {
	if c.online, err = c.start("online", c.Online, onlinePriority, false); err != nil {
		return err
	}
	if err := c.await(ctx, c.online, func(p control.Process) bool { return isOnline(p) && works(p) }); err != nil {
		return err
	}
	if err := bench.Sleep(ctx, settleTime); err != nil {
		return err
	}
	limit := c.Together
	if limit == 0 {
		limit = 24 * time.Hour
		c.say("both programs run until the online one ends")
	} else {
		c.say("both programs run for at most %v", limit)
	}
	before, err := c.rig.Daemon.Stats(ctx)
	if err != nil {
		return fmt.Errorf("read the daemon's figures: %w", err)
	}
	if _, err := c.look(ctx); err != nil { // names the processes
		return err
	}
	c.usage(0)
	remaps, err := c.remaps()
	if err != nil {
		return err
	}
	end := time.Now().Add(limit)
	if c.together, err = c.measure(ctx, func() bool { return !c.online.running() }, limit); err != nil {
		return err
	}
	c.expired = !time.Now().Before(end)
	remapped, err := c.remaps()
	if err != nil {
		return err
	}
	c.report.Remaps = remapped - remaps
	if err := c.draw(ctx); err != nil {
		return err
	}
	after, err := c.rig.Daemon.Stats(ctx)
	if err != nil {
		return fmt.Errorf("read the daemon's figures: %w", err)
	}
	c.report.Suspend = between(before.SuspendTime, after.SuspendTime, suspendTarget)
	c.report.Resume = between(before.ResumeTime, after.ResumeTime, resumeTarget)
	return nil
}

// between summarizes the growth of a histogram; its percentiles cover the whole histogram.
func between(before, after control.Histogram, limit float64) Operation {
	within := func(h control.Histogram) uint64 {
		for i, bound := range control.HistogramBoundsUS() {
			if bound == limit*1000 && i < len(h.Cumulative) {
				return h.Cumulative[i]
			}
		}
		return 0
	}
	o := operation(after)
	o.N, o.Within = after.Count-before.Count, within(after)-within(before)
	return o
}

// look is one reading of all counters.
type look struct {
	at                int64
	ran, onlineRan    time.Duration
	launches          uint64
	online            int // processes
	recorded, shimmed bool
}

func (c *colocation) look(ctx context.Context) (look, error) {
	list, err := c.rig.Daemon.List(ctx)
	if err != nil {
		return look{}, fmt.Errorf("read the daemon's list: %w", err)
	}
	l := look{at: bench.Monotonic()}
	for _, p := range list.Processes {
		c.report.note(p)
		if isOnline(p) {
			l.online++
			c.online.pids[p.PID] = true
			continue
		}
		c.offline.pids[p.PID] = true
		if !p.Attached {
			l.shimmed = l.shimmed || p.Counters.Launches > 0
			l.launches += p.Counters.Launches
		}
	}
	if d, ok := c.rig.Device.(bench.VGPU); ok {
		stats, err := d.Client.Stats()
		if err != nil {
			return l, fmt.Errorf("read the device's figures: %w", err)
		}
		l.recorded, l.at = true, stats.NowNS
		for _, a := range stats.Clients {
			switch {
			case c.offline.pids[a.PID]:
				l.ran += time.Duration(a.RunNS)
			case c.online != nil && c.online.pids[a.PID]:
				l.onlineRan += time.Duration(a.RunNS)
			}
		}
	}
	return l, nil
}

// measure observes the programs until stop returns true. The measurement ends with the last look
// before that.
func (c *colocation) measure(ctx context.Context, stop func() bool, limit time.Duration) (progress, error) {
	if c.online == nil {
		c.online = &side{name: "online", done: closed(), pids: map[int]bool{}}
		defer func() { c.online = nil }()
	}
	first, err := c.look(ctx)
	if err != nil {
		return progress{}, err
	}
	last, noted := first, first.at
	for end := time.Now().Add(limit); time.Now().Before(end); {
		if err := bench.Sleep(ctx, min(samplePace, time.Until(end))); err != nil {
			return progress{}, err
		}
		now, err := c.look(ctx)
		if err != nil {
			return progress{}, err
		}
		if stop() || first.online > 0 && now.online == 0 || !c.offline.running() {
			break
		}
		last = now
		if len(c.report.Usage) > 0 && last.at-noted >= int64(time.Second) {
			noted = last.at
			c.usage(1) // a program that ends by itself has no last moment
		}
	}
	return progress{
		from: first.at, to: last.at, ran: last.ran - first.ran, launches: last.launches - first.launches,
		onlineRan: last.onlineRan - first.onlineRan, recorded: last.recorded, hooked: last.shimmed,
	}, nil
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// resumed waits until the offline program, whose online one has ended, is resumed, and reports whether it was. The
// counters don't tell: a program whose lease expires resumes itself, and the daemon suspends it again.
func (c *colocation) resumed(ctx context.Context, limit time.Duration) bool {
	for end := time.Now().Add(limit); ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		s, err := c.rig.Daemon.Stats(ctx)
		if err != nil || !suspended(s) {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

func suspended(s control.Stats) bool {
	return slices.ContainsFunc(s.Targets, func(t control.TargetStats) bool { return t.Suspended })
}

// resumeLimit is beyond every resume on a busy machine.
const resumeLimit = 5 * time.Second

// finish ends the programs and reads the daemon's counters.
func (c *colocation) finish(ctx context.Context) error {
	if c.expired {
		c.online.stop()
	}
	c.say("each program has %v to end", c.Linger)
	// A program that no longer uses the GPU may still be about to exit.
	for _, s := range []*side{c.online, c.offline} {
		select {
		case <-s.done:
		case <-time.After(c.Linger):
		case <-ctx.Done():
			return ctx.Err()
		}
		if s == c.offline && !c.resumed(ctx, resumeLimit) {
			c.report.Lost = append(c.report.Lost, fmt.Sprintf("the offline program was not resumed within %v of the end of the online one", resumeLimit))
		}
		s.stop() // no effect if it has already ended
	}
	stats, err := c.rig.Daemon.Stats(ctx)
	if err != nil {
		return fmt.Errorf("read the daemon's figures: %w", err)
	}
	c.report.operations(stats)
	return nil
}
