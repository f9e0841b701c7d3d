// SPDX-License-Identifier: Apache-2.0

package predict

import (
	"math/rand/v2"
	"testing"
	"time"

	"xsched/internal/model"
)

const (
	ms = time.Millisecond
	us = time.Microsecond
)

// program submits requests beside a low-priority job, in a model of one device: while the job is not stopped
// when the program waits, the wait is as long as the job's slice.
type program struct {
	s        Program
	now      model.Time
	launches uint64
	tells    bool // waits are reported

	noise  func() time.Duration // of a wait; may be nil
	stall  time.Duration        // of the submitting thread, after so many launches
	after  int
	pauses bool          // the device is seen without work during a stall
	skew   time.Duration // from an end to its report, without that of a wait
	stop   time.Duration // until a stop is in force
	check  func(*Program, model.Time)

	requests, unprotected int
	longest               time.Duration // of the waits
	vain                  int           // stops that ended before they were in force
	stopped               time.Duration // before waits
	wakes                 int
}

// run submits one segment: n launches, each after a time.
func (p *program) run(n int, pace time.Duration) {
	const slice = 2 * ms
	tail := 50 * us
	if p.noise != nil {
		tail = 10*us + p.noise()
	}
	count := func() uint64 { return p.launches }
	began := p.now
	p.s.Begin(p.now, count())
	wait := p.now.Add(time.Duration(n)*pace + p.stall)
	launched := p.launches
	submitted := func() uint64 {
		elapsed := p.now.Sub(began)
		if stalled := time.Duration(p.after) * pace; elapsed > stalled {
			elapsed = max(stalled, elapsed-p.stall)
		}
		return uint64(elapsed / pace)
	}
	pause, goOn, from := model.Never, model.Never, began
	if stalled := began.Add(time.Duration(p.after) * pace); p.pauses && p.stall > 400*us {
		pause, goOn = stalled.Add(400*us), stalled.Add(p.stall)
	}
	inForce := model.Never // since when lows are stopped
	for {
		f := p.s.Feeding()
		on, next := f.Stops(p.now)
		switch {
		case on && inForce == model.Never:
			inForce = p.now.Add(p.stop)
		case !on && inForce != model.Never:
			p.stopped += p.now.Sub(inForce)
			if p.now < inForce {
				p.vain++
			}
			inForce = model.Never
		}
		if f.CheckAt > p.now {
			next = min(next, f.CheckAt)
		}
		next = min(next, pause, goOn)
		if next >= wait {
			break
		}
		p.now = next
		p.launches = launched + submitted()
		switch p.now {
		case pause:
			pause = model.Never
			p.s.Pause(p.now)
			continue
		case goOn:
			goOn, from = model.Never, p.now
			p.s.Begin(p.now, count())
			continue
		}
		p.wakes++
		p.s.Progress(p.now, count(), false)
		if p.check != nil {
			p.check(&p.s, p.now)
		}
	}
	p.now, p.launches = wait, launched+uint64(n)
	if p.tells {
		p.s.Progress(p.now, count(), true)
		if on, _ := p.s.Feeding().Stops(p.now); on {
			inForce = min(inForce, p.now.Add(p.stop))
		}
	}
	p.requests++
	end := p.now.Add(tail)
	switch {
	case p.s.class.Is != model.ClassLaunchBound: // tiny slices protect it
	case inForce > p.now:
		end = min(p.now.Add(slice), max(inForce, end))
	default:
		p.stopped += p.now.Sub(inForce)
	}
	p.longest = max(p.longest, end.Sub(p.now))
	if end > p.now.Add(tail+100*us) {
		p.unprotected++
	}
	p.s.Progress(end, count(), true)
	p.s.End(end.Add(p.skew), from, wait.Sub(from), end.Sub(wait), model.LowerYield)
	p.now = end.Add(10 * ms)
}

func stops(f model.Feeding, now model.Time) bool { on, _ := f.Stops(now); return on }

// TestStopsJustInTime: programs whose requests can be predicted are protected, at the price of a short stop.
func TestStopsJustInTime(t *testing.T) {
	for _, c := range []struct {
		name      string
		next      func(r *rand.Rand, i int) (launches int, pace time.Duration)
		late      float64 // at most
		stopped   time.Duration
		predicted bool
	}{
		{name: "26 ms", next: func(*rand.Rand, int) (int, time.Duration) { return 620, 42 * us }, late: 0.02, stopped: 1100 * us, predicted: true},
		{name: "9 ms", next: func(*rand.Rand, int) (int, time.Duration) { return 214, 42 * us }, late: 0.02, stopped: 1100 * us, predicted: true},
		{
			name: "a CPU whose speed varies by 30 %", late: 0.1, stopped: 1200 * us, predicted: true,
			next: func(r *rand.Rand, _ int) (int, time.Duration) {
				return 620, 42*us + time.Duration(r.IntN(13))*us - 6*us
			},
		},
		{
			name: "one of two lengths, at random", late: 1, stopped: 2000 * us, predicted: true,
			next: func(r *rand.Rand, _ int) (int, time.Duration) { return 200 + 300*r.IntN(2), 42 * us },
		},
		{
			name: "any length", late: 1, stopped: 2000 * us,
			next: func(r *rand.Rand, _ int) (int, time.Duration) { return 100 + r.IntN(1000), 42 * us },
		},
	} {
		r := rand.New(rand.NewPCG(1, 2))
		p := program{now: model.Time(time.Hour), stop: 500 * us}
		for i := range 300 {
			p.run(c.next(r, i))
		}
		p.requests, p.unprotected, p.stopped, p.wakes = 0, 0, 0, 0
		for i := range 600 {
			p.run(c.next(r, i+300))
		}
		late, mean := float64(p.unprotected)/float64(p.requests), p.stopped/time.Duration(p.requests)
		st := p.s.State()
		t.Logf("%s: %.1f %% not protected, lows stopped for %v before each wait, %.1f wake-ups each, %+v", c.name, 100*late, mean, float64(p.wakes)/float64(p.requests), st)
		if st.Class != model.ClassLaunchBound {
			t.Errorf("%s: %v", c.name, st.Class)
		}
		if late > c.late || mean > c.stopped || st.Predicted != c.predicted {
			t.Errorf("%s: %.3f of the waits are not protected, want %.3f; stopped for %v, want %v at most; predicted %v", c.name, late, c.late, mean, c.stopped, st.Predicted)
		}
		if p.wakes > 6*p.requests {
			t.Errorf("%s: %d wake-ups for %d requests", c.name, p.wakes, p.requests)
		}
	}
}

// TestLeadFollowsTheStop: the lead is as long as a stop takes, and no longer.
func TestLeadFollowsTheStop(t *testing.T) {
	p := program{now: model.Time(time.Hour)}
	for _, stop := range []time.Duration{500 * us, 1500 * us, 300 * us} {
		p.stop = stop
		for range 1500 {
			p.run(620, 42*us)
		}
		p.requests, p.unprotected = 0, 0
		for range 200 {
			p.run(620, 42*us)
		}
		st := p.s.State()
		if st.Lead < stop-leadStep || st.Lead > stop+400*us || p.unprotected > p.requests/10 {
			t.Errorf("a stop takes %v: %d of %d not protected, %+v", stop, p.unprotected, p.requests, st)
		}
	}
}

// TestNoiseIsNotLate: waits that vary a little do not lengthen the lead. If some of them are long by themselves,
// the lead is no longer than what a stop can need.
func TestNoiseIsNotLate(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	little := func() time.Duration { return time.Duration(r.IntN(int(70 * us))) }
	much := func() time.Duration {
		return time.Duration(r.IntN(4)/3) * (150*us + time.Duration(r.IntN(int(350*us))))
	}
	for i, c := range []struct {
		noise func() time.Duration
		most  time.Duration
	}{{little, 1800 * us}, {much, leadMax}} {
		p := program{now: model.Time(time.Hour), stop: 500 * us, noise: c.noise}
		for n := range 2000 {
			if p.run(620, 42*us); n >= 1000 && p.s.State().Lead > c.most {
				t.Fatalf("noise %d: lead %v", i, p.s.State().Lead)
			}
		}
	}
}

// TestStallsAreNoWaits: a program that is delayed while it submits stays launch-bound.
func TestStallsAreNoWaits(t *testing.T) {
	var s Program
	now, launches := model.Time(time.Hour), uint64(0)
	for range 50 {
		began := now
		s.Begin(now, launches)
		for step := range 14 { // 1 ms each; the fifth to the tenth without a launch
			now = now.Add(ms)
			if step < 5 || step >= 10 {
				launches += 22
			}
			s.Progress(now, launches, false)
		}
		s.Progress(now, launches, true)
		s.End(now, began, 14*ms, 20*us, model.LowerYield)
		now = now.Add(10 * ms)
	}
	if s.class.Is != model.ClassLaunchBound {
		t.Errorf("%+v", s.State())
	}
}

// TestPoorPredictionStopsAtTheWait: without a prediction lows are stopped when the program waits, and not before.
func TestPoorPredictionStopsAtTheWait(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	p := program{now: model.Time(time.Hour), tells: true, stop: 500 * us}
	for range 500 {
		p.run(100+r.IntN(1000), 42*us)
	}
	p.stopped = 0
	for range 100 {
		p.run(100+r.IntN(1000), 42*us)
		if p.s.State().Predicted {
			t.Fatal("predicted")
		}
	}
	if p.stopped != 0 {
		t.Errorf("stopped for %v before the waits", p.stopped)
	}
	for range 100 { // it is regular again
		p.run(620, 42*us)
	}
	if !p.s.State().Predicted {
		t.Errorf("a regular program is not predicted: %+v", p.s.State())
	}
}

// TestNonsense: whatever a program reports, a stop has an end, the next look is in the future, and values stay in
// bounds.
func TestNonsense(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var s Program
		now, from := model.Time(time.Hour), model.Time(time.Hour)
		span := func() time.Duration {
			return []time.Duration{0, 1, 10 * us, ms, 5 * ms, time.Second, time.Hour, -1, -1 << 63, 1<<63 - 1}[r.IntN(10)]
		}
		count := func() uint64 {
			return []uint64{0, 1, uint64(now / 40_000), uint64(now / 40_000), 1 << 31, 1 << 40, 1<<64 - 1, r.Uint64()}[r.IntN(8)]
		}
		for step := range 2000 {
			now = now.Add(time.Duration(r.IntN(int(3 * ms))))
			switch r.IntN(8) {
			case 0:
				from = now
				s.Begin(now, count())
			case 1, 2, 3:
				s.Progress(now, count(), r.IntN(6) == 0)
			case 4:
				s.Pause(now)
			case 5:
				s.End(now, from, span(), span(), model.Lower(r.IntN(3)))
			case 6: // a plausible one, so that the class changes
				s.Begin(now, uint64(now/40_000))
				from, now = now, now.Add(9*ms)
				s.Progress(now, uint64(now/40_000), false)
				s.End(now, from, 9*ms, 0, model.LowerYield)
			case 7:
				s.Drop(now)
			}
			f := s.Feeding()
			if f.Class != model.ClassLaunchBound && f.StopAt != 0 {
				t.Fatalf("seed %d step %d: stops for a program of class %v", seed, step, f.Class)
			}
			if stops(f, now) && !f.Waits && f.StopUntil > now.Add(leadMax+2*model.SegmentMin) {
				t.Fatalf("seed %d step %d: a stop of %v without a wait", seed, step, f.StopUntil.Sub(now))
			}
			if f.CheckAt != 0 && f.CheckAt <= now {
				s.Progress(now, count(), false)
				if again := s.Feeding().CheckAt; again != 0 && again <= now {
					t.Fatalf("seed %d step %d: looks again at %v, now %v", seed, step, again, now)
				}
			}
			st := s.State()
			if st.Lead < 0 || st.Lead > leadMax || st.Lead != 0 && st.Lead < 2*slack || !(st.Hits >= 0 && st.Hits <= 1) || st.Known < 0 {
				t.Fatalf("seed %d step %d: %+v", seed, step, st)
			}
		}
	}
}

// learntProgram returns the segments of a launch-bound program whose launches are counted, and its launches.
func learntProgram(t *testing.T) (*Program, model.Time, uint64) {
	t.Helper()
	s, now, launches := &Program{}, model.Time(time.Hour), uint64(100)
	for range 8 {
		s.Begin(now, launches)
		end := now.Add(9 * ms)
		launches += 200
		s.Progress(end, launches, true)
		s.End(end, now, 8900*us, 100*us, model.LowerYield)
		now = end.Add(10 * ms)
	}
	if s.class.Is != model.ClassLaunchBound {
		t.Fatalf("class %v", s.class.Is)
	}
	return s, now, launches
}

// TestWaitThatNeverEnds: a program that is halted in its wait reports nothing. Lower queues must not stay stopped, and
// the daemon must not look again and again.
func TestWaitThatNeverEnds(t *testing.T) {
	s, now, launches := learntProgram(t)
	s.Begin(now, launches)
	now = now.Add(6 * ms)
	launches += 200
	s.Progress(now, launches, true)
	wakes, since := 0, now
	for now < since.Add(time.Second) {
		f := s.Feeding()
		_, next := f.Stops(now)
		if f.CheckAt > now {
			next = min(next, f.CheckAt)
		}
		if now = max(now+1, min(next, since.Add(time.Second))); now < since.Add(time.Second) {
			s.Progress(now, launches, true)
			wakes++
		}
		if stop, _ := s.Feeding().Stops(now); stop && now.Sub(since) > 45*ms {
			t.Fatalf("stopped %v after the wait began", now.Sub(since))
		}
	}
	if f := s.Feeding(); f.Class == model.ClassLaunchBound || wakes > 40 {
		t.Errorf("%d wake-ups, then %+v; want the protection of other programs", wakes, f)
	}
	s.End(now, now.Add(-time.Second), 8900*us, 100*us, model.LowerYield)
	if f := s.Feeding(); f.Class != model.ClassLaunchBound {
		t.Errorf("one long wait changed the class to %v", f.Class)
	}
}

// TestWaitSeenLate: the wait for work that is done may be seen only with the next request. The time between them is
// no submission time.
func TestWaitSeenLate(t *testing.T) {
	s, now, launches := learntProgram(t)
	pace := s.first.pace
	for range 8 {
		s.Begin(now, launches)
		launches += 200
		s.Pause(now.Add(9 * ms))
		now = now.Add(4 * time.Second)
		s.Progress(now, launches, true)
	}
	if s.class.Is != model.ClassLaunchBound || s.first.pace > 2*pace {
		t.Errorf("%v, %.0f ns per launch, before %.0f", s.class.Is, s.first.pace, pace)
	}
}

// TestPausedIsNotWatched: a program without work and without a wait gives no reason to look at it.
func TestPausedIsNotWatched(t *testing.T) {
	s, now, launches := learntProgram(t)
	s.Begin(now, launches)
	now = s.Feeding().CheckAt
	launches += 130
	s.Progress(now, launches, false)
	s.Pause(now + 1)
	end, wakes := now.Add(time.Second), 0
	for now < end {
		f := s.Feeding()
		stop, next := f.Stops(now)
		if f.CheckAt > now {
			next = min(next, f.CheckAt)
		}
		if stop {
			t.Fatalf("lower queues are stopped beside a program without work: %+v", f)
		}
		if now = max(now+1, next); now < end {
			s.Progress(now, launches, false)
			wakes++
		}
	}
	if wakes > 1 {
		t.Errorf("%d wake-ups", wakes)
	}

	// Soon after the pause it is watched again.
	s, now, launches = learntProgram(t)
	s.Begin(now, launches)
	check := s.Feeding().CheckAt
	s.Pause(check.Add(-ms))
	s.Begin(check.Add(ms), launches+130)
	if f := s.Feeding(); f.CheckAt <= check.Add(ms) {
		t.Errorf("%+v: its progress is never looked at again", f)
	}
}
