// SPDX-License-Identifier: Apache-2.0

package model

import (
	"testing"
	"time"
)

// TestWhy: every way to share has its reason.
func TestWhy(t *testing.T) {
	const ms = time.Millisecond
	after := func(n int, launches uint64, submit, wait time.Duration, how Gathering) Batching {
		var b Batching
		for range n {
			asked := how
			if b.Burst == 0 {
				asked = NotAsked
			}
			b.End(launches, submit, wait, asked)
		}
		return b
	}
	for _, c := range []struct {
		state SegmentState
		how   Sharing
		want  string
	}{
		{SegmentState{}, SharingNone, ""},
		{SegmentState{Batch: after(4, 70, 2*ms, ms/2, Gathered)}, SharingBatches, "70 kernels in 2ms, then a wait of 500µs: all gather first"},
		{SegmentState{Batch: after(8, 70, 2*ms, ms/2, Gathered)}, SharingBatches, "70 kernels in 2ms, then a wait of 500µs: 59 gather first"},
		{SegmentState{Batch: after(8, 70, 2*ms, ms/2, NotGathered)}, SharingInTime, "the CPU limits it; no batches: its kernels did not gather when asked to"},
		{SegmentState{Batch: after(8, 70, 2*ms, 3*ms/2, Gathered)}, SharingInTime, "the CPU limits it; no batches: its kernels gathered, and then waited too long"},
		{SegmentState{Batch: after(8, 4, 2*ms, 0, Gathered)}, SharingInTime, "the CPU limits it; no batches: no request of 8 kernels and 300µs"},
		{SegmentState{Batch: after(8, 700, 18*ms, 0, Gathered)}, SharingInTime, "the CPU limits it; no batches: a request submits for 18ms, more than 12ms"},
		{SegmentState{Class: ClassGPUBound}, SharingTiny, "it waits for the GPU, not for its CPU"},
		{SegmentState{Class: ClassLaunchBound}, SharingTiny, "the GPU limits another program of its priority"},
		{SegmentState{}, SharingTiny, "not known yet whether the CPU or the GPU limits it"},
	} {
		if got := c.state.Why(c.how); got != c.want {
			t.Errorf("%v: %q, want %q", c.how, got, c.want)
		}
	}
}
