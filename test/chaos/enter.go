// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// enter starts a program in namespaces of its own: SPACES OFFSET -- CMD ARG... . It prints "C PID"
// and passes the program's exit code on.
func enter(args []string) error {
	if len(args) < 4 || args[2] != "--" {
		return errors.New("use: chaos enter SPACES OFFSET -- CMD [ARG]")
	}
	offset, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	cmd := exec.Command(args[3], args[4:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() { // the offsets are those of the main thread
		return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	}
	for space := range strings.SplitSeq(args[0], ",") {
		switch space {
		case "time":
			if err := unix.Unshare(unix.CLONE_NEWTIME); err != nil {
				return fmt.Errorf("create time namespace: %w", err)
			}
			text := fmt.Sprintf("monotonic %d 0\n", int64(offset.Seconds()))
			if err := os.WriteFile("/proc/self/timens_offsets", []byte(text), 0o644); err != nil {
				return fmt.Errorf("set clock of time namespace: %w", err)
			}
		case "pid":
			cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWPID
		case "user":
			cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
			cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
		default:
			return fmt.Errorf("unknown namespace %q", space)
		}
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start in namespaces %s: %w", args[0], err)
	}
	fmt.Printf("C %d\n", cmd.Process.Pid)
	_ = os.Stdin.Close()
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if exit.ExitCode() < 0 {
			os.Exit(128)
		}
		os.Exit(exit.ExitCode())
	}
	return err
}

// possibleSpaces lists the namespaces that this process may create.
func possibleSpaces(self string) (out []string) {
	for _, space := range []string{"time", "pid", "user"} {
		if exec.Command(self, "enter", space, "1s", "--", self, "--list").Run() == nil {
			out = append(out, space)
		}
	}
	return out
}
