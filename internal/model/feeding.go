// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Requests of these lengths are worth being told apart by how they are submitted: a shorter one is over before
// anything is done about it, for a longer one it matters little.
const (
	FedMin = time.Millisecond
	FedMax = 8 * time.Millisecond
)

// fedEnough is how many requests in a row must look alike: each change of mind costs calls of the driver.
const fedEnough = 3

// Feeding is what is known of how a program submits its work. A busy time is fed if the program was
// submitting nearly to its end, kernel by kernel, so that the device had little left to do when all was submitted.
type Feeding struct {
	// Length is nearly the longest of the last fed busy times, because a short one often comes between two long ones.
	Length time.Duration
	// InRow is how many of them there were since the last one that was not fed, up to enough.
	InRow int8
}

// Learn adds a busy time of a length in which the program was submitting for the time fed; 0: that is not known.
func (f *Feeding) Learn(fed, length time.Duration) {
	switch {
	case fed <= 0:
	case length < FedMin:
		f.Length -= f.Length / 4
	case fed < length-length/4 || length >= FedMax:
		*f = Feeding{}
	default:
		f.Length = max(f.Length-f.Length/4, length)
		f.InRow = min(f.InRow+1, fedEnough)
	}
}

// Expected says that the next busy time is expected to be fed, and of a length worth being told apart.
func (f Feeding) Expected() bool { return f.InRow >= fedEnough && f.Length >= FedMin }
