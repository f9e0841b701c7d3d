// SPDX-License-Identifier: Apache-2.0

// Package proc starts the processes of the fault campaign and of the attack bench: the files under
// test, children that end with their parent, and the end of their output.
package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// Start starts a process that ends with this one.
func Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	// Pdeathsig refers to the thread that started the child. The runtime keeps its threads, except
	// locked ones, which no caller uses.
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return cmd.Start()
}

// Collect copies the running program, a build of xsched and the files of the virtual GPUs to a new
// folder that every user can read. A build during the run then changes nothing.
func Collect(binary, libraries string) (folder string, err error) {
	if folder, err = os.MkdirTemp("", "xsched-test"); err != nil {
		return "", err
	}
	self, selfErr := os.Executable()
	err = errors.Join(selfErr, os.Chmod(folder, 0o755),
		CopyFile(filepath.Join(folder, "xsched"), binary), CopyFile(filepath.Join(folder, "self"), self))
	for _, name := range []string{"tenant", "libvgpu.so", "libcuda.so.1", "libvkfd.so", "libamdhip64.so.6"} {
		err = errors.Join(err, CopyFile(filepath.Join(folder, name), filepath.Join(libraries, name)))
	}
	if err != nil {
		_ = os.RemoveAll(folder)
		return "", fmt.Errorf("collect the files under test: %w; run `make build`", err)
	}
	return folder, nil
}

// CopyFile copies a program.
func CopyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// Tail keeps the end of what a process writes.
type Tail struct {
	mu    sync.Mutex
	bytes []byte
	total int64 // all that was written
}

func (b *Tail) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes = append(b.bytes, p...)
	b.total += int64(len(p))
	if len(b.bytes) > 1<<16 {
		b.bytes = append([]byte(nil), b.bytes[len(b.bytes)-1<<15:]...)
	}
	return len(p), nil
}

// Total counts the bytes that were written so far.
func (b *Tail) Total() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.total
}

// Since returns what was written after so many bytes, as far as it is kept.
func (b *Tail) Since(total int64) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.bytes[max(0, int64(len(b.bytes))-(b.total-total)):])
}

// Last returns the last line.
func (b *Tail) Last() string {
	lines := b.Lines(1)
	if len(lines) == 0 {
		return ""
	}
	return lines[0]
}

// Lines returns up to n last lines.
func (b *Tail) Lines(n int) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := strings.Split(strings.TrimSpace(string(b.bytes)), "\n")
	if len(all) == 1 && all[0] == "" {
		return nil
	}
	return all[max(0, len(all)-n):]
}
