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

	against int8 // requests in a row that speak against On
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
)

// End reports a request that ended.
func (b *Batching) End(launches uint64, submit, wait time.Duration) {
	b.Launches, b.Submit, b.Wait = launches, submit, wait
	suits := launches >= batchLaunches && submit >= batchMin && submit <= batchMax && wait <= submit
	if suits == b.On {
		b.against = 0
		return
	}
	if b.against++; b.against >= batchChange {
		b.On, b.against = suits, 0
	}
}
