// SPDX-License-Identifier: Apache-2.0

package predict

import (
	"testing"
	"time"

	"xsched/internal/model"
)

// chain drives the segments of a program that submits a prompt and its tokens.
type chain struct {
	s        Program
	now      model.Time
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
	c.s.End(c.now, began, fed, tail, model.LowerYield)
}

// tokens submits the tokens of an answer, each soon after the one before.
func (c *chain) tokens(n, launches int, fed, tail time.Duration) {
	for range n {
		c.now = c.now.Add(70 * us)
		c.part(launches, fed, tail)
	}
}

// hesitant submits a prompt that begins like a token.
func (c *chain) hesitant() {
	began, end := c.now, c.now.Add(22*ms)
	c.s.Begin(c.now, c.launches)
	for f := c.s.Feeding(); f.CheckAt > c.now && f.CheckAt < end; f = c.s.Feeding() {
		c.now = f.CheckAt
		c.s.Progress(c.now, c.launches+2+uint64(max(0, c.now.Sub(began)-4*ms)/(18*us)), false)
	}
	c.launches += 1002
	c.s.Progress(end, c.launches, true)
	c.now = end.Add(100 * us)
	c.s.End(c.now, began, 22*ms, 100*us, model.LowerYield)
}

// TestChain: segments that follow a launch-bound one, such as tokens after a prompt, leave its class and its
// prediction alone, and lower queues stay stopped from one to the next but not after the last.
func TestChain(t *testing.T) {
	c := chain{now: model.Time(time.Hour)}
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
	if s.class.Is != model.ClassLaunchBound || s.first.median() != 1000 || s.next.median() != 2 {
		t.Errorf("%v, %d launches, then %d", s.class.Is, s.first.median(), s.next.median())
	}
	s.Begin(c.now, c.launches)
	if f := s.Feeding(); f.StopAt < c.now.Add(15*ms) {
		t.Errorf("a prompt stops lower queues after %v", f.StopAt.Sub(c.now))
	}
	// Tokens without an end are requests of their own.
	for range model.Doubtful + 20 {
		c.now = c.now.Add(70 * us)
		part(2, 80*us, 2800*us)
	}
	if s.class.Is == model.ClassLaunchBound {
		t.Error("a program that only submits tokens is launch-bound")
	}
}

// TestQueuedPrompts: a prompt that waited for the tokens of the last request follows them as closely as they follow
// each other, and a token may come late. Neither spoils the prediction, whatever the tokens are like.
func TestQueuedPrompts(t *testing.T) {
	for _, k := range []struct {
		name          string
		prompt, token int
		fed           time.Duration // of the shortest prompt
		short, tail   time.Duration // of a token
		most          uint64        // stops that are not in time
	}{
		{"tokens as graphs", 1000, 2, 17 * ms, 80 * us, 2800 * us, 12},
		{"tokens submitted for as long as a check takes", 1000, 40, 18 * ms, 800 * us, 2 * ms, 12},
		{"tokens submitted for longer", 1000, 100, 18 * ms, 2 * ms, 100 * us, 16},
		{"a slower prompt", 1000, 50, 25 * ms, 900 * us, 500 * us, 12},
		{"few launches", 60, 2, 18 * ms, 80 * us, 2800 * us, 12},
	} {
		c := chain{now: model.Time(time.Hour)}
		for i := range 64 {
			if i == 24 {
				c.s.counts = model.SegmentCounts{}
			}
			c.part(k.prompt, k.fed+time.Duration(i%5)*ms, 100*us)
			for token := range 3 {
				c.now = c.now.Add(70 * us)
				if i%4 == 1 && token == 1 {
					c.now = c.now.Add(2 * ms)
				}
				c.part(k.token, k.short, k.tail)
			}
			if c.now = c.now.Add(120 * us); i < 10 || i%3 == 0 {
				c.now = c.now.Add(30 * ms)
			}
		}
		state := c.s.State()
		if int(c.s.first.median()) != k.prompt || int(c.s.next.median()) != k.token || state.Class != model.ClassLaunchBound || !state.Predicted {
			t.Errorf("%s: %d launches, then %d; %+v", k.name, c.s.first.median(), c.s.next.median(), state)
		}
		if n := state.Counts; n.Late+n.Early+n.Unaided > k.most || n.InTime < 30 {
			t.Errorf("%s: %+v", k.name, n)
		}
	}
}

// TestLateTokens: one late token per request is no evidence against the class, but a program that submits only small
// segments, some time apart, is a new one.
func TestLateTokens(t *testing.T) {
	c := chain{now: model.Time(time.Hour)}
	for range 40 {
		c.part(1000, 20*ms, 100*us)
		for token := range 3 {
			if c.now = c.now.Add(70 * us); token == 1 {
				c.now = c.now.Add(2 * ms)
			}
			c.part(50, 900*us, 1500*us)
		}
		c.now = c.now.Add(30 * ms)
	}
	if c.s.class.Is != model.ClassLaunchBound || c.s.first.median() != 1000 {
		t.Errorf("%v, %d launches", c.s.class.Is, c.s.first.median())
	}
	for range 4 * history {
		c.now = c.now.Add(3 * ms)
		c.part(200, 5*ms, 100*us)
	}
	if c.s.first.median() != 200 {
		t.Errorf("%d launches are expected, not 200", c.s.first.median())
	}
	for range model.Doubtful + 20 {
		c.now = c.now.Add(3 * ms)
		c.part(2, 80*us, 2800*us)
	}
	if c.s.class.Is == model.ClassLaunchBound {
		t.Error("a program that waits for nearly all of its time is launch-bound")
	}
}

// TestHesitantPrompt: a queued prompt that submits no more than a token at first is recognised when it goes on, and
// spoils neither the class nor the prediction of others.
func TestHesitantPrompt(t *testing.T) {
	for _, k := range []struct {
		name   string
		queued func(i int) bool
	}{
		{"all", func(int) bool { return true }},
		{"every second one", func(i int) bool { return i%2 == 0 }},
	} {
		c := chain{now: model.Time(time.Hour)}
		for i := range 160 {
			if i == 60 {
				c.s.counts = model.SegmentCounts{}
			}
			c.hesitant()
			for range 3 {
				c.now = c.now.Add(70 * us)
				c.part(2, 80*us, 2800*us)
			}
			if c.now = c.now.Add(120 * us); i < 24 || !k.queued(i) {
				c.now = c.now.Add(30 * ms)
			}
		}
		state := c.s.State()
		if n := state.Counts; state.Class != model.ClassLaunchBound || c.s.first.median() != 1002 || n.InTime < 90 || n.Unaided > 0 {
			t.Errorf("%s: %d launches, %+v", k.name, c.s.first.median(), state)
		}
	}
}

// TestLongerTokens: a token that is longer than the last ones is no prompt.
func TestLongerTokens(t *testing.T) {
	for _, k := range []struct {
		n         int
		fed, tail time.Duration
	}{{100, 2 * ms, 100 * us}, {50, 900 * us, 1500 * us}} {
		c := chain{now: model.Time(time.Hour)}
		for i := range 60 {
			c.part(1000, 20*ms, 100*us)
			c.tokens(10, k.n, k.fed, k.tail)
			if i >= 10 {
				c.tokens(1, 2*k.n, 2*k.fed, k.tail)
			}
			c.tokens(9, k.n, k.fed, k.tail)
			if c.s.first.median() != 1000 {
				t.Fatalf("request %d: a prompt is expected to have %d launches", i, c.s.first.median())
			}
			c.now = c.now.Add(30 * ms)
		}
		if state := c.s.State(); !state.Predicted || state.Counts.Unaided > 0 {
			t.Errorf("%d launches: %+v", k.n, state)
		}
	}
}

// TestLongAnswers: however many tokens an answer has, none is a prompt.
func TestLongAnswers(t *testing.T) {
	c := chain{now: model.Time(time.Hour)}
	for i := range 60 {
		c.part(1000, 20*ms, 100*us)
		c.tokens(200, 100, 2*ms, 100*us)
		if c.now = c.now.Add(120 * us); i < 20 {
			c.now = c.now.Add(30 * ms)
		}
	}
	if n := c.s.counts; c.s.first.median() != 1000 || n.Late+n.Early+n.Unaided > 3 {
		t.Errorf("%d launches, %+v", c.s.first.median(), n)
	}
}

// TestHiddenToken: nothing reports that a token's program waits. Lower queues stay stopped for a moment, and only if
// they were stopped when it began.
func TestHiddenToken(t *testing.T) {
	for _, k := range []struct {
		name   string
		tokens int // per answer
		most   time.Duration
	}{{"held", 3, model.SegmentMin + 100*us}, {"not held", 0, 0}} {
		c := chain{now: model.Time(time.Hour)}
		for i := range 40 {
			c.part(1000, 20*ms, 100*us)
			if c.tokens(k.tokens, 2, 80*us, 2800*us); i == 3 {
				c.tokens(1, 2, 80*us, 100*us)
			}
			c.now = c.now.Add(30 * ms)
		}
		c.part(1000, 20*ms, 100*us)
		c.now = c.now.Add(70 * us)
		checks, stopped := 0, time.Duration(0)
		c.s.Begin(c.now, c.launches)
		for f := c.s.Feeding(); f.CheckAt > c.now; f = c.s.Feeding() {
			if stops(f, c.now) {
				stopped += min(f.StopUntil, f.CheckAt).Sub(c.now)
			}
			c.now = f.CheckAt
			c.s.Progress(c.now, c.launches+2, false)
			checks++
		}
		if checks < 1 || checks > looks+1 || stopped > k.most {
			t.Errorf("%s: %d checks, stopped for %v", k.name, checks, stopped)
		}
	}
}

// TestUnseenEnds: where nobody sees the end of a prompt, because a token follows at once, a wait that was told replaces it.
func TestUnseenEnds(t *testing.T) {
	var s Program
	now, launches := model.Time(time.Hour), uint64(0)
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
		s.Unseen(now, model.LowerYield)
		s.Begin(now, launches) // a token
		s.Progress(now.Add(80*us), launches+2, true)
		now, launches = now.Add(2880*us), launches+2
		s.End(now, now.Add(-2880*us), 80*us, 2800*us, model.LowerYield)
		now = now.Add(30 * ms)
	}
	if s.class.Is != model.ClassLaunchBound || s.first.median() != 1000 {
		t.Errorf("%v, %d launches", s.class.Is, s.first.median())
	}
}

// TestSubmitsWhileAThreadWaits: a wait that another one follows unseen, or that is another thread's, doesn't stop lower queues
// while the program submits its next request.
func TestSubmitsWhileAThreadWaits(t *testing.T) {
	s, now, launches := learntProgram(t)
	s.Begin(now, launches)
	s.Progress(now.Add(50*us), launches+1, true)
	if !stops(s.Feeding(), now.Add(60*us)) {
		t.Fatal("lower queues run while it waits")
	}
	length, size := s.first.left(s.first.median(), 0, 0), s.first.median()
	began, stopped := now.Add(50*us), time.Duration(0)
	for at := began; at < began.Add(length); at = at.Add(100 * us) {
		f := s.Feeding()
		if f.CheckAt != 0 && at >= f.CheckAt {
			s.Progress(at, launches+1+uint64(float64(size)*float64(at.Sub(began))/float64(length)), true)
			f = s.Feeding()
		}
		if stops(f, at) {
			stopped += 100 * us
		}
	}
	if most := 2*model.SegmentMin + s.lead + model.SegmentMin; stopped > most {
		t.Errorf("lower queues were stopped for %v of %v, want at most %v", stopped, length, most)
	}
	// One that only waits has them stopped as long as before.
	s.Drop(now)
	now = now.Add(time.Second)
	s.Begin(now, launches)
	s.Progress(now, launches, true)
	until := now
	for f := s.Feeding(); stops(f, until); f = s.Feeding() {
		until = f.CheckAt
		s.Progress(until, launches, true)
	}
	if until.Sub(now) < waitMax {
		t.Errorf("they run after %v", until.Sub(now))
	}
}
