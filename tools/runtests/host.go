// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	nap        = 2 * time.Millisecond
	lateLeast  = time.Millisecond      // below: the kernel's own
	lateMost   = 10 * time.Millisecond // one such delay fails a test of milliseconds
	latePart   = 0.05                  // so much of a CPU missing fails a test of throughput
	calmFor    = 3 * time.Second
	calmBudget = 10 * time.Minute // the longest wait for a calm host, in all
)

// host measures how long the machine kept the CPUs from the tests. On each CPU a thread of real-time
// priority sleeps for 2 ms at a time. The load of the tests can't delay it; a hypervisor that runs
// other machines can.
type host struct {
	cpus int // watched; 0: real-time priority is not allowed, so that nothing is known

	mu     sync.Mutex
	delays []delay
}

// delay is a time in which a CPU ran nothing of ours.
type delay struct{ from, to time.Time }

// watch starts the measurement. Its threads end with the process.
func watch() *host {
	h := &host{}
	var allowed unix.CPUSet
	if unix.SchedGetaffinity(0, &allowed) != nil {
		return h
	}
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + allowed.Count())
	for cpu, seen := 0, 0; seen < allowed.Count(); cpu++ {
		if !allowed.IsSet(cpu) {
			continue
		}
		seen++
		started := make(chan bool)
		go h.probe(cpu, started)
		if <-started {
			h.cpus++
		}
	}
	return h
}

// probe watches one CPU.
func (h *host) probe(cpu int, started chan<- bool) {
	runtime.LockOSThread() // never unlocked: the priority is of this thread
	var one unix.CPUSet
	one.Set(cpu)
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 50}
	ok := unix.SchedSetaffinity(0, &one) == nil && unix.SchedSetAttr(0, &attr, 0) == nil
	started <- ok
	if !ok {
		return
	}
	length := unix.NsecToTimespec(int64(nap))
	for {
		from := time.Now()
		_ = unix.Nanosleep(&length, nil)
		h.slept(from, time.Now())
	}
}

// slept records a nap that ended late.
func (h *host) slept(from, to time.Time) {
	if due := from.Add(nap); to.Sub(due) >= lateLeast {
		h.mu.Lock()
		h.delays = append(h.delays, delay{due, to})
		h.mu.Unlock()
	}
}

// withheld tells how long the CPUs were missing in a time, on average, and the longest delay.
func (h *host) withheld(from, to time.Time) (average, longest time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.delays {
		if begin, end := later(d.from, from), earlier(d.to, to); begin.Before(end) {
			average += end.Sub(begin)
			longest = max(longest, d.to.Sub(d.from))
		}
	}
	return average / time.Duration(max(1, h.cpus)), longest
}

// disturbed says what the host did to a test that ran in this time; "" if too little to explain a failure.
func (h *host) disturbed(from, to time.Time) string {
	average, longest := h.withheld(from, to)
	if took := to.Sub(from); longest >= lateMost || average.Seconds() >= latePart*took.Seconds() && average > 0 {
		return fmt.Sprintf("the host withheld the CPUs for %.0f%% of %.1f s, up to %v at a time",
			100*average.Seconds()/max(took.Seconds(), 1e-3), took.Seconds(), longest.Round(time.Millisecond))
	}
	return ""
}

// calm waits until the host has left the CPUs alone for some seconds, and returns what remains of the budget.
func (h *host) calm(ctx context.Context, budget time.Duration) time.Duration {
	start := time.Now()
	for ctx.Err() == nil && time.Since(start) < budget {
		now := time.Now()
		if now.Sub(start) >= calmFor && h.disturbed(now.Add(-calmFor), now) == "" {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return budget - time.Since(start)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
