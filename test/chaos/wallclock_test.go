// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"xsched/test/proc"
)

// TestMain runs the child of TestWallClockSteps and TestStopThread, which prints its clocks for every
// line it reads. It has a thread with the name of the shim's watcher.
func TestMain(m *testing.M) {
	if os.Getenv("CHAOS_CHILD") == "" {
		os.Exit(m.Run())
	}
	go func() {
		runtime.LockOSThread()
		_ = os.WriteFile("/proc/thread-self/comm", []byte(watcherThread), 0)
		select {}
	}()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println("T", time.Now().Unix(), now())
	}
}

// TestWallClockSteps: a step changes the wall clock of one process, in both directions and again,
// and its monotonic clock never.
func TestWallClockSteps(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip(errNoClock)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CHAOS_CHILD=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := proc.Start(cmd); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = cmd.Wait() }()
	scan := bufio.NewScanner(out)
	read := func() (wall time.Duration, monotonic int64) {
		if _, err := in.Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
		for scan.Scan() {
			if f := strings.Fields(scan.Text()); len(f) == 3 && f[0] == "T" {
				at, _ := strconv.ParseInt(f[1], 10, 64)
				monotonic, _ = strconv.ParseInt(f[2], 10, 64)
				return time.Until(time.Unix(at, 0)), monotonic
			}
		}
		t.Fatal("the child has ended")
		return 0, 0
	}
	read()
	pause := pauseBySignal(func(s syscall.Signal) { _ = cmd.Process.Signal(s) })
	for _, ahead := range []time.Duration{-time.Hour, 24 * time.Hour, 0} {
		c, err := openClock(cmd.Process.Pid, pause)
		if err != nil {
			t.Fatal(err)
		}
		before := now()
		if err := c.set(ahead); err != nil {
			t.Fatal(err)
		}
		c.close()
		wall, monotonic := read()
		if (wall - ahead).Abs() > 5*time.Second {
			t.Errorf("the wall clock is ahead by %v, want %v", wall, ahead)
		}
		if monotonic < before || monotonic > now() {
			t.Errorf("the monotonic clock shows %d, want between %d and %d", monotonic, before, now())
		}
	}
	if wall, _ := read(); wall.Abs() > 5*time.Second {
		t.Errorf("this process's clock differs by %v", wall)
	}
}
