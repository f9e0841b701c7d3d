// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"testing"
	"time"

	"xsched/internal/model"
)

// The busy time of a GPU is the union of its queues' times, without suspended time.
func TestGPUTimes(t *testing.T) {
	g := NewUsage()
	gpu := model.MakeDeviceID(0, 1, 0, 0)
	a, b := &QueueUse{}, &QueueUse{}
	g.Enter(100, a, gpu, nil)
	g.Enter(100, b, gpu, nil)
	g.Set(100, b, true)
	g.Set(150, a, true)  // both
	g.Set(200, b, false) // a only
	g.Set(260, a, false) // none
	g.Set(300, b, true)  // b again
	if g.Set(310, b, true) {
		t.Error("no change counts as one")
	}
	for q, want := range map[*QueueUse]time.Duration{a: 110, b: 100 + 20} {
		if got := q.UpTo(320); got != want {
			t.Errorf("a queue ran for %d, want %d", got, want)
		}
	}
	if got := g.GPUs(320)[gpu].Busy; got != 160+20 {
		t.Errorf("the GPU ran for %d, want 180", got)
	}
	g.Leave(330, b, true, 16)
	g.Leave(330, a, true, 16)
	if got := g.GPUs(1000)[gpu].Busy; got != 190 || g.gpus[gpu].active != 0 || g.gpus[gpu].queues != 0 {
		t.Errorf("after the end: %d %+v", got, g.gpus[gpu])
	}
	// Devices that clients invent do not pile up.
	for i := range uint32(10 * maxIdle) {
		q := &QueueUse{}
		g.Enter(400, q, model.DeviceID(1000+i), nil)
		g.Set(400, q, true)
		g.Leave(500, q, true, 16)
	}
	if len(g.gpus) > maxIdle+1 {
		t.Errorf("%d devices are kept", len(g.gpus))
	}
	q := &QueueUse{}
	g.Enter(400, q, 77, nil)
	if g.Leave(500, q, false, 16); g.gpus[77] != nil {
		t.Error("a device that nothing lists is kept")
	}
}

// A client that keeps the total of a queue gains no more than the time that passed, and loses nothing by
// a late page.
func TestWorked(t *testing.T) {
	g, q, p := NewUsage(), &QueueUse{}, NewProgramUse()
	g.Enter(100, q, 1, &p)
	g.Pause(100, q, 5000)
	for _, step := range []struct {
		now         model.Time
		total, want time.Duration
	}{{200, 5060, 60}, {300, 9000, 160}, {400, 5160, 160}, {400, 9000, 160}, {500, 9000, 260}} {
		if g.Worked(step.now, q, step.total); q.UpTo(step.now) != step.want || g.GPUs(step.now)[1].Busy != step.want {
			t.Errorf("at %d with total %d: %d, want %d", step.now, step.total, q.UpTo(step.now), step.want)
		}
	}
	g.Resume(q, 5300) // 40 more
	g.Pause(500, q, 5300)
	if g.Worked(600, q, 5300); q.UpTo(600) != 300 {
		t.Errorf("%d after a pause, want 300", q.UpTo(600))
	}
}

// Programs that use a GPU at once have equal parts of its time. A program waits while one of its queues has
// work and none runs. Both outlive its queues.
func TestTotals(t *testing.T) {
	g, p, other := NewUsage(), NewProgramUse(), NewProgramUse()
	a, b, c := &QueueUse{}, &QueueUse{}, &QueueUse{}
	g.Enter(100, a, 1, &p)
	g.Enter(100, b, 1, &p)
	g.Enter(100, c, 1, &other)
	g.Set(100, a, true)
	g.Set(100, c, true) // each has half of the GPU
	g.Set(200, a, false)
	g.Wait(200, a, true) // p waits
	g.Wait(250, b, true) // with both queues
	check := func(now model.Time, use *ProgramUse, ran, waited time.Duration) {
		t.Helper()
		if got := use.Totals(now, g); len(got) != 1 || got[0] != (GPUTotal{1, ran, waited}) {
			t.Errorf("at %d: %+v, want %d and %d", now, got, ran, waited)
		}
	}
	check(260, &p, 50, 60)
	check(260, &other, 110, 0)
	g.Set(300, b, true) // one of its queues runs
	g.Wait(300, b, false)
	g.Set(340, b, false)
	check(350, &p, 70, 110)
	g.Wait(360, a, false) // its work went
	g.Wait(380, b, true)
	g.Leave(400, b, true, 16)
	g.Leave(400, a, true, 16)
	g.Leave(400, c, true, 16)
	check(500, &p, 70, 140)
	check(500, &other, 50+100+20+60, 0)
}
