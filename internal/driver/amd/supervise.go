// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/seqpacket"
	"xsched/internal/wire"
)

const (
	leasePeriod = 20 * time.Millisecond // interval of heartbeat and lease checks
	releaseTime = 2 * time.Second       // for an orderly release; otherwise this process's exit releases the target
	// sparePs covers goroutines in system calls, which keep their P until the runtime notices.
	sparePs = 8
)

// suspender is the part of Debugger that a supervisor uses.
type suspender interface {
	Queues() ([]QueueSnapshot, error)
	Suspend(gpu uint32, kinds Kinds, grace uint32) ([]QueueResult, error)
	Resume(gpu uint32) ([]QueueResult, error)
	CaughtSoFar() uint64
}

// supervisor is the guardian and debugger of one process.
type supervisor struct {
	sock     int
	debugger suspender

	mu      sync.Mutex          // held across check and operation
	page    wire.ClientPage     // Page is nil until received
	stopped map[uint32]struct{} // by gpu_id: possibly suspended
	undone  uint64              // newest lease that was ended here
}

// Supervise is the supervisor's main function; it returns when the daemon or the process ends.
func (kernelDriver) Supervise(sock int, first json.RawMessage) error {
	var m message
	if err := json.Unmarshal(first, &m); err != nil || m.Op != "trace" {
		return fmt.Errorf("supervise: not a trace request: %w", err)
	}
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), runtime.NumCPU()+sparePs))
	d, err := AttachDebugger(m.PID, func() (Transport, error) {
		if m.Socket != "" {
			return DialVirtual(m.Socket)
		}
		return OpenDevice()
	})
	if err != nil {
		_ = seqpacket.Send(sock, reply{Seq: m.Seq, Error: err.Error(), traced: traced{Kind: kindOf(err)}}, nil)
		return seqpacket.ErrClosed
	}
	defer release(d)
	if err := seqpacket.Send(sock, reply{Seq: m.Seq}, nil); err != nil {
		return err
	}
	t := &supervisor{sock: sock, debugger: d, stopped: map[uint32]struct{}{}}
	go t.watch()
	go func() {
		<-d.Ended()
		_ = seqpacket.Send(sock, reply{traced: traced{Ended: true}}, nil)
		_ = unix.Shutdown(sock, unix.SHUT_RD)
	}()
	return t.serve()
}

// release resumes and detaches the process.
func release(d *Debugger) {
	done := make(chan struct{})
	go func() { _ = d.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(releaseTime):
	}
}

// serve handles the daemon's requests until the end.
func (t *supervisor) serve() error {
	end := make(chan error, 1)
	go t.next(seqpacket.NewInbox(t.sock), end)
	return <-end
}

// next receives requests up to one that may block in the driver and executes that one directly, for
// latency. Another goroutine receives meanwhile, so that pings are answered.
func (t *supervisor) next(in *seqpacket.Inbox, end chan<- error) {
	for {
		var m message
		fds, err := in.Receive(&m)
		if err != nil {
			end <- err
			return
		}
		if m.Op != "ping" {
			go t.next(in, end)
			_ = seqpacket.Send(t.sock, t.do(m, fds), nil)
			return
		}
		seqpacket.CloseAll(fds)
		_ = seqpacket.Send(t.sock, reply{Seq: m.Seq, traced: traced{Caught: t.debugger.CaughtSoFar()}}, nil)
	}
}

// do executes one request.
func (t *supervisor) do(m message, fds []int) reply {
	defer seqpacket.CloseAll(fds)
	t.mu.Lock()
	defer t.mu.Unlock()
	r := reply{Seq: m.Seq}
	var queues []QueueSnapshot
	var results []QueueResult
	var err error
	switch m.Op {
	case "page":
		err = t.setPage(fds)
	case "queues":
		queues, err = t.debugger.Queues()
	case "suspend":
		results, err = t.suspend(m.order)
	case "resume":
		results, err = t.resume(m.GPU)
	default:
		err = fmt.Errorf("unknown request %q", m.Op)
	}
	var packed [2]error
	r.Queues, packed[0] = packList(queues)
	r.Results, packed[1] = packList(results)
	r.Caught = t.debugger.CaughtSoFar()
	if err = errors.Join(err, packed[0], packed[1]); err != nil {
		r.Error, r.Kind = err.Error(), kindOf(err)
	}
	return r
}

// setPage starts guarding the session. Nothing is suspended yet, so suspensions of a previous
// supervisor are void. Preconditions: t.mu is held.
func (t *supervisor) setPage(fds []int) error {
	if len(fds) != 1 || t.page.Page != nil {
		return fmt.Errorf("page with %d descriptors, or a second one", len(fds))
	}
	page, err := wire.MapPage(fds[0])
	if err != nil {
		return err
	}
	t.page = wire.ClientPage{Page: page}
	if epoch, _ := t.page.Lease(); epoch > page.RecoveredEpoch() {
		t.recovered(epoch)
	}
	return nil
}

// suspend requires a live lease, because a stalled daemon may send outdated requests.
// Preconditions: t.mu is held.
func (t *supervisor) suspend(o order) ([]QueueResult, error) {
	if t.page.Page == nil {
		return nil, errors.New("suspend before the page is there")
	}
	if epoch, _ := t.page.Lease(); epoch <= t.undone || t.late() {
		return nil, ErrStale
	}
	t.stopped[o.GPU] = struct{}{} // also after an error: some queues may be suspended
	return t.debugger.Suspend(o.GPU, o.Kinds, o.Grace)
}

// resume resumes a GPU's queues. Preconditions: t.mu is held.
func (t *supervisor) resume(gpu uint32) ([]QueueResult, error) {
	results, err := t.debugger.Resume(gpu)
	switch {
	case err != nil:
	case gpu == AllGPUs:
		clear(t.stopped)
	default:
		delete(t.stopped, gpu)
	}
	return results, err
}

// late reports that the lease expired or was ended, or that the heartbeat stopped. Preconditions:
// t.mu is held.
func (t *supervisor) late() bool {
	now := clock.Now()
	_, deadline := t.page.Lease()
	return deadline == 0 || now > deadline || now.Sub(t.page.LastHeartbeat()) > wire.HeartbeatLimitNS
}

// watch does for the process what the shim's helper thread does for its own.
func (t *supervisor) watch() {
	for range time.Tick(leasePeriod) {
		t.look()
	}
}

// look ends a suspension without a live lease; a failed resume is retried on the next tick.
func (t *supervisor) look() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.stopped) == 0 {
		return
	}
	// The epoch comes first: a lease that the daemon begins meanwhile is newer and must not count as
	// undone.
	epoch, _ := t.page.Lease()
	if !t.late() {
		return
	}
	if _, err := t.resume(AllGPUs); err == nil {
		t.recovered(epoch)
	}
}

// recovered reports the undone epoch to the daemon. Preconditions: t.mu is held.
func (t *supervisor) recovered(epoch uint64) {
	t.undone = epoch
	t.page.SetRecovered(epoch)
}
