// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"xsched/test/delays"
)

const (
	usual      = time.Millisecond      // the kernel delays a real-time thread by less
	lateMost   = 10 * time.Millisecond // one such delay fails a test of milliseconds
	latePart   = 0.05                  // so much of the CPUs missing fails a test of throughput
	calmFor    = 3 * time.Second
	calmBudget = 10 * time.Minute // the longest wait for a calm host, in all
)

// host measures how long the machine kept the CPUs from the tests, with a thread of real-time priority on each.
// The load of the tests can't delay such a thread; a hypervisor that runs other machines can.
type host struct {
	start time.Time
	cpus  []*delays.Record // none: real-time priority is not allowed, so that nothing is known
}

// now is the time since the start, in ns.
func (h *host) now() int64 { return int64(time.Since(h.start)) }

// watch starts the measurement. Its threads end with the process.
func watch() *host {
	h := &host{start: time.Now()}
	var allowed unix.CPUSet
	if unix.SchedGetaffinity(0, &allowed) != nil {
		return h
	}
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + allowed.Count())
	for cpu, left := 0, allowed.Count(); left > 0; cpu++ {
		if !allowed.IsSet(cpu) {
			continue
		}
		left--
		record, started := &delays.Record{}, make(chan bool)
		go h.watchCPU(cpu, record, started)
		if <-started {
			h.cpus = append(h.cpus, record)
		}
	}
	return h
}

func (h *host) watchCPU(cpu int, record *delays.Record, started chan<- bool) {
	runtime.LockOSThread() // never unlocked: the priority is of this thread
	var one unix.CPUSet
	one.Set(cpu)
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 50}
	ok := unix.SchedSetaffinity(0, &one) == nil && unix.SchedSetAttr(0, &attr, 0) == nil
	started <- ok
	if ok {
		record.Measure(h.now, usual)
	}
}

// disturbed says what the host did to a test that ran in [from, to); "" if too little to explain a failure.
func (h *host) disturbed(from, to int64) string {
	var average, longest time.Duration
	for _, cpu := range h.cpus {
		sum, most, _ := cpu.In(from, to)
		average += sum / time.Duration(len(h.cpus))
		longest = max(longest, most)
	}
	took := time.Duration(to - from)
	if longest < lateMost && average.Seconds() <= latePart*took.Seconds() {
		return ""
	}
	return fmt.Sprintf("the host withheld the CPUs for %.0f%% of %.1f s, up to %v at a time",
		100*average.Seconds()/took.Seconds(), took.Seconds(), longest.Round(time.Millisecond))
}

// calm waits until the host has left the CPUs alone for some seconds, and returns what remains of the budget.
func (h *host) calm(ctx context.Context, budget time.Duration) time.Duration {
	from := h.now()
	for ctx.Err() == nil && h.now() < from+int64(budget) {
		if now := h.now(); now >= from+int64(calmFor) && h.disturbed(now-int64(calmFor), now) == "" {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return budget - time.Duration(h.now()-from)
}
