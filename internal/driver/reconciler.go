// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"xsched/internal/model"
)

const (
	retryMin = 20 * time.Millisecond // also how long a voided suspension waits before the next try
	retryMax = time.Second
	stuckAge = 100 * time.Millisecond // an operation older than this shows as stuck
	// afterMax is how long an operation waits for those that shall come before it: several
	// times what they take, so that one that never returns holds nobody up.
	afterMax = 2 * time.Millisecond
	freeTry  = time.Second // for one attempt to undo everything, where a device can be given up on
)

// Worker drives one target towards the newest wanted state: a mailbox of one
// and at most one operation in flight. An operation that never returns stalls
// this worker and nobody else.
type Worker struct {
	target  Target
	hold    *Hold
	metrics *Metrics
	log     *slog.Logger
	now     func() model.Time
	cancel  context.CancelFunc
	wake    chan struct{}
	done    chan struct{}

	mu       sync.Mutex
	want     model.Desired
	wantSeq  uint64 // of want
	wantAt   model.Time
	after    []<-chan struct{} // to be done before want
	tried    chan struct{}     // closed when want was tried or replaced; nil: it was
	redo     bool              // apply want even if it was applied already
	forget   bool              // and forget what is known about the hardware before
	stopping bool
	restore  bool // when stopping: undo everything first
	restored bool // and that was done
	doubt    bool // run's alone: a suspension failed and may be in force all the same
	stats    WorkerStats
	opSince  model.Time
}

// WorkerStats is a worker's own account.
type WorkerStats struct {
	Ops, Errors, Undone uint64
	LastError           string
	StuckSince          model.Time // 0: not stuck
}

// StartWorker starts the goroutine that owns target. lease is the process's.
func StartWorker(target Target, lease *Lease, metrics *Metrics, log *slog.Logger, now func() model.Time) *Worker {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Worker{
		target: target, hold: lease.Hold(), metrics: metrics, log: log, now: now, cancel: cancel,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	go w.run(ctx)
	return w
}

// Want replaces what is wanted. It never blocks. It is tried after the others
// that are named, if these don't take too long; the channel that is returned is closed when
// it was tried, or when something else is wanted instead.
func (w *Worker) Want(d model.Desired, after ...<-chan struct{}) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trying()
	if w.stopping {
		none := make(chan struct{})
		close(none)
		return none
	}
	w.after, w.tried = after, make(chan struct{})
	w.want = d
	w.wantSeq++
	w.wantAt = w.now()
	if hardware(d) {
		w.hold.Wanted()
	} else {
		w.hold.Ending()
	}
	w.signal()
	return w.tried
}

// trying ends the wait of those who come after want. Preconditions: w.mu is held.
func (w *Worker) trying() {
	if w.tried != nil {
		close(w.tried)
		w.tried = nil
	}
}

// await waits for what shall come before; false: something newer is wanted.
func (w *Worker) await(ctx context.Context, after []<-chan struct{}) bool {
	if len(after) == 0 {
		return true
	}
	limit := time.NewTimer(afterMax)
	defer limit.Stop()
	for _, done := range after {
		select {
		case <-done:
		case <-limit.C:
			return true
		case <-ctx.Done():
			return true
		case <-w.wake:
			w.mu.Lock()
			defer w.mu.Unlock()
			w.signal()
			return false
		}
	}
	return true
}

// Redo applies what is wanted again: the target's objects have changed.
func (w *Worker) Redo() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.redo = true
	w.signal()
}

// Recovered says that the client has changed the hardware by itself.
func (w *Worker) Recovered() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.redo, w.forget = true, true
	w.signal()
}

// Stop ends the worker, after undoing everything when restore is set: that is tried
// until it succeeds or Abandon is called. The returned channel is closed when the target is
// closed, which an operation that never returns can hold up for ever; Restored then says
// how it went.
func (w *Worker) Stop(restore bool) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopping = true
	w.restore = restore
	w.hold.Ending()
	if !restore {
		w.cancel()
	}
	w.signal()
	return w.done
}

// Restored says that the worker has ended with nothing of what it did left in force.
func (w *Worker) Restored() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.restored
}

// Abandon gives up waiting: an operation in flight is cancelled where that can be done.
func (w *Worker) Abandon() { w.cancel() }

// Stats returns the account, with StuckSince as of now.
func (w *Worker) Stats() WorkerStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stats
	if w.opSince != 0 && w.now().Sub(w.opSince) > stuckAge {
		s.StuckSince = w.opSince
	}
	return s
}

func hardware(d model.Desired) bool { return d.Suspend >= model.LevelDeactivate }

// signal wakes the goroutine. Preconditions: w.mu is held.
func (w *Worker) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *Worker) run(ctx context.Context) {
	defer close(w.done)
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.trying()
	}()
	defer w.cancel()
	defer func() { _ = w.target.Close() }()
	var doneSeq uint64
	var retry <-chan time.Time
	wait := retryMin
	for {
		select {
		case <-w.wake:
		case <-retry:
			retry = nil
			w.mu.Lock()
			w.redo = true
			w.mu.Unlock()
		}
		w.mu.Lock()
		want, seq, redo, forget, stopping, restore := w.want, w.wantSeq, w.redo, w.forget, w.stopping, w.restore
		wantAt, after := w.wantAt, w.after
		w.mu.Unlock()
		if !stopping && (seq != doneSeq || redo) && !w.await(ctx, after) {
			continue
		}
		w.mu.Lock()
		if w.wantSeq == seq {
			w.after = nil
		}
		w.redo, w.forget = w.redo && !redo, w.forget && !forget
		w.mu.Unlock()
		if stopping {
			if restore {
				w.free(ctx, model.Desired{Queue: want.Queue})
			}
			return
		}
		if seq == doneSeq && !redo {
			continue
		}
		if forget {
			w.target.Invalidate()
		}
		held := w.reconcile(ctx, want)
		w.mu.Lock()
		if w.wantSeq == seq {
			w.trying()
		}
		w.mu.Unlock()
		if held {
			if hardware(want) && seq != doneSeq {
				w.metrics.PreemptTime[want.Suspend].Record(w.now().Sub(wantAt))
			}
			doneSeq, retry, wait = seq, nil, retryMin
			continue
		}
		// A new wish is tried at once all the same: it may be one that works.
		retry = time.After(wait)
		wait = min(wait*2, retryMax)
		doneSeq = seq
	}
}

// reconcile makes want true under the lease and says whether that held.
func (w *Worker) reconcile(ctx context.Context, want model.Desired) bool {
	if w.hold.Held() && !w.hold.Valid(w.now()) {
		w.undo(ctx, want)
		if hardware(want) {
			return false
		}
	}
	if !hardware(want) {
		w.settle()
		if err := w.op(ctx, want); err != nil {
			return false
		}
		w.hold.End()
		return true
	}
	w.hold.Begin(w.now())
	err := w.op(ctx, want)
	w.doubt = w.doubt || err != nil
	if !w.hold.Valid(w.now()) {
		w.undo(ctx, want)
		return false
	}
	return err == nil
}

// undo takes back a suspension whose lease is void.
func (w *Worker) undo(ctx context.Context, want model.Desired) {
	w.metrics.Undone.Add(1)
	w.mu.Lock()
	w.stats.Undone++
	w.mu.Unlock()
	w.doubt = true
	w.settle()
	want.Suspend = 0
	if w.op(ctx, want) == nil {
		w.hold.End()
	}
}

// settle has the next operation done whatever the target believes, after one of which
// nobody knows how far it came.
func (w *Worker) settle() {
	if w.doubt {
		w.target.Invalidate()
		w.doubt = false
	}
}

// free undoes everything, for good.
func (w *Worker) free(ctx context.Context, run model.Desired) {
	w.doubt = w.doubt || w.hold.Held() && !w.hold.Valid(w.now())
	for wait := retryMin; ; wait = min(wait*2, retryMax) {
		w.settle()
		once, cancel := context.WithTimeout(ctx, freeTry)
		err := w.op(once, run)
		cancel()
		if err == nil {
			w.hold.End()
			w.mu.Lock()
			w.restored = true
			w.mu.Unlock()
			return
		}
		w.doubt = true
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

func (w *Worker) op(ctx context.Context, want model.Desired) error {
	w.mu.Lock()
	w.opSince = w.now()
	w.mu.Unlock()
	err := w.target.Apply(ctx, want)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opSince = 0
	w.stats.Ops++
	if err == nil {
		w.stats.LastError = ""
		return nil
	}
	w.stats.Errors++
	w.metrics.Errors.Add(1)
	// The same failure again and again is one line.
	if text := err.Error(); text != w.stats.LastError && ctx.Err() == nil {
		w.stats.LastError = text
		w.log.Warn("device operation failed", "queue", want.Queue, "suspend", want.Suspend.String(), "slice", want.Slice, "err", err)
	}
	return err
}
