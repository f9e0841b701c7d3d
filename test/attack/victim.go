// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
	"xsched/test/proc"
)

// victim is a program of another user.
type victim struct {
	w        *world
	name     string
	uid      uint32
	home     string
	priority int
	kernelUS int
	load     string
	device   int

	cmd    *exec.Cmd
	in     io.WriteCloser
	stderr proc.Tail
	ready  chan struct{}

	mu    sync.Mutex
	times []iteration
}

// iteration is one request or kernel; the times are CLOCK_MONOTONIC in ns.
type iteration struct{ begin, end int64 }

// start runs the program and its load.
func (v *victim) start() error {
	argv := []string{
		v.w.xsched(), "run", "--virtual", "--priority", strconv.Itoa(v.priority), "--", filepath.Join(v.w.folder, "tenant"),
		"--name", v.name, "--kernel-us", strconv.Itoa(v.kernelUS), "--api", v.w.platform.API, "--device", strconv.Itoa(v.device),
	}
	v.cmd = unitLimits{cores: division().victims}.wrap(v.w.self(), v.uid, argv...)
	v.cmd.Env = v.w.env(v.home)
	v.cmd.Stderr = &v.stderr
	in, err := v.cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := v.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := proc.Start(v.cmd); err != nil {
		return err
	}
	v.in, v.ready = in, make(chan struct{})
	go v.read(out)
	select {
	case <-v.ready:
	case <-time.After(10 * time.Second):
		return fmt.Errorf("%s does not start: %s", v.name, v.stderr.Last())
	}
	if priorities() {
		if err := unix.SchedSetAttr(v.pid(), fifo(), 0); err != nil {
			return fmt.Errorf("raise the CPU priority of %s: %w", v.name, err)
		}
	}
	_, err = io.WriteString(in, v.load+"\n")
	return err
}

func (v *victim) read(out io.Reader) {
	ready := sync.OnceFunc(func() { close(v.ready) })
	for scan := bufio.NewScanner(out); scan.Scan(); {
		f := strings.Fields(scan.Text())
		switch {
		case len(f) == 1 && f[0] == "R":
			ready()
		case len(f) == 3 && f[0] == "I":
			begin, err := strconv.ParseInt(f[1], 10, 64)
			end, err2 := strconv.ParseInt(f[2], 10, 64)
			if errors.Join(err, err2) == nil {
				v.mu.Lock()
				v.times = append(v.times, iteration{begin, end})
				v.mu.Unlock()
			}
		}
	}
	_ = v.cmd.Wait()
}

func (v *victim) pid() int { return v.cmd.Process.Pid }

// during returns the iterations that ended in [from, to).
func (v *victim) during(from, to int64) (out []iteration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := len(v.times) - 1; i >= 0 && v.times[i].end >= from; i-- {
		if v.times[i].end < to {
			out = append(out, v.times[i])
		}
	}
	return out
}

func (v *victim) kill() {
	if v != nil && v.cmd != nil && v.cmd.Process != nil {
		_ = v.cmd.Process.Kill()
	}
}

// settle waits until the daemon manages every victim, and suspends the one that is held by hand.
func (w *world) settle() error {
	missing := ""
	if !await(15*time.Second, func() bool {
		list, err := ask(time.Second, w.client.List)
		if err != nil {
			missing = err.Error()
			return false
		}
		for _, v := range w.victims() {
			if p := find(list, v.pid()); p == nil || len(p.Queues) == 0 || p.Queues[0].Level < 2 {
				missing = fmt.Sprintf("%s (process %d): %s", v.name, v.pid(), v.stderr.Last())
				return false
			}
		}
		return true
	}) {
		return errors.New("the daemon does not manage " + missing)
	}
	if _, err := askAbout(5*time.Second, w.client.Suspend, w.held.pid()); err != nil {
		return fmt.Errorf("suspend a program by hand: %w", err)
	}
	if _, err := askAbout(5*time.Second, w.client.Resume, w.probed.pid()); err != nil {
		return fmt.Errorf("resume a program: %w", err)
	}
	if !await(5*time.Second, func() bool {
		at := now()
		time.Sleep(50 * time.Millisecond)
		return len(w.held.during(at, now())) == 0
	}) {
		return errors.New("a program suspended by hand runs before any attack")
	}
	return nil
}

func find(list control.List, pid int) *control.Process {
	for i := range list.Processes {
		if list.Processes[i].PID == pid {
			return &list.Processes[i]
		}
	}
	return nil
}
