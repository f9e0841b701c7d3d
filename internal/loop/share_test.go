// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"math"
	"testing"
	"time"

	"xsched/internal/model"
)

// The share covers the last second: it follows a change within that time, and falls to 0 afterwards.
func TestRecentUse(t *testing.T) {
	var r recentUse
	var total time.Duration
	now := model.Time(time.Hour)
	run := func(seconds, share float64) (changed bool) {
		for range int(seconds * 50) { // heartbeats
			now = now.Add(20 * time.Millisecond)
			total += time.Duration(share * 20e6)
			if r.due(now) {
				changed = r.sample(now, total) || changed
			}
		}
		return changed
	}
	want := func(share float64) {
		t.Helper()
		if math.Abs(r.share-share) > 0.1 {
			t.Errorf("share %.3f, want %.1f", r.share, share)
		}
	}
	run(0.6, 0.5) // before a second has passed
	want(0.5)
	run(2, 1)
	want(1)
	if run(0.5, 0); r.share < 0.4 || r.share > 0.8 {
		t.Errorf("share %.3f after half an idle second", r.share)
	}
	run(2, 0)
	if r.share != 0 {
		t.Errorf("share %v after two idle seconds", r.share)
	}
	if run(2, 0) {
		t.Error("the share of an idle program changes")
	}
	total += time.Hour // more than the time that passed
	if run(0.5, 0); r.share != 1 {
		t.Errorf("share %v", r.share)
	}
}

// Queues that use a GPU at the same time count once for their program.
func TestSharesOfAClient(t *testing.T) {
	g := gpuTimes{}
	c := &Client{uses: gpuTimes{}}
	gpu, other := model.MakeDeviceID(0, 1, 0, 0), model.MakeDeviceID(0, 2, 0, 0)
	a, b, d := &queue{owner: c, device: gpu}, &queue{owner: c, device: gpu}, &queue{owner: c, device: other}
	at := func(ms int) model.Time { return model.Time(time.Hour).Add(time.Duration(ms) * time.Millisecond) }
	for _, q := range []*queue{a, b, d} {
		g.enter(at(0), q)
	}
	c.updateShares(at(0))
	set := func(ms int, q *queue, busy bool) {
		q.busy = busy
		g.note(at(ms), q)
	}
	set(0, a, true)
	set(250, b, true)
	set(500, a, false)
	set(500, d, true)
	set(750, b, false)
	c.touched = false
	if c.updateShares(at(1000)); !c.touched || len(c.shares) != 2 || c.shares[0] != (GPUShare{gpu, 0.75}) || c.shares[1] != (GPUShare{other, 0.5}) {
		t.Errorf("shares %+v", c.shares)
	}
	set(1000, d, false)
	for ms := 1000; ms <= 3000; ms += 250 {
		c.touched = false
		c.updateShares(at(ms))
	}
	if c.touched || len(c.shares) != 0 {
		t.Errorf("shares %+v of an idle program, changed %v", c.shares, c.touched)
	}
	for _, q := range []*queue{a, b, d} {
		g.leave(at(3000), q)
	}
	for i := range uint32(10 * maxGPUs) {
		q := &queue{owner: c, device: model.DeviceID(1000 + i), busy: true}
		g.enter(at(4000), q)
		g.leave(at(5000), q)
	}
	if len(c.uses) > maxGPUs+1 {
		t.Errorf("%d devices are kept", len(c.uses))
	}
}
