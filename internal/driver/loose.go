// SPDX-License-Identifier: Apache-2.0

package driver

import "time"

// A process is loose while the device does not do what the worker wants: it may run although it
// should be suspended, and with any timeslice. For others on the device it is like an unmanaged one.

// looseAfter is how long an operation may fail or hang until its process counts as loose.
const looseAfter = 100 * time.Millisecond

// Loose reports that the state of the target may differ from the wanted one for longer.
func (w *Worker) Loose() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.loose || w.failing.off != ""
}

// try notes that an operation begins. Preconditions: w.mu is held.
func (w *Worker) try() {
	if !w.trying {
		w.trying = true
		w.alarm.Reset(looseAfter)
	}
}

// tighten notes that an operation succeeded. Preconditions: w.mu is held.
func (w *Worker) tighten() {
	w.trying = false
	w.alarm.Stop()
	if w.loose {
		w.loose = false
		w.notify()
	}
}

// loosen runs looseAfter after the first of the operations that did not succeed began.
func (w *Worker) loosen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.trying && !w.loose {
		w.loose = true
		w.notify()
	}
}
