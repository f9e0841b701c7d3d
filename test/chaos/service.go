// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"sync"
	"syscall"
	"time"

	"xsched/test/proc"
)

// service keeps a helper process running, as a service manager would.
type service struct {
	w       *world
	command func() *exec.Cmd
	log     proc.Tail

	mu    sync.Mutex
	cmd   *exec.Cmd // nil: not running
	quit  bool
	ended chan struct{}
}

func startService(w *world, command func() *exec.Cmd) *service {
	s := &service{w: w, command: command, ended: make(chan struct{})}
	go s.supervise()
	return s
}

func (s *service) supervise() {
	defer close(s.ended)
	for {
		cmd := s.command()
		cmd.Stderr = &s.log
		s.mu.Lock()
		if s.quit {
			s.mu.Unlock()
			return
		}
		err := proc.Start(cmd)
		if err == nil {
			s.cmd = cmd
		}
		s.mu.Unlock()
		if err == nil {
			_ = cmd.Wait()
		}
		s.mu.Lock()
		s.cmd = nil
		s.mu.Unlock()
		time.Sleep(usualDown)
	}
}

func (s *service) signal(signal syscall.Signal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cmd != nil && s.cmd.Process.Signal(signal) == nil
}

// end ends the process; it may be stopped.
func (s *service) end(signal syscall.Signal) {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.quit = true
	s.mu.Unlock()
	s.signal(signal)
	s.signal(syscall.SIGCONT)
	select {
	case <-s.ended:
	case <-time.After(3 * time.Second):
		s.signal(syscall.SIGKILL)
		<-s.ended
	}
}

// guardianService runs the guardian as systemd would, apart from the daemon.
func (w *world) guardianService() *exec.Cmd {
	cmd := exec.Command(w.tools.xsched, "guardian", "--service")
	cmd.Env = w.env()
	return cmd
}
