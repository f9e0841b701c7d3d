// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// cores divides the CPUs where the kernel refuses CPU priorities. The victims, the device, the daemon and
// the attackers then have CPUs of their own, as lists for sched_setaffinity. Empty: everybody has all.
type cores struct {
	bench, device, victims, daemon, attackers string
}

// fifo is the CPU priority that benchmarks give their programs; a user has no right to it.
func fifo() *unix.SchedAttr {
	return &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Flags: unix.SCHED_FLAG_RESET_ON_FORK, Priority: 1}
}

// priorities reports whether the victims can have the CPU priority of benchmarks, and the bench its own.
var priorities = sync.OnceValue(func() bool {
	permitted := make(chan bool)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with its priority
		permitted <- unix.SchedSetAttr(0, fifo(), 0) == nil
	}()
	return <-permitted
})

// division is how this run divides the CPUs.
var division = sync.OnceValue(func() cores {
	var set unix.CPUSet
	if priorities() || unix.SchedGetaffinity(0, &set) != nil {
		return cores{}
	}
	var all []int
	for cpu := range 1024 {
		if set.IsSet(cpu) {
			all = append(all, cpu)
		}
	}
	return divide(all)
})

// divide gives each of the five victims a CPU, the device three, the daemon and the bench two. With fewer
// than four CPUs left for attackers it divides nothing.
func divide(all []int) (c cores) {
	const victims, device, own, least = 5, 3, 2, 4
	if len(all) < victims+device+2*own+least {
		return c
	}
	take := func(n int) string {
		text := make([]string, n)
		for i := range text {
			text[i] = strconv.Itoa(all[i])
		}
		all = all[n:]
		return strings.Join(text, "+")
	}
	c.bench, c.device, c.victims, c.daemon = take(own), take(device), take(victims), take(own)
	c.attackers = take(len(all))
	return c
}

// String says how the victims are protected from the load of the attacker.
func (c cores) String() string {
	switch {
	case priorities():
		return "the victims have a CPU priority"
	case c == cores{}:
		return "CPU priorities are refused here, and there are too few CPUs to divide: the attacker's CPU time shows in the P99"
	}
	return fmt.Sprintf("CPU priorities are refused here; CPUs of the bench %s, the GPU %s, the victims %s, the daemon %s, the attacker %s", c.bench, c.device, c.victims, c.daemon, c.attackers)
}

// pin binds a thread to CPUs; 0: the calling one.
func pin(tid int, list string) error {
	if list == "" {
		return nil
	}
	var set unix.CPUSet
	for text := range strings.SplitSeq(list, "+") {
		cpu, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		set.Set(cpu)
	}
	return unix.SchedSetaffinity(tid, &set)
}
