// SPDX-License-Identifier: Apache-2.0

// Package identitytest starts processes in namespaces and cgroups of their own, as containers.
package identitytest

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Child is a process that a test talks to. It ends when its input does, at the end of the test at the
// latest.
type Child struct {
	PID int
	In  io.WriteCloser
	Out io.Reader
	cmd *exec.Cmd
}

// Start starts the test's own program again. The test is skipped if the machine permits no new
// namespaces.
func Start(t testing.TB, attr *syscall.SysProcAttr, env []string, args ...string) *Child {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env, cmd.SysProcAttr, cmd.Stderr = env, attr, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); errors.Is(err, unix.EPERM) {
		t.Skip("this machine does not permit new namespaces")
	} else if err != nil {
		t.Fatal(err)
	}
	c := &Child{cmd.Process.Pid, in, out, cmd}
	t.Cleanup(c.End)
	return c
}

// End ends the child and waits for it.
func (c *Child) End() {
	_ = c.In.Close()
	_ = c.cmd.Wait()
}

// Cgroup creates a cgroup and removes it at the end of the test. The test is skipped if the machine
// permits none.
func Cgroup(t testing.TB, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("cgroup v2 is not writable: %v", err)
	}
	t.Cleanup(func() {
		// A process that just ended may still be there for a moment.
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if os.Remove(dir) == nil {
				return
			}
		}
		t.Errorf("cgroup %s was not removed", dir)
	})
}

// Enter moves a process into a cgroup.
func Enter(t testing.TB, dir string, pid int) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		t.Fatal(err)
	}
}
