// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"time"

	"xsched/internal/model"
)

// This file ends a worker.

const freeTry = time.Second // per attempt to undo everything; bounds a failing device

// Stop ends the worker. With restore, the worker first undoes everything and retries until it
// succeeds or Abandon is called. The returned channel closes with the target, which a hung
// operation can delay forever. Restored then reports the result.
func (w *Worker) Stop(restore bool) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopping = true
	w.restore = restore
	w.leaveSeat()
	w.hold.Ending()
	if !restore {
		w.cancel()
	}
	w.signal()
	return w.done
}

// Restored reports that the worker ended and left nothing in effect.
func (w *Worker) Restored() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.restored
}

// Abandon stops waiting and cancels the operation in flight if possible.
func (w *Worker) Abandon() { w.cancel() }

// free undoes everything before the worker ends.
func (w *Worker) free(ctx context.Context, run model.Desired) {
	w.uncertain = w.uncertain || w.hold.Held() && !w.hold.Valid(w.now())
	for wait := retryMin; ; wait = min(wait*2, retryMax) {
		w.settle()
		once, cancel := context.WithTimeout(ctx, freeTry)
		err := w.op(once, run)
		cancel()
		if err == nil && len(w.open) > 0 {
			// A shared call may still suspend the process: undo once more when it has returned.
			select {
			case <-w.open[0]:
			case <-ctx.Done():
				return
			}
			w.open, w.uncertain = w.open[1:], true
			continue
		}
		if err == nil {
			w.hold.End()
			w.mu.Lock()
			w.restored = true
			w.mu.Unlock()
			return
		}
		w.uncertain = true
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}
