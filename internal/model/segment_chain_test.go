// SPDX-License-Identifier: Apache-2.0

package model

import (
	"testing"
	"time"
)

// chain drives the segments of a program that submits a prompt and its tokens.
type chain struct {
	s        Segments
	now      Time
	launches uint64
}

// part submits n launches for the time fed, and then waits for the time tail.
func (c *chain) part(n int, fed, tail time.Duration) {
	began := c.now
	c.s.Begin(c.now, c.launches)
	for f := c.s.Feeding(); f.CheckAt > c.now && f.CheckAt < began.Add(fed); f = c.s.Feeding() {
		c.now = f.CheckAt
		c.s.Progress(c.now, c.launches+uint64(float64(n)*float64(c.now.Sub(began))/float64(fed)), false)
	}
	c.launches += uint64(n)
	c.s.Progress(began.Add(fed), c.launches, true)
	c.now = began.Add(fed + tail)
	c.s.End(c.now, began, fed, tail, LowsGiveWay)
}

// TestChain: segments that follow a launch-bound one, such as tokens after a prompt, leave its class and its
// prediction alone, and lower queues stay stopped from one to the next but not after the last.
func TestChain(t *testing.T) {
	c := chain{now: Time(time.Hour)}
	s, part := &c.s, c.part
	const tokens = 3
	for i := range 40 {
		part(1000, 19*ms, 100*us)
		for range tokens {
			if i >= 10 && s.hold() < 150*us {
				t.Fatalf("request %d: lower queues stay stopped for %v", i, s.hold())
			}
			c.now = c.now.Add(70 * us)
			part(2, 80*us, 2800*us)
		}
		if s.hold() != 0 {
			t.Fatalf("request %d: lower queues stay stopped for %v behind the last token", i, s.hold())
		}
		c.now = c.now.Add(30 * ms)
	}
	if s.Class() != ClassLaunchBound || s.first.predict() != 1000 || s.next.predict() != 2 {
		t.Errorf("%v, %d launches, then %d", s.Class(), s.first.predict(), s.next.predict())
	}
	s.Begin(c.now, c.launches)
	if f := s.Feeding(); f.StopAt < c.now.Add(15*ms) {
		t.Errorf("a prompt stops lower queues after %v", f.StopAt.Sub(c.now))
	}
	// Tokens without an end are requests of their own.
	for range chainMax + 3 {
		c.now = c.now.Add(70 * us)
		part(2, 80*us, 2800*us)
	}
	for range 4 * chainMax {
		c.now = c.now.Add(70 * us)
		part(2, 80*us, 2800*us)
	}
	if s.Class() == ClassLaunchBound {
		t.Error("a program that only submits tokens is launch-bound")
	}
}

// TestQueuedPrompts: a prompt that waited for the tokens of the last request follows them as closely as they follow
// each other, and a token may come late. Neither spoils the prediction.
func TestQueuedPrompts(t *testing.T) {
	c := chain{now: Time(time.Hour)}
	for i := range 64 {
		fed := time.Duration(17+i%5) * ms
		if i == 40 {
			c.s.counts = SegmentCounts{}
		}
		c.part(1000, fed, 100*us)
		for token := range 3 {
			c.now = c.now.Add(70 * us)
			if i%4 == 1 && token == 1 {
				c.now = c.now.Add(2 * ms)
			}
			c.part(2, 80*us, 2800*us)
		}
		if c.now = c.now.Add(120 * us); i%3 == 0 {
			c.now = c.now.Add(30 * ms)
		}
	}
	state := c.s.State()
	if c.s.first.predict() != 1000 || c.s.next.predict() != 2 || state.Class != ClassLaunchBound || !state.Predicted {
		t.Errorf("%d launches, then %d; %+v", c.s.first.predict(), c.s.next.predict(), state)
	}
	if n := state.Counts; n.Late+n.Early+n.Unaided > 3 || n.InTime < 20 {
		t.Errorf("%+v", n)
	}
}

// TestUnseenEnds: where nobody sees the end of a prompt, because a token follows at once, a wait that was told replaces it.
func TestUnseenEnds(t *testing.T) {
	var s Segments
	now, launches := Time(time.Hour), uint64(0)
	for i := range 20 {
		s.Begin(now, launches)
		for f := s.Feeding(); f.CheckAt > now && f.CheckAt < now.Add(19*ms); f = s.Feeding() {
			s.Progress(f.CheckAt, launches+uint64(50*float64(f.CheckAt.Sub(now))/float64(ms)), false)
		}
		now, launches = now.Add(19*ms), launches+1000
		told := s.Followed()
		if told != (i > 0) {
			t.Fatalf("request %d: followed %v", i, told)
		}
		if told {
			s.Progress(now, launches, true)
		}
		now = now.Add(100 * us)
		s.Unseen(now, LowsGiveWay)
		s.Begin(now, launches) // a token
		s.Progress(now.Add(80*us), launches+2, true)
		now, launches = now.Add(2880*us), launches+2
		s.End(now, now.Add(-2880*us), 80*us, 2800*us, LowsGiveWay)
		now = now.Add(30 * ms)
	}
	if s.Class() != ClassLaunchBound || s.first.predict() != 1000 {
		t.Errorf("%v, %d launches", s.Class(), s.first.predict())
	}
}

// TestSubmitsWhileAThreadWaits: a wait that another one follows unseen, or that is another thread's, doesn't stop lower queues
// while the program submits its next request.
func TestSubmitsWhileAThreadWaits(t *testing.T) {
	s, now, launches := learntProgram(t)
	s.Begin(now, launches)
	s.Progress(now.Add(50*us), launches+1, true)
	if !s.Feeding().stops(now.Add(60 * us)) {
		t.Fatal("lower queues run while it waits")
	}
	length, size := s.size().length(s.first.predict()), s.first.predict()
	began, stopped := now.Add(50*us), time.Duration(0)
	for at := began; at < began.Add(length); at = at.Add(100 * us) {
		f := s.Feeding()
		if f.CheckAt != 0 && at >= f.CheckAt {
			s.Progress(at, launches+1+uint64(float64(size)*float64(at.Sub(began))/float64(length)), true)
			f = s.Feeding()
		}
		if f.stops(at) {
			stopped += 100 * us
		}
	}
	if most := checkGap + s.lead + patience; stopped > most {
		t.Errorf("lower queues were stopped for %v of %v, want at most %v", stopped, length, most)
	}
	// One that only waits has them stopped as long as before.
	s.Drop()
	now = now.Add(time.Second)
	s.Begin(now, launches)
	s.Progress(now, launches, true)
	until := now
	for f := s.Feeding(); f.stops(until); f = s.Feeding() {
		until = f.CheckAt
		s.Progress(until, launches, true)
	}
	if until.Sub(now) < waitMax {
		t.Errorf("they run after %v", until.Sub(now))
	}
}
