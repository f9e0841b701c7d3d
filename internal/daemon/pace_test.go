// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A requested scan runs at once, but frequent requests stay within the CPU share.
func TestRequestedScansArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const took = 10 * time.Millisecond
		ctx, cancel := context.WithCancel(context.Background())
		u := &unmanaged{wake: make(chan struct{}, 1)}
		var looks atomic.Int64
		done := make(chan struct{})
		go func() {
			defer close(done)
			paceScans(ctx, u.wake, func() time.Duration { looks.Add(1); time.Sleep(took); return took })
		}()
		synctest.Wait()
		u.request()
		time.Sleep(took)
		synctest.Wait()
		if n := looks.Load(); n != 1 {
			t.Errorf("%d scans after the first request", n)
		}
		start := time.Now()
		looks.Store(0)
		for time.Since(start) < 10*time.Second {
			u.request()
			time.Sleep(time.Millisecond)
		}
		if n := looks.Load(); time.Duration(n)*took > 10*time.Second/scanShare+took || n < 40 {
			t.Errorf("%d looks of %v in 10 s", n, took)
		}
		// Without requests the period applies.
		time.Sleep(scanPeriod)
		looks.Store(0)
		time.Sleep(10*scanPeriod + scanPeriod/2)
		if n := looks.Load(); n < 9 || n > 11 {
			t.Errorf("%d looks in ten periods", n)
		}
		cancel()
		<-done
	})
}
