// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Requests between these lengths are scheduled by how their program submits them.
// A shorter one ends before a reaction takes effect; for a longer one it matters
// little.
const (
	FedMin = time.Millisecond
	FedMax = 8 * time.Millisecond
)

// fedEnough is how many similar requests in a row count as a pattern. Each change
// of the estimate costs driver calls.
const fedEnough = 3

// Feeding estimates how a program submits work. A busy period is fed if the
// program submitted kernel by kernel nearly until its end, so that the device had
// little left to do once all was submitted.
type Feeding struct {
	// Length is close to the longest of the last fed busy periods, because a short
	// one often comes between two long ones.
	Length time.Duration
	// InRow counts fed busy periods since the last one that was not, up to fedEnough.
	InRow int8
}

// Learn adds a busy period of which the program submitted for the time fed; 0:
// unknown.
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

// Expected reports that the next busy period is expected to be fed, and long enough
// to matter.
func (f Feeding) Expected() bool { return f.InRow >= fedEnough && f.Length >= FedMin }
