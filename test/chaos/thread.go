// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// watcherThread is the shim's thread that asks the driver which queues are idle.
const watcherThread = "xsched-watch"

// watcherStop stops the watcher in a program. A signal would stop all its threads, so a debugger's
// request stops the one. It waits outside of any lock then: what a thread inside a lock does to others
// is known.
func watcherStop(w *world, f Fault) error {
	pid := w.tenant(f.Role).pid()
	return onThread(func() error { return stopThread(pid, watcherThread, f.duration()) })
}

// onThread keeps a debugger's requests on one thread: only the thread that attached may make them.
func onThread(do func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return do()
}

// findThread returns the thread of a process by its name.
func findThread(pid int, name string) (tid int, err error) {
	files, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/comm")
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(text)) == name {
			return strconv.Atoi(filepath.Base(filepath.Dir(file)))
		}
	}
	return 0, errors.New("no thread " + name)
}

// stopThread stops a thread in its next wait, for a while. A program that is killed meanwhile is no
// error, whichever request notices it.
func stopThread(pid int, name string, d time.Duration) error {
	tid, err := findThread(pid, name)
	if err != nil {
		return err
	}
	if err := unix.PtraceSeize(tid); err != nil {
		return err
	}
	if err := holdThread(tid, d); !errors.Is(err, unix.ESRCH) {
		return err
	}
	// A traced thread that is killed waits for its tracer, and its process for the thread.
	for !awaitTrap(tid) {
	}
	return nil
}

// holdThread does so with a thread that it traces. It returns ESRCH if the thread has ended.
func holdThread(tid int, d time.Duration) error {
	for end := time.Now().Add(time.Second); ; {
		if err := unix.PtraceInterrupt(tid); err != nil {
			return err
		}
		if ended := awaitTrap(tid); ended {
			return unix.ESRCH
		}
		if waits(tid) {
			break
		}
		if time.Now().After(end) {
			return errors.Join(errors.New("the thread never waits"), unix.PtraceDetach(tid))
		}
		if err := unix.PtraceCont(tid, 0); err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if n, err := unix.Wait4(tid, nil, unix.WALL|unix.WNOHANG, nil); n == tid || err != nil {
			return unix.ESRCH
		}
	}
	return unix.PtraceDetach(tid)
}

// awaitTrap waits until a thread has stopped.
func awaitTrap(tid int) (ended bool) {
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(tid, &status, unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return true
		default:
			return !status.Stopped()
		}
	}
}

// waits reports that a stopped thread was in a wait: its system call is still there. A contended mutex
// has the value 2, and its waiter may hold another one.
func waits(tid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/syscall") // "202 ADDRESS OPERATION VALUE ..." in futex
	f := strings.Fields(string(text))
	return err == nil && len(f) > 3 && f[0] == strconv.Itoa(unix.SYS_FUTEX) && f[3] != "0x2"
}
