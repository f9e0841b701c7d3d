// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"xsched/internal/model"
)

// The share covers the last second: it follows a change within that time, and falls to 0 afterwards.
func TestRecentUse(t *testing.T) {
	now := model.Time(time.Hour)
	r, step := recentFrom(now), now
	var total time.Duration
	run := func(seconds, share float64) (changed bool) {
		for range int(seconds * 50) { // heartbeats
			now = now.Add(20 * time.Millisecond)
			total += time.Duration(share * 20e6)
			if now >= step.Add(shareStep) {
				step = now
			}
			if r.due(step) {
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
	run(0.6, 0.5) // before that it did not exist
	want(0.3)
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

// queue is a queue with work or without.
type queue struct {
	QueueUse
	active bool
}

// shared is a GPU with some clients, and what the clients have by a count of each microsecond.
type shared struct {
	g       *Usage
	gpu     model.DeviceID
	now     model.Time
	clients []*ProgramUse
	queues  [][]*queue
	exact   []float64 // microseconds
	used    int       // microseconds
}

func newShared(clients, queues int) *shared {
	s := &shared{g: NewUsage(), gpu: model.MakeDeviceID(0, 1, 0, 0), now: model.Time(time.Hour), exact: make([]float64, clients)}
	for range clients {
		c := NewProgramUse()
		s.clients = append(s.clients, &c)
		s.queues = append(s.queues, nil)
		for range queues {
			q := &queue{}
			s.queues[len(s.queues)-1] = append(s.queues[len(s.queues)-1], q)
			s.g.Enter(s.now, &q.QueueUse, s.gpu, &c)
		}
	}
	return s
}

func (s *shared) pass(us int) {
	s.now = s.now.Add(time.Duration(us) * time.Microsecond)
	var running []int
	for i, queues := range s.queues {
		if slices.ContainsFunc(queues, func(q *queue) bool { return q.active }) {
			running = append(running, i)
		}
	}
	for _, i := range running {
		s.exact[i] += float64(us) / float64(len(running))
	}
	if len(running) > 0 {
		s.used += us
	}
}

func (s *shared) change(client, n int, busy, suspended bool) {
	q := s.queues[client][n]
	q.active = busy && !suspended
	s.g.Set(s.now, &q.QueueUse, q.active)
}

// The shares of a GPU add up to the time in which it was used, for any history of its queues: clients that
// run at once have equal parts, and one that waits has none.
func TestSharesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newShared(rapid.IntRange(1, 6).Draw(t, "clients"), 2)
		for range rapid.IntRange(1, 60).Draw(t, "changes") {
			s.change(rapid.IntRange(0, len(s.clients)-1).Draw(t, "client"), rapid.IntRange(0, 1).Draw(t, "queue"),
				rapid.Bool().Draw(t, "busy"), rapid.Bool().Draw(t, "suspended"))
			s.pass(rapid.IntRange(0, 16_000).Draw(t, "us"))
		}
		s.pass(1) // a sample of the past
		var sum float64
		for i, c := range s.clients {
			s.g.step = s.now
			c.Update(s.now, s.g)
			share := 0.0
			for _, of := range c.Shares {
				share += of.Share
			}
			if math.Abs(share-s.exact[i]/1e6) > 1e-6 {
				t.Errorf("client %d has %.6f of a second, want %.6f", i, share, s.exact[i]/1e6)
			}
			sum += share
		}
		if used := float64(s.used) / 1e6; sum > 1 || math.Abs(sum-used) > 1e-6 {
			t.Errorf("the shares add up to %.6f, the GPU was used for %.6f", sum, used)
		}
	})
}

// Many clients at once lose nothing by short steps, and a change does not allocate.
func TestSharesOfManyClients(t *testing.T) {
	s := newShared(1000, 1)
	for i := range s.clients {
		s.change(i, 0, true, false)
	}
	for i := range 100_000 {
		s.change(i%1000, 0, i/1000%2 == 1, false)
		s.now = s.now.Add(time.Microsecond)
	}
	var sum float64
	for _, c := range s.clients {
		s.g.step = s.now
		c.Update(s.now, s.g)
		sum += c.Shares[0].Share
	}
	if math.Abs(sum-0.1) > 1e-4 {
		t.Errorf("1000 clients used %.5f of a second, want 0.1", sum)
	}
	busy := false
	if n := testing.AllocsPerRun(100, func() {
		busy = !busy
		s.change(0, 0, busy, false)
	}); n > 0 {
		t.Errorf("a change allocates %v times", n)
	}
}

// Queues that use a GPU at the same time count once for their program.
func TestSharesOfAClient(t *testing.T) {
	const maxGPUs = 16
	g, c := NewUsage(), NewProgramUse()
	gpu, other := model.MakeDeviceID(0, 1, 0, 0), model.MakeDeviceID(0, 2, 0, 0)
	a, b, d := &QueueUse{}, &QueueUse{}, &QueueUse{}
	at := func(ms int) model.Time { return model.Time(time.Hour).Add(time.Duration(ms) * time.Millisecond) }
	update := func(ms int) bool {
		g.step = at(ms)
		return c.Update(at(ms), g)
	}
	g.Enter(at(0), a, gpu, &c)
	g.Enter(at(0), b, gpu, &c)
	g.Enter(at(0), d, other, &c)
	update(0)
	g.Set(at(0), a, true)
	g.Set(at(250), b, true)
	g.Set(at(500), a, false)
	g.Set(at(500), d, true)
	g.Set(at(750), b, false)
	if !update(1000) || len(c.Shares) != 2 || c.Shares[0] != (GPUShare{gpu, 0.75}) || c.Shares[1] != (GPUShare{other, 0.5}) {
		t.Errorf("shares %+v", c.Shares)
	}
	g.Set(at(1000), d, false)
	changed := false
	for ms := 1000; ms <= 3000; ms += 250 {
		changed = update(ms)
	}
	if changed || len(c.Shares) != 0 {
		t.Errorf("shares %+v of an idle program, changed %v", c.Shares, changed)
	}
	for _, q := range []*QueueUse{a, b, d} {
		g.Leave(at(3000), q, true, maxGPUs)
	}
	for i := range uint32(10 * maxGPUs) {
		q := &QueueUse{}
		g.Enter(at(4000), q, model.DeviceID(1000+i), &c)
		g.Set(at(4000), q, true)
		g.Leave(at(5000), q, true, maxGPUs)
	}
	if len(c.uses) > maxGPUs+1 {
		t.Errorf("%d devices are kept", len(c.uses))
	}
}
