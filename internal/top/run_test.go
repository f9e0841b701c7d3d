// SPDX-License-Identifier: Apache-2.0

// After a panic, bubbletea restores the terminal and prints the stack while its reader is still at work:
// the race detector reports that, not our code.
//go:build !race

package top_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
	"xsched/internal/top"
	"xsched/internal/top/toptest"
)

// pty is a pseudo-terminal. It keeps what the program writes.
type pty struct {
	master, slave *os.File
	mu            sync.Mutex
	output        bytes.Buffer
}

func newPTY(t *testing.T) *pty {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals: %v", err)
	}
	master := os.NewFile(uintptr(fd), "ptmx")
	t.Cleanup(func() { _ = master.Close() })
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		t.Fatal(err)
	}
	p := &pty{master: master, slave: slave}
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := master.Read(buffer)
			p.mu.Lock()
			p.output.Write(buffer[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return p
}

func (p *pty) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

func (p *pty) settings(t *testing.T) unix.Termios {
	t.Helper()
	s, err := unix.IoctlGetTermios(int(p.slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *s
}

func (p *pty) await(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !strings.Contains(p.text(), text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %q in %q", text, p.text())
		}
	}
}

// broken is a daemon whose replies make the view panic.
type broken struct{ top.Source }

func (b broken) Fetch(context.Context) (control.Snapshot, error) { return toptest.Scene(1), nil }

func (b broken) Policies(context.Context) (control.PolicyReply, error) { panic("a bug") }

// TestPanic checks that a panic restores the terminal, and that Run reports it.
func TestPanic(t *testing.T) {
	p := newPTY(t)
	before := p.settings(t)
	stderr := os.Stderr // the stack goes there
	if null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0); err == nil {
		os.Stderr = null
		defer func() { os.Stderr = stderr; _ = null.Close() }()
	}
	result := make(chan error, 1)
	go func() {
		result <- top.Run(context.Background(), broken{}, top.Options{Interval: time.Hour, UTF8: true}, p.slave, p.slave, []string{"TERM=xterm"})
	}()
	p.await(t, "serve.py")
	if p.settings(t) == before {
		t.Error("the terminal was not in raw mode")
	}
	if _, err := io.WriteString(p.master, "p"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-result:
		if err == nil || !strings.Contains(err.Error(), "the view failed") {
			t.Errorf("Run returns %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Run does not return")
	}
	if after := p.settings(t); after != before {
		t.Errorf("settings\n%+v\nbefore\n%+v", after, before)
	}
	p.await(t, "\x1b[?1049l") // the normal screen
	p.await(t, "\x1b[?25h")   // the cursor
}
