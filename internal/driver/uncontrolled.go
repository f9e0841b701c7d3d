// SPDX-License-Identifier: Apache-2.0

package driver

import "time"

// A process is uncontrolled while the device does not do what the worker wants: it may run although it
// should be suspended, and with any timeslice. For others on the device it is like an unmanaged one.

// uncontrolledAfter is how long an operation may fail or hang until its process counts as uncontrolled.
const uncontrolledAfter = 100 * time.Millisecond

// Uncontrolled reports that the state of the target may differ from the wanted one for longer.
func (w *Worker) Uncontrolled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.uncontrolled || w.failing.off != ""
}

// try notes that an operation begins. Preconditions: w.mu is held.
func (w *Worker) try() {
	if !w.trying {
		w.trying = true
		w.alarm.Reset(uncontrolledAfter)
	}
}

// regain notes that an operation succeeded. Preconditions: w.mu is held.
func (w *Worker) regain() {
	w.trying = false
	w.alarm.Stop()
	if w.uncontrolled {
		w.uncontrolled = false
		w.notify()
	}
}

// lose runs uncontrolledAfter after the first of the operations that did not succeed began.
func (w *Worker) lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.trying && !w.uncontrolled {
		w.uncontrolled = true
		w.notify()
	}
}
