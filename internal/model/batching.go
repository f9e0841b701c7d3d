// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Batching decides whether a program's kernels should gather on the device before they run. That saves a
// program two context switches per kernel, but its last batch runs when the program waits, not before.
//
// It pays for short requests of many kernels that take the CPU longer to submit than the device to run.
// All input comes from the program; nonsense changes only its own protection.
type Batching struct {
	On bool
	// Launches, Submit and Wait describe the last request: its kernels, the time until a thread waited for
	// them, and the time until they were done.
	Launches     uint64
	Submit, Wait time.Duration

	against int8          // requests in a row that speak against On
	without time.Duration // a short Wait of late that did not gather; 0: not known
	pause   uint32        // requests until the next attempt
	next    uint32        // pause after the next attempt that fails
}

const (
	// batchLaunches: fewer kernels cost fewer switches than a batch of their own.
	batchLaunches = 8
	// batchMin and batchMax bound the submission time. On an H200 a request of 18 ms lost 3 ms at the median
	// in five batches, one of 9 ms nothing in three (batching in docs/strategies.md).
	batchMin = 300 * time.Microsecond
	batchMax = 12 * time.Millisecond
	// batchChange requests in a row change the decision.
	batchChange = 4
	// batchLoss is what a batch may add to the wait: the last one runs when the program waits. In the
	// simulator it adds 0.5 ms to requests of 2 ms (sim.TestBatches), and 2 ms to requests that keep the device
	// busy, a quarter of their P99 (sim.TestNearTheLimit).
	batchLoss = time.Millisecond
	// batchPause is the first pause after an attempt that lost more. A pause is twice as long as the one
	// before it: batchChange requests of so many are below the P99.
	batchPause, batchLongest = 1024, 1 << 20
)

// End reports a request that ended, and whether its kernels gathered on the device.
func (b *Batching) End(launches uint64, submit, wait time.Duration, gathered bool) {
	b.Launches, b.Submit, b.Wait = launches, submit, wait
	suits := launches >= batchLaunches && submit >= batchMin && submit <= batchMax && wait <= submit
	loses := suits && gathered && b.without > 0 && wait > b.without+batchLoss
	switch {
	case gathered:
	case b.without == 0 || wait < b.without:
		b.without = wait
	default:
		b.without += (wait - b.without) / 8
	}
	if b.pause > 0 {
		b.pause--
		suits = false
	}
	if (suits && !loses) == b.On {
		b.against = 0
		return
	}
	if b.against++; b.against < batchChange {
		return
	}
	b.On, b.against = !b.On, 0
	if loses {
		b.next = min(max(batchPause, 2*b.next), batchLongest)
		b.pause = b.next
	}
}
