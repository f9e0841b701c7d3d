// SPDX-License-Identifier: Apache-2.0

package guardian

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/driver/amd"
	"xsched/internal/wire"
)

const (
	partTime = 2 * time.Second // to let the process go in order; the end of this one does it else
	// sparePs is for goroutines in a system call, which keep their processor until the runtime notices.
	sparePs = 8
)

// debugger is what of amd.Debugger is needed here.
type debugger interface {
	Queues() ([]amd.QueueSnapshot, error)
	Suspend(gpu uint32, kinds amd.Kinds, grace uint32) ([]amd.QueueResult, error)
	Resume(gpu uint32) ([]amd.QueueResult, error)
	CaughtSoFar() uint64
}

// tracer is the guardian of one process on AMD's driver, and its debugger.
type tracer struct {
	sock     int
	debugger debugger

	mu      sync.Mutex          // of one operation: what was looked at before it is true while it is made
	page    wire.ClientPage     // Page is nil: not there yet
	stopped map[uint32]struct{} // by gpu_id: what is, or may be, suspended
	undone  uint64              // the newest lease that was ended here
}

// trace is the rest of this process's life: errEOF when the daemon or the process has gone.
func trace(sock int, m message) error {
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), runtime.NumCPU()+sparePs))
	d, err := amd.AttachDebugger(m.PID, func() (amd.Transport, error) {
		if m.Virtual {
			return amd.DialVirtual(m.KFDSocket)
		}
		return amd.OpenDevice()
	})
	if err != nil {
		_ = send(sock, reply{Seq: m.Seq, Error: err.Error(), traced: traced{Kind: kindOf(err)}}, nil)
		return errEOF
	}
	defer part(d)
	if err := send(sock, reply{Seq: m.Seq}, nil); err != nil {
		return err
	}
	t := &tracer{sock: sock, debugger: d, stopped: map[uint32]struct{}{}}
	go t.watch()
	go func() {
		<-d.Ended()
		_ = send(sock, reply{traced: traced{Ended: true}}, nil)
		_ = unix.Shutdown(sock, unix.SHUT_RD)
	}()
	return t.serve()
}

// part lets the process go: everything of it runs, and nobody traces it.
func part(d *amd.Debugger) {
	done := make(chan struct{})
	go func() { _ = d.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(partTime):
	}
}

// serve takes the daemon's requests until the end.
func (t *tracer) serve() error {
	end := make(chan error, 1)
	go t.next(newInbox(t.sock), end)
	return <-end
}

// next takes requests up to one that may wait for the driver. That is carried out here, which is the shortest
// way; somebody else takes the next ones meanwhile, and can say that this process is alive.
func (t *tracer) next(in *inbox, end chan<- error) {
	for {
		var m message
		fds, err := in.receive(&m)
		if err != nil {
			end <- err
			return
		}
		if m.Op != "ping" {
			go t.next(in, end)
			_ = send(t.sock, t.do(m, fds), nil)
			return
		}
		closeFDs(fds)
		_ = send(t.sock, reply{Seq: m.Seq, traced: traced{Caught: t.debugger.CaughtSoFar()}}, nil)
	}
}

// do carries out one request.
func (t *tracer) do(m message, fds []int) reply {
	defer closeFDs(fds)
	t.mu.Lock()
	defer t.mu.Unlock()
	r := reply{Seq: m.Seq}
	var queues []amd.QueueSnapshot
	var results []amd.QueueResult
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
	r.Queues, packed[0] = pack(queues)
	r.Results, packed[1] = pack(results)
	r.Caught = t.debugger.CaughtSoFar()
	if err = errors.Join(err, packed[0], packed[1]); err != nil {
		r.Error, r.Kind = err.Error(), kindOf(err)
	}
	return r
}

// setPage begins to watch over the session. Nothing is suspended at this moment, so whatever was
// by a tracer before this one is void. Preconditions: t.mu is held.
func (t *tracer) setPage(fds []int) error {
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

// suspend obeys only under a lease that still runs: a daemon that was stopped may ask for what is long
// void. Preconditions: t.mu is held.
func (t *tracer) suspend(o order) ([]amd.QueueResult, error) {
	if t.page.Page == nil {
		return nil, errors.New("suspend before the page is there")
	}
	if epoch, _ := t.page.Lease(); epoch <= t.undone || t.late() {
		return nil, amd.ErrStale
	}
	t.stopped[o.GPU] = struct{}{} // also after an error: some of it may be
	return t.debugger.Suspend(o.GPU, o.Kinds, o.Grace)
}

// resume lets a GPU's queues go on. Preconditions: t.mu is held.
func (t *tracer) resume(gpu uint32) ([]amd.QueueResult, error) {
	results, err := t.debugger.Resume(gpu)
	switch {
	case err != nil:
	case gpu == amd.AllGPUs:
		clear(t.stopped)
	default:
		delete(t.stopped, gpu)
	}
	return results, err
}

// late says that the lease has run out, was ended, or that the daemon is silent. Preconditions: t.mu is held.
func (t *tracer) late() bool {
	now := clock.Now()
	_, deadline := t.page.Lease()
	return deadline == 0 || now > deadline || now.Sub(t.page.LastHeartbeat()) > wire.HeartbeatLimitNS
}

// watch does for the process what a shim's helper does for its own.
func (t *tracer) watch() {
	for range time.Tick(lookPeriod) {
		t.look()
	}
}

// look ends a suspension that nobody answers for; one that the driver refuses to end is tried again
// at the next look.
func (t *tracer) look() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.stopped) == 0 || !t.late() {
		return
	}
	// Read before: a lease that the daemon begins meanwhile is newer than what is said to be undone.
	epoch, _ := t.page.Lease()
	if _, err := t.resume(amd.AllGPUs); err == nil {
		t.recovered(epoch)
	}
}

// recovered tells the daemon. Preconditions: t.mu is held.
func (t *tracer) recovered(epoch uint64) {
	t.undone = epoch
	t.page.SetRecovered(epoch)
}
