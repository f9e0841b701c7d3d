// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"xsched/internal/model"
)

// A process is uncontrolled while operations on it fail or hang, from uncontrolledAfter on, and for no longer.
func TestLoose(t *testing.T) {
	for name, fail := range map[string]func(over <-chan struct{}) error{
		"fail": func(over <-chan struct{}) error {
			select {
			case <-over:
				return nil
			default:
				return errors.New("no")
			}
		},
		"hang": func(over <-chan struct{}) error { <-over; return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			over := make(chan struct{})
			var obeys atomic.Bool
			obeys.Store(true)
			target := &fakeTarget{hook: func(model.Desired) error {
				if obeys.Load() {
					return nil
				}
				return fail(over)
			}}
			w, _ := realTime(t, target, &fakePage{})
			var reports atomic.Int32
			w.OnOff(func() { reports.Add(1) })
			w.Want(run)
			await(t, "applied", func() bool { _, n := target.last(); return n > 0 })
			time.Sleep(2 * uncontrolledAfter)
			if w.Uncontrolled() || reports.Load() != 0 {
				t.Errorf("uncontrolled %v, reports %d without a failure", w.Uncontrolled(), reports.Load())
			}
			obeys.Store(false)
			began := time.Now()
			w.Want(stop)
			await(t, "uncontrolled", w.Uncontrolled)
			if took := time.Since(began); took < uncontrolledAfter {
				t.Errorf("uncontrolled after %v", took)
			}
			await(t, "reports", func() bool { return reports.Load() > 0 })
			close(over)
			await(t, "under control", func() bool { return !w.Uncontrolled() })
			await(t, "reports again", func() bool { return reports.Load() > 1 })
		})
	}
}
