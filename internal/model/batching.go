// SPDX-License-Identifier: Apache-2.0

package model

import (
	"math"
	"time"
)

// Batching decides whether a program's kernels should gather on the device before they run, and how many.
// That saves two context switches per kernel. The device needs a time, Tail, to change to the program and to run
// what gathered. So the burst begins shortly before the program is expected to wait: the device is then busy until
// the last kernels arrive, which run as a second burst without another switch, and the program waits for them only.
//
// Bursts pay for short requests of many kernels that take the CPU longer to submit than the device to run.
// All input comes from the program; nonsense changes only its own protection.
type Batching struct {
	// Burst is the number of kernels that gather; 0: none.
	Burst uint32
	// Launches, Submit and Wait describe the last request: its kernels, the time until a thread waited for
	// them, and the time until they were done.
	Launches     uint64
	Submit, Wait time.Duration
	Tail         time.Duration // of the requests that gathered as a whole; 0: not known

	// Refused: the program was asked to gather, and did not. Its runtime or its driver can't, or others wait for
	// its work on the device.
	Refused bool

	against int8   // requests in a row that speak against the decision
	short   int8   // requests in a row that were too short to measure
	whole   int8   // requests that gathered as a whole
	pause   uint32 // requests until the next attempt
	next    uint32 // pause after the next attempt that fails
	left    uint32 // requests until the tail is measured again
}

// Gathering is what became of the kernels of a request.
type Gathering int8

// NotAsked: they were not to gather. Gathered: they did. NotGathered: they did not, although the policy asked for it.
const (
	NotAsked Gathering = iota
	Gathered
	NotGathered
)

// WholeRequest is a burst that begins when the program waits.
const WholeRequest = math.MaxUint16

const (
	// batchLaunches: fewer kernels cost fewer switches than a batch of their own.
	batchLaunches = 8
	// batchMin and batchMax bound the submission time. On an H200 a request of 18 ms lost 3 ms at the median
	// in five bursts, one of 9 ms nothing in three (docs/strategies.md).
	batchMin = 300 * time.Microsecond
	batchMax = 12 * time.Millisecond
	// batchChange requests in a row change the decision. A request may begin with a few short parts, such as the
	// copies of its inputs: batchShort of them in a row are a program without requests worth a batch.
	batchChange, batchShort = 4, 32
	// batchLead is the part of the tail by which a burst begins before the wait. Requests of 2, 3, 5 and 10 ms in
	// the simulator: with 0.4 to 0.6 the job keeps all of the ideal, and the request loses less the larger it is
	// (for 5 ms 0.46 and 0.26 ms); with 0.8 the device is done before the last kernels arrive, and the second
	// switch costs the job 3 to 6 points (sim.TestBatches).
	batchLead = 0.6
	// batchPause is the first pause after an attempt that lost, and the time between two measurements of the tail. A
	// pause is twice as long as the one before it: batchChange requests of so many are below the P99.
	batchPause, batchLongest = 1024, 1 << 20
)

// End reports a request that ended.
func (b *Batching) End(launches uint64, submit, wait time.Duration, how Gathering) {
	if launches < batchLaunches || submit < batchMin {
		if b.short++; b.short >= batchShort {
			b.short, b.Burst, b.whole = 0, 0, 0
		}
		return
	}
	b.Launches, b.Submit, b.Wait, b.short = launches, submit, wait, 0
	suits := submit <= batchMax && wait <= submit
	loses := how == Gathered && b.Burst == WholeRequest && wait > submit/2 // the device is the limit, not the CPU
	refuses := how == NotGathered
	if b.pause > 0 {
		b.pause--
		suits = false
	}
	on := b.Burst > 0
	switch {
	case (suits && !loses && !refuses) == on:
		b.against = 0
		if on && how == Gathered {
			b.measure(launches, submit, wait)
		}
		return
	case b.against+1 < batchChange:
		b.against++
		return
	}
	b.Burst, b.against, b.whole = 0, 0, 0
	switch {
	case !on:
		b.Burst, b.Refused = WholeRequest, false
	case loses || refuses:
		b.Refused = refuses
		b.next = min(max(batchPause, 2*b.next), batchLongest)
		b.pause = b.next
	}
}

// measure finds the tail by requests that gather as a whole, and then sets the burst.
func (b *Batching) measure(launches uint64, submit, wait time.Duration) {
	if b.Burst != WholeRequest {
		if b.left--; b.left == 0 {
			b.Burst, b.whole = WholeRequest, 0
		}
		return
	}
	b.whole++
	if b.Tail == 0 || b.whole == 1 {
		b.Tail = wait
	}
	b.Tail += (wait - b.Tail) / time.Duration(b.whole)
	if b.whole == batchChange {
		first := float64(launches) * (1 - batchLead*float64(b.Tail)/float64(submit))
		b.Burst, b.left = uint32(min(max(first, 1), WholeRequest-1)), batchPause
	}
}
