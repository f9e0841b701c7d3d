// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// The driver accepts a debugger's requests only in the thread that traces the target's leader. One
// locked thread therefore traces, forwards the target's signals and issues the requests.
const (
	ptraceListen    = 0x4208
	ptraceEventStop = 128
	// lookPeriod bounds the delay of a stop whose signal is lost.
	lookPeriod = 2 * time.Millisecond
	detachTime = time.Second
)

// tracer is that thread.
type tracer struct {
	pid   int
	do    chan func()
	stop  chan struct{}
	ended chan struct{} // the thread has ended; err says why
	err   error
}

// trace seizes a process's leader. The leader stops only for its own signals, each until this
// thread forwards it.
func trace(pid int) (*tracer, error) {
	t := &tracer{pid: pid, do: make(chan func()), stop: make(chan struct{}), ended: make(chan struct{})}
	seized := make(chan error, 1)
	go t.run(seized)
	if err := <-seized; err != nil {
		return nil, err
	}
	return t, nil
}

func seizeError(pid int, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ESRCH):
		return fmt.Errorf("trace process %d: %w", pid, ErrGone)
	case errors.Is(err, unix.EPERM) && tracerOf(pid) != 0:
		return fmt.Errorf("trace process %d: %w", pid, ErrTraced)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("trace process %d: %w", pid, ErrNoRights)
	}
	return fmt.Errorf("trace process %d: %w", pid, err)
}

func tracerOf(pid int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	return statusNumber(status, "TracerPid:")
}

// run is the thread. Without an unlock the thread ends with the goroutine, and the kernel detaches
// the target.
func (t *tracer) run(seized chan<- error) {
	runtime.LockOSThread()
	defer close(t.ended)
	if err := seizeError(t.pid, unix.PtraceSeize(t.pid)); err != nil {
		seized <- err
		return
	}
	stops := make(chan os.Signal, 1)
	signal.Notify(stops, unix.SIGCHLD)
	defer signal.Stop(stops)
	look := time.NewTicker(lookPeriod)
	defer look.Stop()
	seized <- nil
	for t.pass() {
		select {
		case <-stops:
		case <-look.C:
		case f := <-t.do:
			f()
		case <-t.stop:
			t.detach()
			return
		}
	}
	t.err = ErrGone
}

// pass continues the target from every pending stop with its signal. False: the target has ended.
func (t *tracer) pass() bool {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(t.pid, &status, unix.WNOHANG|unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return false
		case pid == 0:
			return true
		case status.Exited(), status.Signaled():
			return false
		case status.Stopped():
			t.proceed(status)
		}
	}
}

func (t *tracer) proceed(status unix.WaitStatus) {
	s := status.StopSignal()
	if int(status)>>16 == ptraceEventStop {
		switch s {
		case unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU:
			// Job control stop: stay stopped until SIGCONT, as without a tracer.
			_, _, _ = unix.RawSyscall6(unix.SYS_PTRACE, ptraceListen, uintptr(t.pid), 0, 0, 0, 0)
			return
		}
		s = 0
	}
	_ = unix.PtraceCont(t.pid, int(s))
}

// detach ends the tracing. If the target does not stop in time, the end of the thread detaches it.
func (t *tracer) detach() {
	if unix.PtraceInterrupt(t.pid) != nil {
		return
	}
	for end := time.Now().Add(detachTime); time.Now().Before(end); time.Sleep(50 * time.Microsecond) {
		var status unix.WaitStatus
		pid, err := unix.Wait4(t.pid, &status, unix.WNOHANG|unix.WALL, nil)
		if err != nil && !errors.Is(err, unix.EINTR) || pid > 0 && !status.Stopped() {
			return
		}
		if pid <= 0 {
			continue
		}
		s := 0 // a signal stop resumes with its signal
		if int(status)>>16 == 0 {
			s = int(status.StopSignal())
		}
		_, _, _ = unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(t.pid), 0, uintptr(s), 0, 0)
		return
	}
}

// call runs f in the tracing thread and waits.
func (t *tracer) call(f func()) error {
	done := make(chan struct{})
	select {
	case t.do <- func() { defer close(done); f() }:
		<-done
		return nil
	case <-t.ended:
		return fmt.Errorf("process %d: %w", t.pid, ErrGone)
	}
}

// post queues f for the tracing thread without waiting.
func (t *tracer) post(f func()) bool {
	select {
	case t.do <- f:
		return true
	case <-t.ended:
		return false
	}
}

// close detaches the target.
func (t *tracer) close() {
	select {
	case <-t.stop:
	default:
		close(t.stop)
	}
	<-t.ended
}
