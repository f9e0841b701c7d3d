// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"testing"
	"time"

	"xsched/internal/engine"
	"xsched/internal/model"
)

// guessed is a program whose work is estimated, next to a lower-priority queue that is always busy and a higher one.
type guessed struct {
	kernel time.Duration // length of its kernels, during which it sleeps; 0: no work
	from   time.Duration // start of its work
	high   time.Duration // busy time of the high queue per period
	pair   bool          // the low queue has no work
	slices bool          // the hardware has timeslices; a tiny one makes no progress
	phase  time.Duration // of the observations
	period time.Duration // 0: 25 ms
}

// after is the result: the GPU time of the program and the low queue, the program's longest gap, and
// the time until its first turn.
type after struct {
	had, low, gap, first time.Duration
	grants               uint64
}

func (g guessed) run(t *testing.T, from, to time.Duration) (a after) {
	t.Helper()
	e, err := engine.New(engine.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	times := NewGuessTimes(e.Config().Quantum, e.Config().StarvationBound)
	id := func(i int) model.QueueID { return model.QueueID{Session: model.SessionID(i)} }
	for i, rank := range []model.Priority{10, -5, -5} {
		e.AddQueue(1, model.Queue{
			ID: id(i), PID: 10 + i, Device: 1, Hint: model.Hint{Priority: rank},
			Level: model.LevelInterrupt, Busy: i == 2 || i == 1 && !g.pair, Guessed: i == 2, Slices: g.slices,
		})
	}
	const high, low, mine = 0, 1, 2
	step, period := time.Millisecond, 25*time.Millisecond
	if g.period > 0 {
		step, period = g.period/25, g.period
	}
	q := Guess{since: 1}
	report := func(now model.Time) { e.SetBusy(now, id(mine), q.Busy()) }
	took, idle, worked := time.Duration(0), time.Duration(0), false
	first := false
	for at := step; at < to; at += step {
		now := model.Time(at)
		report(now)
		highWorks := at%period < g.high
		e.SetBusy(now, id(high), highWorks)
		changes, _ := e.Decide(now)
		for _, d := range changes {
			if d.Queue == id(mine) && (d.Suspend != 0) != q.stopped {
				if q.stopped {
					q.Resume(now)
				} else {
					q.Stop(now, e.WaitsSince(d.Queue, q.since), times)
				}
			}
		}
		runs := !e.Kept(id(mine))
		if g.kernel > 0 && at >= g.from {
			worked = worked || at < g.from+step // it submits
			if runs {
				if took += step; took >= g.kernel {
					took, worked = 0, true
				}
			}
		}
		if (at+g.phase)%(50*time.Millisecond) == 0 {
			q.Observe(now, worked, Standing{e.Kept(id(mine)), e.WaitsSince(id(mine), q.since)}, times)
			worked = false
			report(now)
		}
		if idle += step; runs {
			idle = 0
		}
		if at < from {
			a.grants = e.Stats().Grants
		} else {
			a.gap = max(a.gap, idle)
			switch {
			case runs:
				a.had += step
				first = true
			case !g.pair && !e.Kept(id(low)):
				a.low += step
			}
			if !first {
				a.first += step
			}
		}
	}
	a.grants = e.Stats().Grants - a.grants
	return a
}

// A new queue counts as busy for one probing turn, and until it becomes idle again if it works meanwhile.
func TestGuessAfterAttach(t *testing.T) {
	times := NewGuessTimes(engine.DefaultConfig().Quantum, engine.DefaultConfig().StarvationBound)
	for _, c := range []struct {
		busy   bool
		works  model.Time // observed at this time
		idleAt model.Time // at the latest
	}{
		{true, 0, model.Time(100 * time.Millisecond)},
		{true, model.Time(50 * time.Millisecond), model.Time(1100 * time.Millisecond)},
		{false, 0, 0},
	} {
		g, ended := NewGuess(0, c.busy), model.Time(0)
		if g.Busy() != c.busy {
			t.Errorf("%+v: busy %t at first", c, g.Busy())
		}
		for now := model.Time(50 * time.Millisecond); now <= model.Time(2*time.Second); now = now.Add(50 * time.Millisecond) {
			g.Observe(now, now == c.works, Standing{}, times)
			if g.Busy() {
				ended = now
			}
		}
		if ended > c.idleAt || c.works > 0 && ended < model.Time(time.Second) {
			t.Errorf("%+v: busy until %v", c, time.Duration(ended))
		}
	}
}

// A high queue whose gaps are too short for the low queue to make progress starves it.
func TestGuessInUselessGaps(t *testing.T) {
	const us = time.Microsecond
	g := guessed{pair: true, high: 1700 * us, period: 2500 * us}
	if a := g.run(t, 6*time.Second, 26*time.Second); a.grants < 4 {
		t.Errorf("%d grants in 20 s", a.grants)
	}
}

func TestGuess(t *testing.T) {
	const second, ms = time.Second, time.Millisecond
	for _, test := range []struct {
		name        string
		g           guessed
		from        time.Duration
		least, most int // percent of what it and the low had
		gap, first  time.Duration
	}{
		{"idle", guessed{}, 6 * second, 1, 4, 2150 * ms, 2150 * ms},
		{"idle below a high", guessed{high: 8 * ms}, 6 * second, 3, 4, 2500 * ms, 2500 * ms},
		{"idle below a high that never rests", guessed{high: 25 * ms}, 60 * second, 30, 70, 4300 * ms, 4300 * ms},
		{"idle below a high that never rests, with slices", guessed{high: 25 * ms, slices: true}, 60 * second, 20, 70, 4300 * ms, 4300 * ms},
		{"alone below a high that never rests", guessed{high: 25 * ms, pair: true, kernel: 3600 * second}, 6 * second, 100, 100, 4300 * ms, 4300 * ms},
		{"the same with slices", guessed{high: 25 * ms, pair: true, slices: true, kernel: 3600 * second}, 6 * second, 100, 100, 4300 * ms, 4300 * ms},
		{"short kernels, the same", guessed{high: 25 * ms, pair: true, slices: true, kernel: 30 * ms}, 6 * second, 100, 100, 2150 * ms, 2150 * ms},
		{"short kernels, with slices", guessed{kernel: 30 * ms, slices: true, high: 8 * ms}, 6 * second, 45, 55, 120 * ms, 120 * ms},
		{"idle with slices", guessed{slices: true, high: 8 * ms}, 6 * second, 1, 4, 2500 * ms, 2500 * ms},
		{"short kernels", guessed{kernel: 30 * ms}, 6 * second, 45, 55, 60 * ms, 60 * ms},
		{"long kernels", guessed{kernel: 700 * ms}, 6 * second, 45, 55, 60 * ms, 60 * ms},
		{"one very long kernel", guessed{kernel: 3600 * second}, 6 * second, 1, 4, 2150 * ms, 2150 * ms},
		{"idle till now", guessed{kernel: 30 * ms, from: 9123 * ms}, 9123 * ms, 45, 55, 3 * second, 150 * ms},
		{"long kernels from now on", guessed{kernel: 700 * ms, from: 9123 * ms}, 9123 * ms, 45, 55, 3 * second, 150 * ms},
	} {
		t.Run(test.name, func(t *testing.T) {
			for phase := time.Duration(0); phase < 50*ms; phase += 7 * ms {
				g := test.g
				g.phase = phase
				a := g.run(t, test.from, test.from+20*second)
				share := int(100 * a.had / max(1, a.had+a.low))
				if share < test.least || share > test.most || a.gap > test.gap || a.first > test.first {
					t.Errorf("observed at %v: %d %% of the GPU, want %d to %d; %+v", phase, share, test.least, test.most, a)
				}
			}
		})
	}
}
