// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"xsched/test/proc"
)

// TestStopThread: one thread of a process stops, the others go on, and it goes on afterwards. A
// process that is killed meanwhile can be waited for at once.
func TestStopThread(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CHAOS_CHILD=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = io.Discard
	if err := proc.Start(cmd); err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	state := func() (traced int) {
		tasks, _ := os.ReadDir("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/task")
		for _, task := range tasks {
			text, _ := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/task/" + task.Name() + "/stat")
			if _, rest, _ := strings.Cut(string(text), ") "); strings.HasPrefix(rest, "t") {
				traced++
			}
		}
		return traced
	}
	done := make(chan error, 1)
	stop := func(d time.Duration) {
		go func() { done <- onThread(func() error { return stopThread(cmd.Process.Pid, watcherThread, d) }) }()
	}
	await := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(5 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	await("the child does not run", func() bool { _, err := findThread(cmd.Process.Pid, watcherThread); return err == nil })
	stop(200 * time.Millisecond)
	await("not exactly one thread is stopped", func() bool { return state() == 1 })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := state(); n != 0 {
		t.Errorf("%d threads are still stopped", n)
	}
	stop(time.Minute)
	await("no thread is stopped", func() bool { return state() == 1 })
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
