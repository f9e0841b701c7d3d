// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"time"

	"xsched/internal/model"
)

// A resume that fails is repeated by another route. The worker gives up the lease, and the shim or the
// guardian restores the process through its own descriptors. If the resume keeps failing, scheduling
// is off for the process on this device: nothing more is suspended, and no timeslice is set, until
// the device has obeyed again for a while.

const (
	offAfter  = 100 * time.Millisecond // from the first failed resume
	offLeast  = time.Second            // after the last failure; doubles if it happens again soon
	offMost   = 30 * time.Second
	offForget = time.Minute // between two failures that have nothing to do with each other
)

// failing is the state of a worker whose resumes fail. Preconditions: Worker.mu is held.
type failing struct {
	since  model.Time    // first failed resume in a row; 0: the last one succeeded
	off    string        // why scheduling is off; empty: it is on
	until  model.Time    // earliest end of off
	length time.Duration // of the last off period
}

func (f *failing) any() bool { return f.since != 0 || f.off != "" }

// resumeFailed handles a failed resume.
func (w *Worker) resumeFailed(err error) {
	now := w.now()
	w.hold.Recall(now)
	w.mu.Lock()
	f := &w.failing
	if f.since == 0 {
		f.since = now
	}
	turned := f.off == "" && now.Sub(f.since) >= offAfter
	if turned {
		if f.length == 0 || now.Sub(f.until) > offForget {
			f.length = offLeast / 2
		}
		f.length = min(2*f.length, offMost)
		f.off = "off, because a resume failed: " + err.Error()
		w.metrics.TurnedOff.Add(1)
	}
	if f.off != "" {
		f.until = now.Add(f.length)
	}
	w.mu.Unlock()
	if turned {
		w.log.Warn("scheduling is off for the program: its resume fails", "err", err)
		w.notifyOff()
	}
}

// resumeDone handles a successful resume.
func (w *Worker) resumeDone() {
	w.mu.Lock()
	f := &w.failing
	f.since = 0
	over := f.off != "" && w.now() >= f.until
	if over {
		f.off = ""
	}
	if hardware(w.want) && !f.any() {
		w.hold.Wanted()
	}
	w.mu.Unlock()
	if over {
		w.log.Info("scheduling is on again for the program")
		w.notifyOff()
	}
}

// troubled reports whether nothing may be suspended now.
func (w *Worker) troubled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failing.any()
}

// Off explains why scheduling is off for the target; empty: it is on.
func (w *Worker) Off() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failing.off
}

// OnOff registers f for changes of Off and Uncontrolled. f runs in its own goroutine.
func (w *Worker) OnOff(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.onOff = f
}

func (w *Worker) notifyOff() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notify()
}

// notify calls what OnOff registered. Preconditions: w.mu is held.
func (w *Worker) notify() {
	if w.onOff != nil {
		go w.onOff()
	}
}
