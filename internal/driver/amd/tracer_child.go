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

// child is one tracer process.
type child struct {
	cmd    *exec.Cmd
	exited chan struct{} // it was reaped
	gone   chan struct{} // nothing comes from it any more
	over   chan struct{} // the process that it traced has ended

	heard  atomic.Bool // since the last ping
	caught atomic.Uint64

	mu      sync.Mutex
	sock    int // -1: closed
	seq     uint64
	pending map[uint64]chan<- reply
}

// begin makes the guardian process a supervisor, and has it trace.
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

// ask makes a request and waits for the answer, as long as the tracer lives.
func (c *child) ask(m message, fds []int) (reply, error) {
	answer := make(chan reply, 1)
	if err := c.tell(m, fds, answer); err != nil {
		return reply{}, err
	}
	return c.await(answer)
}

// await waits for an answer, as long as the supervisor lives.
func (c *child) await(answer <-chan reply) (reply, error) {
	select {
	case r := <-answer:
		return r, r.failure()
	case <-c.gone:
	}
	select { // it may have been its last
	case r := <-answer:
		return r, r.failure()
	default:
		return reply{}, errNoTracer
	}
}

// tell sends a request; the answer goes where it is said, if anywhere.
func (c *child) tell(m message, fds []int, answer chan<- reply) error {
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

// read takes the answers until the end. It alone closes the socket.
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

// finished says that the process that it traced has ended. Only read changes that.
func (c *child) finished() bool {
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}

// end tells the tracer that its session is over: it lets its process go and ends. It says how it ended. Nobody
// waits for a tracer whose process is no more.
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
		return "with its process"
	}
}

// reap waits for its end. One that takes long is killed: the driver then resumes everything.
func (c *child) reap() string {
	for _, limit := range []time.Duration{partTime, killTime} {
		select {
		case <-c.exited:
			<-c.gone
			return c.cmd.ProcessState.String()
		case <-time.After(limit):
			_ = c.cmd.Process.Kill()
		}
	}
	return "not even by SIGKILL"
}
