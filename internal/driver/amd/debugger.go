// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/amd/abi"
)

// Kinds selects queues by purpose.
type Kinds uint8

// Compute and copy queues are suspended separately, because ongoing copies can feed a suspended
// queue.
const (
	ComputeQueues Kinds = 1 << iota
	SDMAQueues
	AllQueues = ComputeQueues | SDMAQueues
)

func (k Kinds) has(q QueueSnapshot) bool {
	if q.SDMA() {
		return k&SDMAQueues != 0
	}
	return k&ComputeQueues != 0
}

// snapshotRoom exceeds the number of queues a process can have on several GPUs.
const snapshotRoom = 1024

// Debugger suspends the queues of a process without the shim, as its debugger. rocgdb can't attach
// meanwhile. When this process dies, the driver resumes everything.
type Debugger struct {
	pid       int
	transport Transport
	tracer    *tracer
	events    int // read end of the driver's event pipe
	readers   sync.WaitGroup
	closing   sync.Once

	// Used by the tracing thread only.
	runtime bool
	stopped map[uint32]Kinds // by gpu_id: kinds to keep suspended, new queues included
	grace   uint32           // of the current suspension
	lateErr error            // of a suspension triggered by an event
	held    map[uint32]bool

	caught atomic.Int64 // queues created during a suspension and suspended too
}

// AttachDebugger becomes the debugger of a process without suspending anything.
func AttachDebugger(pid int, open func() (Transport, error)) (*Debugger, error) {
	transport, err := open()
	if err != nil {
		return nil, err
	}
	if err := CheckVersion(transport); err != nil {
		_ = transport.Close()
		return nil, err
	}
	d := &Debugger{pid: pid, transport: transport, grace: GraceDefault, events: -1, stopped: map[uint32]Kinds{}}
	if d.tracer, err = trace(pid); err != nil {
		_ = transport.Close()
		return nil, err
	}
	var failed error
	err = d.tracer.call(func() { failed = d.enable() })
	if err = errors.Join(err, failed); err != nil {
		d.tracer.close()
		_ = transport.Close()
		return nil, err
	}
	d.readers.Add(1)
	go d.listen()
	return d, nil
}

// enable starts the session; the driver announces events on a FIFO.
func (d *Debugger) enable() error {
	var fifo [2]int
	if err := unix.Pipe2(fifo[:], unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("create pipe: %w", err)
	}
	defer unix.Close(fifo[1]) // the driver holds a reference
	t := newTrap(d.pid, abi.KFD_IOC_DBG_TRAP_ENABLE)
	t.putMask(abi.KFD_EC_MASK_QUEUE_NEW | abi.KFD_EC_MASK_PROCESS_RUNTIME)
	t.put32(24, 16)
	t.put32(28, uint32(fifo[1]))
	r := t.request()
	r.PointerAt, r.Buffer, r.File = 16, make([]byte, 16), fifo[1]
	if _, err := d.transport.Ioctl(r); err != nil {
		_ = unix.Close(fifo[0])
		return trapError(fmt.Sprintf("debug process %d", d.pid), err)
	}
	d.runtime = r.Buffer[8] == 1
	d.events = fifo[0]
	return nil
}

// listen forwards the driver's announcements to the tracing thread. The driver closes the pipe at
// the end of the session.
func (d *Debugger) listen() {
	defer d.readers.Done()
	b := make([]byte, 256)
	for {
		n, err := unix.Read(d.events, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 || !d.tracer.post(d.answer) {
			_ = unix.Close(d.events)
			return
		}
	}
}

// answer handles all pending events: it releases a runtime that waits for its debugger, and
// suspends new queues during a suspension.
func (d *Debugger) answer() {
	for range snapshotRoom {
		t := newTrap(d.pid, abi.KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT)
		t.putMask(abi.KFD_EC_MASK_QUEUE_NEW | abi.KFD_EC_MASK_PROCESS_RUNTIME)
		if _, err := d.transport.Ioctl(t.request()); err != nil {
			return // EAGAIN: no more events
		}
		seen := t.mask()
		if seen&abi.KFD_EC_MASK_PROCESS_RUNTIME != 0 {
			reply := newTrap(d.pid, abi.KFD_IOC_DBG_TRAP_SEND_RUNTIME_EVENT)
			reply.putMask(abi.KFD_EC_MASK_PROCESS_RUNTIME)
			if _, err := d.transport.Ioctl(reply.request()); err == nil {
				d.runtime = true
			}
		}
		if seen&abi.KFD_EC_MASK_QUEUE_NEW != 0 && len(d.stopped) > 0 {
			d.stopNew()
		}
	}
}

// stopNew suspends queues created during the suspension.
func (d *Debugger) stopNew() {
	before := len(d.held)
	_, d.lateErr = d.suspend()
	d.caught.Add(int64(max(len(d.held)-before, 0)))
}

// Queues lists the process's queues, newest first.
func (d *Debugger) Queues() (queues []QueueSnapshot, err error) {
	failed := d.tracer.call(func() {
		queues, err = d.snapshot()
		// Listing a queue clears its new flag, so no event will announce it.
		if len(d.stopped) > 0 {
			d.stopNew()
		}
	})
	return queues, errors.Join(failed, err)
}

// snapshot also clears the new flag of all queues, which the driver requires before a suspend.
func (d *Debugger) snapshot() ([]QueueSnapshot, error) {
	t := newTrap(d.pid, abi.KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT)
	t.putMask(abi.KFD_EC_MASK_QUEUE_NEW)
	t.put32(24, snapshotRoom)
	t.put32(28, abi.QueueSnapshotBytes)
	r := t.request()
	r.PointerAt, r.Buffer = 16, make([]byte, snapshotRoom*abi.QueueSnapshotBytes)
	if _, err := d.transport.Ioctl(r); err != nil {
		return nil, trapError("list queues", err)
	}
	n, entry := int(t.u32(24)), int(t.u32(28))
	if n > snapshotRoom {
		return nil, fmt.Errorf("list queues: %d of them: %w", n, ErrIncomplete)
	}
	if entry != abi.QueueSnapshotBytes {
		return nil, fmt.Errorf("list queues: entries of %d bytes: %w", entry, ErrOldDriver)
	}
	return ParseSnapshot(r.Buffer[:n*abi.QueueSnapshotBytes], abi.QueueSnapshotBytes)
}

// AllGPUs stands for every gpu_id.
const AllGPUs = 0

// Suspend suspends a GPU's queues, including those created later, and returns a result per queue.
func (d *Debugger) Suspend(gpu uint32, kinds Kinds, grace uint32) (results []QueueResult, err error) {
	failed := d.tracer.call(func() {
		d.grace, d.lateErr = grace, nil
		d.stopped[gpu] = kinds // also after an error: keep trying new queues
		results, err = d.suspend()
	})
	return results, errors.Join(failed, err)
}

// suspend suspends all selected queues; already suspended ones count as done.
func (d *Debugger) suspend() ([]QueueResult, error) {
	queues, err := d.snapshot()
	if err != nil {
		return nil, err
	}
	var ids []uint32
	for _, q := range queues {
		if (d.stopped[AllGPUs] | d.stopped[q.GPUID]).has(q) {
			ids = append(ids, q.ID)
		}
	}
	d.held = map[uint32]bool{}
	if len(ids) == 0 {
		return nil, nil
	}
	t := newTrap(d.pid, abi.KFD_IOC_DBG_TRAP_SUSPEND_QUEUES)
	t.put32(24, uint32(len(ids)))
	t.put32(28, d.grace)
	results, err := d.change("suspend queues", t, 16, ids)
	for _, r := range results {
		if r.Done() {
			d.held[r.ID] = true
		}
	}
	return results, err
}

// change issues a request that returns a count, with a result per queue.
func (d *Debugger) change(what string, t *trap, pointerAt int, ids []uint32) ([]QueueResult, error) {
	r := t.request()
	r.PointerAt, r.Buffer = pointerAt, encodeIDs(ids)
	n, err := d.transport.Ioctl(r)
	if errors.Is(err, unix.EPERM) && !d.runtime {
		return nil, fmt.Errorf("%s of process %d: %w", what, d.pid, ErrNoRuntime)
	}
	if err != nil {
		return nil, trapError(fmt.Sprintf("%s of process %d", what, d.pid), err)
	}
	results := parseResults(r.Buffer)
	bad := 0
	for _, q := range results {
		// A queue under destruction needs no change.
		if q.Failed {
			bad++
		}
	}
	if bad > 0 {
		return results, fmt.Errorf("%s of process %d: %d of %d done, %d failed: %w", what, d.pid, n, len(ids), bad, ErrIncomplete)
	}
	return results, nil
}

// Resume resumes a GPU's queues.
func (d *Debugger) Resume(gpu uint32) (results []QueueResult, err error) {
	failed := d.tracer.call(func() {
		if gpu == AllGPUs {
			clear(d.stopped)
		}
		delete(d.stopped, gpu)
		var queues []QueueSnapshot
		if queues, err = d.snapshot(); err != nil {
			return
		}
		var ids []uint32
		for _, q := range queues {
			if (gpu == AllGPUs || q.GPUID == gpu) && !(d.stopped[AllGPUs] | d.stopped[q.GPUID]).has(q) {
				ids = append(ids, q.ID)
			}
		}
		if len(ids) == 0 {
			return
		}
		t := newTrap(d.pid, abi.KFD_IOC_DBG_TRAP_RESUME_QUEUES)
		t.put32(16, uint32(len(ids)))
		results, err = d.change("resume queues", t, 8, ids)
	})
	return results, errors.Join(failed, err)
}

// Caught returns how many queues were caught during suspensions, and the last error.
func (d *Debugger) Caught() (n int, err error) {
	failed := d.tracer.call(func() { n, err = int(d.caught.Load()), d.lateErr })
	return n, errors.Join(failed, err)
}

// CaughtSoFar is the lock-free count.
func (d *Debugger) CaughtSoFar() uint64 { return uint64(d.caught.Load()) }

// Ended is closed when the process has ended or the debugger was closed.
func (d *Debugger) Ended() <-chan struct{} { return d.tracer.ended }

// Close ends the session; the driver resumes all queues.
func (d *Debugger) Close() error {
	d.closing.Do(func() {
		_ = d.tracer.call(func() {
			clear(d.stopped)
			_, _ = d.transport.Ioctl(newTrap(d.pid, abi.KFD_IOC_DBG_TRAP_DISABLE).request())
		})
		d.tracer.close()
		_ = d.transport.Close()
		d.awaitReaders()
	})
	return nil
}

// awaitReaders gives the pipe reader time to see its end. A driver that keeps the pipe open costs a
// goroutine, not the caller.
func (d *Debugger) awaitReaders() {
	done := make(chan struct{})
	go func() { d.readers.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(detachTime):
	}
}
