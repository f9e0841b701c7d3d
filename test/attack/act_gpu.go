// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// child runs another act as a process of its own, which ends with this one.
func (a *attacker) child(name string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", append([]string{"act", name, a.dir, a.platform.Name, a.http}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// program starts a program without the shim on the first GPU, and returns its input.
func (a *attacker) program() (*exec.Cmd, io.WriteCloser, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	folder := filepath.Dir(self)
	cmd := exec.Command(filepath.Join(folder, "tenant"), "--name", "x", "--kernel-us", "2000", "--depth", "4", "--api", a.platform.API, "--device", "0")
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "XSCHED_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "LD_PRELOAD="+filepath.Join(folder, a.platform.Kernel), "LD_LIBRARY_PATH="+folder)
	for name, value := range a.platform.Env(a.dir) {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stdout = io.Discard
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	a.inputs = append(a.inputs, in)
	return cmd, in, cmd.Start()
}

// unmanaged uses the GPU from one process that stays: the control of the next two.
func (a *attacker) unmanaged() error {
	_, in, err := a.program()
	if err != nil {
		return err
	}
	if _, err := io.WriteString(in, "loop\n"); err != nil {
		return err
	}
	time.Sleep(3 * time.Second) // until the daemon has seen it in more than one scan
	a.ready("program")
	select {}
}

// serialUnmanaged uses the GPU from processes that live for 1.0 s each.
func (a *attacker) serialUnmanaged() error {
	a.ready("programs")
	for {
		cmd, in, err := a.program()
		if err != nil {
			return err
		}
		_, _ = io.WriteString(in, "loop\n")
		time.Sleep(time.Second)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		a.count.Add(1)
	}
}

// manyMappings makes scans of /proc slow, and then uses the GPU.
func (a *attacker) manyMappings() error {
	for range 30 {
		cmd := a.child("mappings")
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		if _, err := out.Read(make([]byte, 8)); err != nil {
			return fmt.Errorf("wait for mappings: %w", err)
		}
		a.count.Add(1)
	}
	_, in, err := a.program()
	if err != nil {
		return err
	}
	if _, err := io.WriteString(in, "loop\n"); err != nil {
		return err
	}
	a.ready("processes")
	select {}
}

// mappings has nearly as many mappings as a process may have.
func (a *attacker) mappings() error {
	page := os.Getpagesize()
	for i := range 65_000 {
		protection := unix.PROT_READ
		if i%2 == 0 {
			protection = unix.PROT_NONE // neighbours that differ do not merge
		}
		if _, err := unix.Mmap(-1, 0, page, protection, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
			break
		}
	}
	fmt.Println("R")
	select {}
}

// idlePrograms starts four programs that use no GPU time: the control of attaches.
func (a *attacker) idlePrograms() error {
	if _, err := a.idle(); err != nil {
		return err
	}
	a.ready("programs")
	select {}
}

func (a *attacker) idle() (pids []int, err error) {
	for range 4 {
		cmd, _, err := a.program()
		if err != nil {
			return nil, err
		}
		pids = append(pids, cmd.Process.Pid)
	}
	time.Sleep(800 * time.Millisecond)
	return pids, nil
}

// attaches attaches to own programs and detaches again.
func (a *attacker) attaches() error {
	pids, err := a.idle()
	if err != nil {
		return err
	}
	return a.forever(len(pids), "attaches", func(i int) error {
		_, err := askAbout(5*time.Second, a.client.Attach, pids[i])
		if err == nil {
			_, err = askAbout(5*time.Second, a.client.Detach, pids[i])
		}
		return err
	})
}

// hugeCommands joins again and again from processes with long command lines.
func (a *attacker) hugeCommands() error {
	long := strings.Repeat("x", 120<<10) // the kernel limits one argument to 128 KiB
	args := []string{"again"}
	for range 12 {
		args = append(args, long)
	}
	for range 16 {
		if err := a.child("session", args...).Start(); err != nil {
			return err
		}
		a.count.Add(1)
	}
	a.ready("programs")
	select {}
}
