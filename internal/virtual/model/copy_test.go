// SPDX-License-Identifier: Apache-2.0

package gpumodel

import (
	"math"
	"slices"
	"testing"
	"time"

	"xsched/internal/model"
)

// A copy needs only its copy group: a suspension of the compute group alone does not stop it. It
// slows kernels by the stated factor.
func TestCopiesBesideKernels(t *testing.T) {
	costs := DefaultCosts()
	costs.CopySlowdown = 0.25
	b := &bench{gpu: NewGPU(0, costs, nil, nil)}
	high, low := b.tenant(3*time.Millisecond, 0, 1), b.tenant(time.Millisecond, 0, 1)
	lanes := b.gpu.AddGroup(&Account{}, true)
	b.gpu.AddChannel(lanes, low)
	b.gpu.Schedule(lanes)
	low.channels[0].SetLanes([]*Group{lanes})
	b.gpu.Disable(low.channels, true, false, nil)
	b.gpu.Advance(model.Time(2 * time.Millisecond))
	const second = 25e9 // bytes
	for range 4 {
		b.gpu.Submit(low.channels[0], Work{Kind: WorkCopy, Bytes: second / 1000})
	}
	b.gpu.Submit(low.channels[0], Work{Kind: WorkKernel, Duration: time.Millisecond})
	high.submit()
	b.gpu.Advance(model.Time(20 * time.Millisecond))
	var copies, kernels []model.Time
	for _, e := range b.ended {
		if e.tenant == low {
			copies = append(copies, e.at)
		} else {
			kernels = append(kernels, e.at)
		}
	}
	if len(copies) != 4 || copies[3] != model.Time(6*time.Millisecond) {
		t.Errorf("copies of a suspended program ended at %v", copies)
	}
	if len(kernels) != 1 || kernels[0].Sub(model.Time(6*time.Millisecond)).Abs() > 10*time.Microsecond {
		t.Errorf("3 ms beside a copy that takes a quarter of the speed ended at %v", kernels)
	}
	b.gpu.Disable(lanes.Channels(), true, false, nil)
	b.gpu.Advance(model.Time(25 * time.Millisecond))
	b.gpu.Disable(low.channels, false, false, nil)
	b.gpu.Submit(low.channels[0], Work{Kind: WorkCopy, Bytes: second / 1000})
	before := len(b.ended)
	b.gpu.Advance(model.Time(40 * time.Millisecond))
	if n := len(b.ended) - before; n != 1 { // the kernel, not the copy
		t.Errorf("%d works ended with the copy group suspended", n)
	}
}

// Copies to the device and from it run at the same time, each at full speed; two of one direction share it.
func TestCopiesInBothDirections(t *testing.T) {
	costs := DefaultCosts()
	costs.CopyBytesPerSecond, costs.InsideBytesPerSecond = 50e9, 500e9
	b := &bench{gpu: NewGPU(0, costs, nil, nil)}
	var lanes []*Group
	p := b.tenant(time.Millisecond, 0, 4)
	for range 3 {
		lane := b.gpu.AddGroup(&Account{}, true)
		b.gpu.AddChannel(lane, p)
		b.gpu.Schedule(lane)
		lanes = append(lanes, lane)
	}
	for i, lane := range []int{0, 1, 1, 2} { // 10 ms alone, two times 10 ms, 1 ms
		p.channels[i].SetLanes(lanes)
		b.gpu.Submit(p.channels[i], Work{Kind: WorkCopy, Bytes: 500e6, Lane: lane})
	}
	b.gpu.Advance(model.Time(time.Second))
	var ends []time.Duration
	for _, e := range b.ended {
		ends = append(ends, time.Duration(e.at).Round(time.Millisecond)/time.Millisecond)
	}
	if want := []time.Duration{1, 10, 19, 20}; !slices.Equal(ends, want) {
		t.Errorf("copies ended after %v ms, want %v", ends, want)
	}
}

func TestAt(t *testing.T) {
	if d := At(110e9, 55e9); d != 2*time.Second {
		t.Error(d)
	}
	if d := At(math.MaxInt64, 1); d != math.MaxInt64 {
		t.Error(d)
	}
}
