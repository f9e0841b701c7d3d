// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/seqpacket"
)

// child is one supervisor process.
type child struct {
	cmd    *exec.Cmd
	exited chan struct{} // reaped
	gone   chan struct{} // the socket has ended
	over   chan struct{} // the traced process has ended

	heard  atomic.Bool // a reply arrived since the last ping
	caught atomic.Uint64

	mu      sync.Mutex
	sock    int // -1: closed
	seq     uint64
	pending map[uint64]chan<- reply
}

// begin turns the guardian process into a supervisor and starts tracing.
func (c *child) begin(m message) (reply, error) {
	answer := make(chan reply, 1)
	m.Seq = 1
	first, err := json.Marshal(m)
	if err != nil {
		return reply{}, fmt.Errorf("encode request: %w", err)
	}
	c.mu.Lock()
	c.seq = m.Seq
	c.pending[m.Seq] = answer
	err = seqpacket.Send(c.sock, driver.SuperviseRequest(Name, first), nil)
	c.mu.Unlock()
	if err != nil {
		return reply{}, err
	}
	return c.await(answer)
}

// ask sends a request and waits for the reply while the supervisor lives.
func (c *child) ask(m message, fds []int) (reply, error) {
	answer := make(chan reply, 1)
	if err := c.post(m, fds, answer); err != nil {
		return reply{}, err
	}
	return c.await(answer)
}

// await waits for a reply while the supervisor lives.
func (c *child) await(answer <-chan reply) (reply, error) {
	select {
	case r := <-answer:
		return r, r.failure()
	case <-c.gone:
	}
	select { // the last reply may precede the end
	case r := <-answer:
		return r, r.failure()
	default:
		return reply{}, errNoTracer
	}
}

// post sends a request; the reply goes to answer, if not nil.
func (c *child) post(m message, fds []int, answer chan<- reply) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sock < 0 {
		return errNoTracer
	}
	c.seq++
	m.Seq = c.seq
	if answer != nil {
		c.pending[m.Seq] = answer
	}
	err := seqpacket.Send(c.sock, m, fds)
	if err != nil {
		delete(c.pending, m.Seq)
	}
	return err
}

// read receives replies until the end. Only read closes the socket.
func (c *child) read() {
	defer close(c.gone)
	for in := seqpacket.NewInbox(c.sock); ; {
		var r reply
		fds, err := in.Receive(&r)
		seqpacket.CloseAll(fds)
		if err != nil {
			break
		}
		c.heard.Store(true)
		if r.Ended {
			if !c.finished() {
				close(c.over)
			}
			continue
		}
		c.caught.Store(max(c.caught.Load(), r.Caught))
		c.mu.Lock()
		answer := c.pending[r.Seq]
		delete(c.pending, r.Seq)
		c.mu.Unlock()
		if answer != nil {
			answer <- r
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = unix.Close(c.sock)
	c.sock = -1
}

// finished reports that the traced process has ended. Only read changes that.
func (c *child) finished() bool {
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}

// end asks the supervisor to release its process and exit, and describes how it ended. Without a
// live process it does not wait.
func (c *child) end() string {
	c.mu.Lock()
	if c.sock >= 0 {
		_ = unix.Shutdown(c.sock, unix.SHUT_WR)
	}
	c.mu.Unlock()
	how := make(chan string, 1)
	go func() { how <- c.reap() }()
	select {
	case s := <-how:
		return s
	case <-c.over:
		return "its process ended"
	}
}

// reap waits for the exit and kills a slow supervisor; the driver then resumes everything.
func (c *child) reap() string {
	for _, limit := range []time.Duration{releaseTime, killTime} {
		select {
		case <-c.exited:
			<-c.gone
			return c.cmd.ProcessState.String()
		case <-time.After(limit):
			_ = c.cmd.Process.Kill()
		}
	}
	return "SIGKILL had no effect"
}
