// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"testing"
	"time"

	"xsched/internal/model"
)

// The busy time of a GPU is the union of its queues' times, without suspended time.
func TestGPUTimes(t *testing.T) {
	g := gpuTimes{}
	gpu := model.MakeDeviceID(0, 1, 0, 0)
	a, b := &queue{device: gpu}, &queue{device: gpu, busy: true}
	g.enter(100, a)
	g.enter(100, b)
	set := func(now model.Time, q *queue, busy bool, suspend model.Level) {
		q.busy, q.want.Suspend = busy, suspend
		g.note(now, q)
	}
	set(150, a, true, 0)                    // both
	set(200, b, true, model.LevelInterrupt) // a only
	set(260, a, false, 0)                   // none: b is suspended
	set(300, b, true, 0)                    // b again
	set(310, b, true, 0)                    // no change
	for q, want := range map[*queue]time.Duration{a: 110, b: 100 + 20} {
		if got := q.use.upTo(320); got != want {
			t.Errorf("a queue ran for %d, want %d", got, want)
		}
	}
	if got := g[gpu].use.upTo(320); got != 160+20 {
		t.Errorf("the GPU ran for %d, want 180", got)
	}
	g.leave(330, b)
	g.leave(330, a)
	if got := g[gpu].use.upTo(1000); got != 190 || g[gpu].active != 0 || g[gpu].queues != 0 {
		t.Errorf("after the end: %d %+v", got, g[gpu])
	}
	// Devices that clients invent do not pile up.
	for i := range uint32(10 * maxIdleGPUs) {
		q := &queue{device: model.DeviceID(1000 + i), busy: true}
		g.enter(400, q)
		g.leave(500, q)
	}
	if len(g) > maxIdleGPUs+1 {
		t.Errorf("%d devices are kept", len(g))
	}
}
