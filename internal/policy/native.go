// SPDX-License-Identifier: Apache-2.0

package policy

import "time"

// launchBound reports that a program submits nearly until its request ends, so that
// the device mostly waits for it.
func launchBound(submitted, length time.Duration) bool { return submitted > length-length/4 }

// deviceTime is the part of a request in which its program waits for the device,
// and at least that long the device works. Of a request that is launch-bound the
// rest is the program's own time; the device may have been idle in it.
func deviceTime(length, submitted time.Duration) time.Duration {
	if launchBound(submitted, length) {
		return length - submitted
	}
	return length
}

// nativeLength models how long a request would take if the driver shared the
// device. length is its length under protection, submitted how long its program
// submitted, and lows the number of processes with kernels beside it. phase is
// where in the driver's round it begins, from 0 to 1.
//
// The driver runs every process for one slice in turn. The request first waits for
// the rest of the round. After each slice that it needs, it waits for another one.
// A launch-bound program waits only when it has submitted everything, for what the
// device has not done by then. Copies wait for nobody and delay nobody here.
func nativeLength(length, submitted time.Duration, lows int, phase float64, slice time.Duration) time.Duration {
	if lows == 0 || slice <= 0 {
		return length
	}
	round := time.Duration(lows) * (slice + switchCost)
	again := max(0, deviceTime(length, submitted)-1) / slice
	return length + time.Duration(phase*float64(round)) + again*(round+switchCost)
}
