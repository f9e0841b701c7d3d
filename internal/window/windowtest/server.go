// SPDX-License-Identifier: Apache-2.0

// Package windowtest runs real X servers, window managers and programs with windows for tests.
package windowtest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait; a loaded machine may need seconds.
const patience = 30 * time.Second

// Server is an X server without a screen.
type Server struct {
	t    testing.TB
	Name string // of its display
	cmd  *exec.Cmd
	log  string
}

// Start starts an X server on a free display, until the test ends.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	for _, program := range []string{"Xvfb", "openbox"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is missing; run tools/setup", program)
		}
	}
	s := &Server{t: t, log: t.TempDir() + "/xvfb.log"}
	s.run(append([]string{"-displayfd", "3"}, args...))
	return s
}

// run starts Xvfb and reads the number of its display, which it writes when it is ready.
func (s *Server) run(args []string) {
	s.t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		s.t.Fatal(err)
	}
	log, err := os.Create(s.log)
	if err != nil {
		s.t.Fatal(err)
	}
	s.cmd = exec.Command("Xvfb", append([]string{"-screen", "0", "640x480x24", "-nolisten", "tcp", "-noreset"}, args...)...)
	s.cmd.ExtraFiles = []*os.File{write}
	s.cmd.Stderr = log
	start(s.t, s.cmd)
	_, _ = write.Close(), log.Close()
	defer read.Close()
	_ = read.SetReadDeadline(time.Now().Add(patience))
	number, err := bufio.NewReader(read).ReadString('\n')
	if err != nil {
		text, _ := os.ReadFile(s.log)
		s.t.Fatalf("Xvfb does not start: %v\n%s", err, text)
	}
	s.Name = ":" + strings.TrimSpace(number)
}

// Kill ends the server.
func (s *Server) Kill() {
	s.t.Helper()
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// Restart starts a new server on the same display.
func (s *Server) Restart() {
	s.t.Helper()
	name := s.Name
	s.run([]string{name, "-displayfd", "3"})
	if s.Name != name {
		s.t.Fatalf("the new server has display %s, not %s", s.Name, name)
	}
}

// Manage starts a window manager on the display and waits until it manages windows.
func (s *Server) Manage() (stop func()) {
	s.t.Helper()
	home := s.t.TempDir()
	config := filepath.Join(home, "rc.xml")
	if err := os.WriteFile(config, []byte(`<openbox_config xmlns="http://openbox.org/3.4/rc"/>`), 0o600); err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command("openbox", "--sm-disable", "--config-file", config)
	cmd.Env = append(os.Environ(), "DISPLAY="+s.Name, "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_CACHE_HOME="+home, "XDG_DATA_HOME="+home)
	start(s.t, cmd)
	c := Connect(s.t, s.Name)
	// A window that appears while it starts may stay unmanaged, so try until one is managed.
	probe, created := uint32(0), time.Time{}
	Eventually(s.t, "the window manager manages a window", func() bool {
		if time.Since(created) > 300*time.Millisecond {
			if probe != 0 {
				c.Destroy(probe)
			}
			probe, created = c.Window("probe"), time.Now()
		}
		return c.lists("_NET_CLIENT_LIST", probe)
	})
	c.Destroy(probe)
	Eventually(s.t, "the window manager sees its end", func() bool { return !c.lists("_NET_CLIENT_LIST", probe) })
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// start starts cmd and kills it when the test ends.
func start(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// Eventually waits until a condition holds.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(fmt.Errorf("not within %v: %s", patience, what))
		}
	}
}
