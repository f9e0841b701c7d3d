// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"xsched/internal/logging"
	"xsched/test/proc"
)

// TestMain runs the child of the tests, which prints its clocks for every line it reads, and logs as many
// lines as that says. It has a thread with the name of the shim's watcher.
func TestMain(m *testing.M) {
	if os.Getenv("CHAOS_CHILD") == "" {
		os.Exit(m.Run())
	}
	go func() {
		runtime.LockOSThread()
		_ = os.WriteFile("/proc/thread-self/comm", []byte(watcherThread), 0)
		select {}
	}()
	log := logging.New(os.Stdout, func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) })
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		for n, _ := strconv.Atoi(in.Text()); n > 0; n-- {
			slog.New(log).Info("something happened", "times", in.Text())
		}
		fmt.Println("T", time.Now().Unix(), now())
	}
}

// child starts this program again. ask writes it a line, and passes each line that it prints to see, until
// its clocks.
func child(t *testing.T) (pid int, ask func(line string, see func(string)) (wall time.Duration, monotonic int64)) {
	t.Helper()
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
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	scan := bufio.NewScanner(out)
	return cmd.Process.Pid, func(line string, see func(string)) (time.Duration, int64) {
		if _, err := fmt.Fprintln(in, line); err != nil {
			t.Fatal(err)
		}
		for scan.Scan() {
			if f := strings.Fields(scan.Text()); len(f) == 3 && f[0] == "T" {
				at, _ := strconv.ParseInt(f[1], 10, 64)
				monotonic, _ := strconv.ParseInt(f[2], 10, 64)
				return time.Until(time.Unix(at, 0)), monotonic
			}
			see(scan.Text())
		}
		t.Fatal("the child has ended")
		return 0, 0
	}
}

// step steps the wall clock of a process.
func step(t *testing.T, pid int, ahead time.Duration) {
	t.Helper()
	c, err := openClock(pid, pauseBySignal(func(s syscall.Signal) { _ = syscall.Kill(pid, s) }))
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if err := c.set(ahead); err != nil {
		t.Fatal(err)
	}
}

// TestWallClockSteps: a step changes the wall clock of one process, in both directions and again,
// and its monotonic clock never.
func TestWallClockSteps(t *testing.T) {
	pid, ask := child(t)
	read := func() (time.Duration, int64) { return ask("", func(string) {}) }
	read()
	for _, ahead := range []time.Duration{-time.Hour, 24 * time.Hour, 0} {
		before := now()
		step(t, pid, ahead)
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

// TestLogAfterAStep: a message that has used up its rate is logged again soon after, although the wall clock
// was set back by an hour meanwhile.
func TestLogAfterAStep(t *testing.T) {
	pid, ask := child(t)
	ask("1000", func(string) {}) // five times what is allowed at once
	step(t, pid, -time.Hour)
	logged := false
	for end := time.Now().Add(10 * time.Second); !logged && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		ask("1", func(line string) { logged = logged || strings.HasSuffix(line, "times=1") })
	}
	if !logged {
		t.Error("the message is not logged again")
	}
}
