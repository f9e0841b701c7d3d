// SPDX-License-Identifier: Apache-2.0

package quarantine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/seqpacket"
)

const (
	// answerTime limits how long the daemon waits for the process. Only the account whose descriptors
	// block waits that long.
	answerTime = time.Second
	// restartPause is the least time between two attempts to start a process.
	restartPause = time.Second
	// pingPeriod is the interval at which the process shows that it works.
	pingPeriod = time.Second
	// maxClosing is the number of connections that a process has not been able to close yet. Beyond
	// it another process takes over. A blocked process then holds a bounded number of descriptors;
	// the kernel's limit of descriptors in flight per user bounds the number of such processes.
	maxClosing = 4096
)

// ErrTime reports an account whose descriptors block.
var ErrTime = errors.New("a descriptor could not be received in time: an earlier one of this user blocks")

var errEnded = errors.New("the quarantine process has ended")

// keeper is the daemon's side of one process.
type keeper struct {
	life sync.RWMutex // for reading: sock stays open
	sock int          // -1: the process has ended

	mu      sync.Mutex
	pending map[uint64]chan<- answer
	conns   map[uint64]kept
	closing map[uint64]string // to their accounts
}

// kept is a connection or listener of which the process has a duplicate.
type kept interface{ keep() }

type answer struct {
	reply
	fds []int
}

// all is the process in use, and what concerns its predecessors.
var all struct {
	mu      sync.Mutex
	keeper  *keeper
	failed  time.Time // of the last start
	seq     uint64
	closing map[string]int // connections by account that no process has closed yet
}

// number returns a new number of a request or connection.
func number() uint64 {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.seq++
	return all.seq
}

// Closing returns how many connections of an account could not be closed yet.
func Closing(account string) int {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.closing[account]
}

// current returns the process in use and starts one if there is none, or if it is full.
func current() (*keeper, error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if k := all.keeper; k != nil && k.usable() {
		return k, nil
	}
	if time.Since(all.failed) < restartPause {
		return nil, errEnded
	}
	k, err := start()
	if err != nil {
		all.failed = time.Now()
		return nil, err
	}
	all.keeper = k
	return k, nil
}

// Watch calls beat while the process in use answers, until ctx ends. Without a process there is nothing
// to answer for. Programs can't join while a process hangs; none that has joined notices.
func Watch(ctx context.Context, beat func()) {
	t := time.NewTicker(pingPeriod)
	defer t.Stop()
	for {
		all.mu.Lock()
		k := all.keeper
		all.mu.Unlock()
		if k == nil || k.ping() == nil {
			beat()
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// ping asks the process for a sign of life. One that has ended is replaced on demand, and does not hang.
func (k *keeper) ping() error {
	_, err := k.ask(request{Op: opPing}, nil)
	if errors.Is(err, ErrTime) {
		return err
	}
	return nil
}

// hand gives the process a duplicate of a file for as long as it is kept.
func (k *keeper) hand(op string, id uint64, what kept, file syscall.RawConn) error {
	k.mu.Lock()
	k.conns[id] = what
	k.mu.Unlock()
	var inner error
	err := file.Control(func(fd uintptr) { inner = k.send(request{Op: op, ID: id}, []int{int(fd)}) })
	if err = errors.Join(err, inner); err != nil {
		k.mu.Lock()
		delete(k.conns, id)
		k.mu.Unlock()
	}
	return err
}

// release makes the process close its duplicate. The caller has closed its own file, or does so soon.
func (k *keeper) release(id uint64, account string) {
	count(account, 1)
	k.mu.Lock()
	delete(k.conns, id)
	k.closing[id] = account
	k.mu.Unlock()
	if k.send(request{Op: opClose, ID: id, Account: account}, nil) != nil {
		k.released(id) // the process has ended, and with it its duplicate
	}
}

// released counts a file that the process does not have any more.
func (k *keeper) released(id uint64) {
	k.mu.Lock()
	account, ok := k.closing[id]
	delete(k.closing, id)
	idle := len(k.conns) == 0 && len(k.closing) == 0
	k.mu.Unlock()
	if ok {
		count(account, -1)
	}
	if !idle {
		return
	}
	all.mu.Lock()
	retired := all.keeper != k
	all.mu.Unlock()
	if retired {
		k.end()
	}
}

// end ends the process, unless it is blocked.
func (k *keeper) end() {
	k.life.RLock()
	defer k.life.RUnlock()
	if k.sock >= 0 {
		_ = unix.Shutdown(k.sock, unix.SHUT_RDWR)
	}
}

func (k *keeper) usable() bool {
	k.life.RLock()
	defer k.life.RUnlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.sock >= 0 && len(k.closing) < maxClosing
}

// start starts a process. It shares no file with the daemon but the socket.
func start() (*keeper, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("start quarantine: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "quarantine")
	defer func() { _ = theirs.Close() }()
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		_ = unix.Close(pair[0])
		return nil, fmt.Errorf("start quarantine: %w", err)
	}
	daemon := os.NewFile(uintptr(self), "daemon")
	defer func() { _ = daemon.Close() }()
	limit := unix.NsecToTimeval(answerTime.Nanoseconds())
	_ = unix.SetsockoptTimeval(pair[0], unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit)
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{processName}, Env: []string{}, Dir: "/", ExtraFiles: []*os.File{theirs, daemon},
		SysProcAttr: &unix.SysProcAttr{Setsid: true}, // a terminal's signals do not reach it
	}
	if err := cmd.Start(); err != nil {
		_ = unix.Close(pair[0])
		return nil, fmt.Errorf("start quarantine: %w", err)
	}
	k := &keeper{sock: pair[0], pending: map[uint64]chan<- answer{}, conns: map[uint64]kept{}, closing: map[uint64]string{}}
	go func() { _ = cmd.Wait() }()
	go k.read()
	return k, nil
}

// send sends a request. A process that does not read is given up.
func (k *keeper) send(r request, fds []int) error {
	k.life.RLock()
	defer k.life.RUnlock()
	if k.sock < 0 {
		return errEnded
	}
	err := seqpacket.Send(k.sock, r, fds)
	if err != nil {
		_ = unix.Shutdown(k.sock, unix.SHUT_RDWR) // ends read
	}
	return err
}

// ask sends a request and waits for its answer.
func (k *keeper) ask(r request, fds []int) ([]int, error) {
	r.Seq = number()
	done := make(chan answer, 1)
	k.mu.Lock()
	k.pending[r.Seq] = done
	k.mu.Unlock()
	forget := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.pending, r.Seq)
	}
	if err := k.send(r, fds); err != nil {
		forget()
		return nil, err
	}
	timer := time.NewTimer(answerTime)
	defer timer.Stop()
	select {
	case a := <-done:
		switch {
		case a.Errno != 0:
			return nil, a.Errno
		case a.Error != "":
			return nil, &Refusal{a.Error}
		}
		return a.fds, nil
	case <-timer.C:
		forget()
		select { // it may have come meanwhile
		case a := <-done:
			seqpacket.CloseAll(a.fds)
		default:
		}
		return nil, ErrTime
	}
}

// Refusal is the reason why a descriptor is not what is wanted.
type Refusal struct{ why string }

func (r *Refusal) Error() string { return r.why }

// read takes the answers until the process ends. Then another process keeps its connections.
func (k *keeper) read() {
	for in := seqpacket.NewInbox(k.sock); ; {
		var r reply
		fds, err := in.Receive(&r)
		if errors.Is(err, seqpacket.ErrNoRoom) {
			r.Error, err = err.Error(), nil
		}
		if err != nil {
			break
		}
		k.mu.Lock()
		done := k.pending[r.Seq]
		delete(k.pending, r.Seq)
		k.mu.Unlock()
		if r.Closed != 0 {
			k.released(r.Closed)
		}
		if done != nil {
			done <- answer{r, fds}
		} else {
			seqpacket.CloseAll(fds) // late; as wanted
		}
	}
	k.life.Lock()
	_ = unix.Close(k.sock)
	k.sock = -1
	k.life.Unlock()
	k.mu.Lock()
	conns, closing, pending := k.conns, k.closing, k.pending
	k.conns, k.closing, k.pending = map[uint64]kept{}, map[uint64]string{}, map[uint64]chan<- answer{}
	k.mu.Unlock()
	for _, done := range pending {
		done <- answer{reply: reply{Error: errEnded.Error()}}
	}
	for _, account := range closing {
		count(account, -1)
	}
	for len(conns) > 0 {
		if _, err := current(); err == nil {
			break
		}
		time.Sleep(restartPause)
	}
	for _, c := range conns {
		c.keep()
	}
}

// count changes the number of an account's connections that are not closed yet.
func count(account string, by int) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.closing == nil {
		all.closing = map[string]int{}
	}
	if all.closing[account] += by; all.closing[account] <= 0 {
		delete(all.closing, account)
	}
}
