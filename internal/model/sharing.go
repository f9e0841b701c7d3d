// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"time"
)

// Sharing is how lower queues share a device with one that runs before them.
type Sharing int8

const (
	// SharingNone: there is no lower queue, or the policy has no such notion.
	SharingNone Sharing = iota
	// SharingStop: they run only while the higher ones are idle.
	SharingStop
	// SharingTiny: one of them has a tiny slice, which the hardware leaves for a higher queue by itself.
	SharingTiny
	// SharingBatches: as SharingTiny. The kernels of the higher queues gather on the device first.
	SharingBatches
	// SharingInTime: one of them has the driver's slice while the higher ones, which are launch-bound, submit, and
	// gives way before their programs wait.
	SharingInTime
	// SharingUseful: they progress next to the higher ones.
	SharingUseful
)

var sharingNames = [...]string{"", "suspended", "tiny slices", "batches", "just in time", "native"}

func (s Sharing) String() string { return sharingNames[s] }

// Why tells why lower queues share the device with a program's queue in that way.
func (s *SegmentState) Why(how Sharing) string {
	switch how {
	case SharingNone:
	case SharingStop:
		return "timeslices do not help: the GPU has none, a program there is not managed, or the policy has none"
	case SharingBatches:
		return s.Batch.asked()
	case SharingUseful:
		return "protection gains too little"
	case SharingInTime:
		return "the CPU limits it; no batches: " + s.Batch.why()
	case SharingTiny:
		switch s.Class {
		case ClassGPUBound:
			return "it waits for the GPU, not for its CPU"
		case ClassLaunchBound:
			return "the GPU limits another program of its priority"
		}
		return "not known yet whether the CPU or the GPU limits it"
	}
	return ""
}

func (b *Batching) asked() string {
	first := "all"
	if b.Burst != WholeRequest {
		first = fmt.Sprint(b.Burst)
	}
	return fmt.Sprintf("%d kernels in %v, then a wait of %v: %s gather first", b.Launches, b.Submit.Round(10*time.Microsecond), b.Wait.Round(10*time.Microsecond), first)
}

// why tells why the kernels do not gather.
func (b *Batching) why() string {
	switch {
	case b.Refused:
		return "its kernels did not gather when asked to"
	case b.pause > 0:
		return "its kernels gathered, and then waited too long"
	case b.Launches == 0:
		return fmt.Sprintf("no request of %d kernels and %v", batchLaunches, batchMin)
	case b.Submit > batchMax:
		return fmt.Sprintf("a request submits for %v, more than %v", b.Submit.Round(100*time.Microsecond), batchMax)
	case b.Wait > b.Submit:
		return "it waits longer than it submits"
	}
	return "learning"
}
