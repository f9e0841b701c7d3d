// SPDX-License-Identifier: Apache-2.0

package gpumodel

import (
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
