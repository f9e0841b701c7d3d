// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"xsched/internal/model"
	"xsched/internal/planted"
)

const (
	retryMin = 20 * time.Millisecond // also the delay after a voided suspension
	retryMax = time.Second
	stuckAge = 100 * time.Millisecond // age at which an operation counts as stuck
	// afterMax bounds the wait for predecessors. Several times their usual duration, so that one
	// hung operation delays no other worker.
	afterMax = 2 * time.Millisecond
)

// Worker drives one target towards the newest desired state: a mailbox of one and at most one
// operation in flight. A hung operation stalls only its own worker.
type Worker struct {
	target  Target
	hold    *Hold
	metrics *Metrics
	log     *slog.Logger
	now     func() model.Time
	cancel  context.CancelFunc
	wake    chan struct{}
	done    chan struct{}

	mu           sync.Mutex
	want         model.Desired
	wantSeq      uint64 // of want
	wantAt       model.Time
	after        []<-chan struct{} // predecessors of want
	tried        chan struct{}     // closed when want was attempted or replaced; nil: already closed
	seat         *Seat             // in the joint of want; nil: none
	redo         bool              // apply want even if already applied
	forget       bool              // invalidate the target first
	stopping     bool
	restore      bool              // when stopping: undo everything first
	restored     bool              // the undo succeeded
	uncertain    bool              // used by run only: a failed suspension may still be in effect
	open         []<-chan struct{} // used by run only: shared calls that had not returned
	stats        WorkerStats
	opSince      model.Time
	releasing    bool // an operation in flight resumes
	failing      failing
	trying       bool // no operation has succeeded since one began
	uncontrolled bool // and that for uncontrolledAfter
	alarm        *time.Timer
	onOff        func()
}

// WorkerStats are the counters of one worker.
type WorkerStats struct {
	Ops, Errors, Undone uint64
	LastError           string
	StuckSince          model.Time // 0: not stuck
	Suspended           bool       // a suspension begins, lasts or ends, or the program was asked to restore itself
	Off                 string     // why scheduling is off; empty: it is on
}

// StartWorker starts the goroutine that owns target. lease covers the target's device.
func StartWorker(target Target, lease *Lease, metrics *Metrics, log *slog.Logger, now func() model.Time) *Worker {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Worker{
		target: target, hold: lease.Hold(), metrics: metrics, log: log, now: now, cancel: cancel,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	w.alarm = time.AfterFunc(uncontrolledAfter, w.lose)
	w.alarm.Stop()
	go w.run(ctx)
	return w
}

// Want replaces the desired state and never blocks. The worker applies it after the given
// predecessors, within afterMax. The returned channel closes once the state was attempted or
// replaced.
func (w *Worker) Want(d model.Desired, after ...<-chan struct{}) <-chan struct{} {
	return w.wants(d, nil, after)
}

// wants is Want with a seat in a joint.
func (w *Worker) wants(d model.Desired, seat *Seat, after []<-chan struct{}) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.releaseWaiters()
	w.leaveSeat()
	if w.opSince != 0 || w.stopping || w.failing.any() {
		seat.Leave() // others would wait for this worker
		seat = nil
	}
	if w.stopping {
		none := make(chan struct{})
		close(none)
		return none
	}
	w.after, w.tried = after, make(chan struct{})
	w.want, w.seat = d, seat
	w.wantSeq++
	w.wantAt = w.now()
	switch {
	case !hardware(d):
		w.hold.Ending()
	case !w.releasing && !w.failing.any():
		// Otherwise the process may still be suspended by an older state, and the client must be
		// able to end that.
		w.hold.Wanted()
	}
	w.signal()
	return w.tried
}

// Settle waits until the state that is desired now was attempted or replaced. It returns why the last
// operation failed; the worker repeats that one.
func (w *Worker) Settle(ctx context.Context) error {
	w.mu.Lock()
	tried := w.tried
	w.mu.Unlock()
	if tried != nil {
		select {
		case <-tried:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if failed := w.Stats().LastError; failed != "" {
		return errors.New(failed)
	}
	return nil
}

// releaseWaiters releases the waiters on want. Preconditions: w.mu is held.
func (w *Worker) releaseWaiters() {
	if w.tried != nil {
		close(w.tried)
		w.tried = nil
	}
}

// await waits for the predecessors; false: a newer state is wanted.
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

// Redo applies the desired state again after the target's objects changed.
func (w *Worker) Redo() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.redo = true
	w.signal()
}

// Recovered reports that the client changed the hardware state by itself.
func (w *Worker) Recovered() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.redo, w.forget = true, true
	w.signal()
}

// LeaseChanged looks at the lease after Leases.Tick. all: the client restored every device.
func (w *Worker) LeaseChanged(all bool) {
	if planted.Lease {
		return
	}
	void, undone := w.hold.Changed()
	switch {
	case all || undone:
		w.Recovered()
	case void:
		w.Redo()
	}
}

// Stats returns the counters, with StuckSince and Suspended as of now.
func (w *Worker) Stats() WorkerStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stats
	s.Off, s.Suspended = w.failing.off, w.hold.Held()
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
		w.releaseWaiters()
		w.leaveSeat()
	}()
	defer w.cancel()
	defer w.alarm.Stop()
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
		seat := w.take(seq, redo, forget)
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
		if w.attempt(ctx, want, seq, seat) {
			if hardware(want) && seq != doneSeq {
				w.metrics.PreemptTime[want.Suspend].Record(w.now().Sub(wantAt))
			}
			doneSeq, retry, wait = seq, nil, retryMin
			continue
		}
		// A newer state is attempted without delay, because it may succeed.
		retry = time.After(wait)
		wait = min(wait*2, retryMax)
		doneSeq = seq
	}
}

// take marks what run is about to do as done, and returns the seat of the state with that number.
func (w *Worker) take(seq uint64, redo, forget bool) (seat *Seat) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wantSeq == seq {
		w.after = nil
		seat, w.seat = w.seat, nil
	}
	w.redo, w.forget = w.redo && !redo, w.forget && !forget
	return seat
}

// attempt applies the state with a number and reports whether it took effect.
func (w *Worker) attempt(ctx context.Context, want model.Desired, seq uint64, seat *Seat) bool {
	if w.prune(); len(w.open) > 0 {
		// One late call is all that a resume allows for, and the next one could hang, too.
		seat.Leave()
		seat = nil
	}
	held := w.reconcile(ctx, want, seat)
	seat.Leave()
	w.noteOpen(seat)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wantSeq == seq {
		w.releaseWaiters()
	}
	return held
}

// reconcile applies want under the lease and reports whether it took effect.
func (w *Worker) reconcile(ctx context.Context, want model.Desired, seat *Seat) bool {
	if w.troubled() {
		seat.Leave()
		if !w.release(ctx, model.Desired{Queue: want.Queue}) || w.troubled() {
			return false
		}
	}
	if w.hold.Held() && !w.hold.Valid(w.now()) {
		seat.Leave()
		w.undo(ctx, want)
		if hardware(want) {
			return false
		}
	}
	if !hardware(want) {
		return w.release(seat.within(ctx), want)
	}
	if !w.hold.Begin(w.now()) {
		return false
	}
	err := w.op(seat.within(ctx), want)
	w.uncertain = w.uncertain || err != nil
	if !w.hold.Valid(w.now()) {
		w.undo(ctx, want)
		return false
	}
	return err == nil
}

// release applies a state without suspension and reports whether it took effect.
func (w *Worker) release(ctx context.Context, run model.Desired) bool {
	w.settle()
	if err := w.op(ctx, run); err != nil {
		if ctx.Err() == nil {
			w.resumeFailed(err)
		}
		return false
	}
	w.hold.End()
	w.resumeDone()
	return true
}

// undo reverts a suspension whose lease is void.
func (w *Worker) undo(ctx context.Context, want model.Desired) {
	w.metrics.Undone.Add(1)
	w.mu.Lock()
	w.stats.Undone++
	w.mu.Unlock()
	w.uncertain = true
	want.Suspend = 0
	w.release(ctx, want)
}

// settle invalidates the target after an operation of unknown outcome.
func (w *Worker) settle() {
	if w.uncertain {
		w.target.Invalidate()
		w.uncertain = false
	}
}

func (w *Worker) op(ctx context.Context, want model.Desired) error {
	w.mu.Lock()
	w.opSince, w.releasing = w.now(), !hardware(want)
	w.try()
	w.mu.Unlock()
	err := w.target.Apply(ctx, want)
	if w.did(ctx, err) {
		w.log.Warn("device operation failed", "queue", want.Queue, "suspend", want.Suspend.String(), "slice", want.Slice, "err", err)
	}
	return err
}

// did accounts an operation, and reports whether it failed in a new way, which is logged once. The
// caller logs without the lock, because the engine loop takes it.
func (w *Worker) did(ctx context.Context, err error) (news bool) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opSince, w.releasing = 0, false
	w.stats.Ops++
	if err == nil {
		w.stats.LastError = ""
		w.regain()
		return false
	}
	w.stats.Errors++
	w.metrics.Errors.Add(1)
	if news = text != w.stats.LastError && ctx.Err() == nil; news {
		w.stats.LastError = text
	}
	return news
}
