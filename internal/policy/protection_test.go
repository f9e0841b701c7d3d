// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"xsched/internal/model"
)

const millisecond = time.Millisecond

func TestNativeLength(t *testing.T) {
	const slice = 2 * millisecond
	for _, c := range []struct {
		name              string
		length, submitted time.Duration
		lows              int
		phase             float64
		want              time.Duration
	}{
		{"alone", 3 * millisecond, 0, 0, 1, 3 * millisecond},
		{"within a slice, at once", 90 * time.Microsecond, 0, 1, 0, 90 * time.Microsecond},
		{"within a slice, a round later", 90 * time.Microsecond, 0, 1, 1, 2290 * time.Microsecond},
		{"within a slice, three lows", 90 * time.Microsecond, 0, 3, 1, 6690 * time.Microsecond},
		{"two slices", 3 * millisecond, 0, 1, 0, 5400 * time.Microsecond},
		{"exactly a slice", 2 * millisecond, 0, 1, 0, 2 * millisecond},
		{"submits for half of it", 9 * millisecond, 4 * millisecond, 1, 0, 18600 * time.Microsecond},
		{"launch-bound", 26 * millisecond, 25900 * time.Microsecond, 1, 0.5, 27100 * time.Microsecond},
		{"launch-bound, three lows", 26 * millisecond, 25900 * time.Microsecond, 3, 1, 32600 * time.Microsecond},
	} {
		if got := nativeLength(c.length, c.submitted, c.lows, c.phase, slice); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestNativeLengthNeverShortens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "length"))
		submitted := time.Duration(rapid.Int64Range(0, int64(length)).Draw(t, "submitted"))
		lows, phase := rapid.IntRange(0, 100).Draw(t, "lows"), rapid.Float64Range(0, 1).Draw(t, "phase")
		got := nativeLength(length, submitted, lows, phase, 2*millisecond)
		if got < length {
			t.Fatalf("%v is shorter than %v under protection", got, length)
		}
		if more := nativeLength(length, submitted, lows+1, phase, 2*millisecond); more < got {
			t.Fatalf("%v with one low more, %v without", more, got)
		}
	})
}

// tenant drives an account: requests of one kind at a rate.
type protectedTenant struct {
	*Protection
	now     model.Time
	changes int
}

func newProtected() *protectedTenant {
	now := model.Time(time.Hour)
	return &protectedTenant{Protection: NewProtection(1, now), now: now}
}

// request lasts for length and blocks the lows for a part of it and for a time after it.
func (p *protectedTenant) request(length, submitted, blocked, after, period time.Duration, mayDrop bool) {
	p.Begin(p.now)
	p.Beside(1)
	p.Block(p.now, blocked)
	end := p.now.Add(length)
	if p.End(end, submitted, 2*millisecond, mayDrop) {
		p.changes++
	}
	p.Block(end, after)
	p.now = p.now.Add(period)
}

func TestCostOfProtection(t *testing.T) {
	for _, c := range []struct {
		name                              string
		length, submitted, blocked, after time.Duration
		want                              time.Duration
	}{
		{"uses the device all the time", 3 * millisecond, 0, 3 * millisecond, 0, 0},
		{"and two switches", 3 * millisecond, 0, 3 * millisecond, 400 * time.Microsecond, 0},
		{"and a hold after it", 3 * millisecond, 0, 3 * millisecond, millisecond, 600 * time.Microsecond},
		{"submits, then waits for long", 4 * millisecond, millisecond, 4 * millisecond, 0, 0},
		{"launch-bound, stopped throughout", 26 * millisecond, 25 * millisecond, 26 * millisecond, 0, 24600 * time.Microsecond},
		{"launch-bound, stopped just in time", 26 * millisecond, 25 * millisecond, 2 * millisecond, 0, 600 * time.Microsecond},
		{"lows progress throughout", 26 * millisecond, 25 * millisecond, 0, 0, 0},
	} {
		p := newProtected()
		p.request(c.length, c.submitted, c.blocked, c.after, 50*millisecond, true)
		if got := p.Status(p.now, 7); got.Cost != c.want || got.Device != 7 || got.PID != 1 {
			t.Errorf("%s: costs %v, want %v", c.name, got.Cost, c.want)
		}
	}
}

// TestCostShare: 5 ms of 50 ms are a tenth, whatever the age of the account.
func TestCostShare(t *testing.T) {
	for _, n := range []int{20, 200, 20000} {
		p := newProtected()
		for range n {
			p.request(5400*time.Microsecond, 5400*time.Microsecond, 5400*time.Microsecond, 0, 50*millisecond, false)
		}
		if got := p.Status(p.now, 1).CostShare; math.Abs(got-0.1) > 0.01 {
			t.Errorf("after %d requests: %.3f", n, got)
		}
	}
}

// TestProtectionDropped: protection ends where it gains nothing and costs something, and only there.
func TestProtectionDropped(t *testing.T) {
	for _, c := range []struct {
		name                       string
		length, submitted, blocked time.Duration
		mayDrop, want              bool
	}{
		{"GPU-bound", 3 * millisecond, 0, 3 * millisecond, true, false},
		{"short and launch-bound", 4 * millisecond, 4 * millisecond, 4 * millisecond, true, false},
		{"CPU-bound, the lows stopped throughout", 40 * millisecond, 40 * millisecond, 40 * millisecond, true, true},
		{"the same with a latency target", 40 * millisecond, 40 * millisecond, 40 * millisecond, false, false},
		{"CPU-bound, stopped just in time", 40 * millisecond, 40 * millisecond, 800 * time.Microsecond, true, false},
	} {
		p := newProtected()
		for range 400 {
			p.request(c.length, c.submitted, c.blocked, 0, 50*millisecond, c.mayDrop)
		}
		if s := p.Status(p.now, 1); s.Native != c.want {
			t.Errorf("%s: %+v, want native %v", c.name, s, c.want)
		}
	}
}

// TestProtectionRetried: without protection the lengths are measured; trials become rarer while they show no gain.
func TestProtectionRetried(t *testing.T) {
	p := newProtected()
	var native time.Duration
	for range 40 * 60 * 20 { // 40 minutes
		length, blocked := 40*millisecond, 40*millisecond
		if p.Native {
			length, blocked = 40400*time.Microsecond, 0
			native += 50 * millisecond
		}
		p.request(length, length, blocked, 0, 50*millisecond, true)
	}
	s := p.Status(p.now, 1)
	if !s.Native || s.Source != Measured || s.NativeP99.Round(100*time.Microsecond) != 40400*time.Microsecond {
		t.Errorf("%+v", s)
	}
	if p.changes < 9 || p.changes > 17 || native < 38*time.Minute {
		t.Errorf("%d changes, native for %v of 40 minutes", p.changes, native)
	}
	// Protection is worth it as soon as requests without it are seen to be slow.
	p = newProtected()
	resumed := model.Time(0)
	for range 20 * 30 {
		length := 40 * millisecond
		if was := p.Native; was {
			p.request(60*millisecond, 60*millisecond, 0, 0, 100*millisecond, true)
			if !p.Native {
				resumed = p.now
			}
			continue
		}
		p.request(length, length, length, 0, 50*millisecond, true)
	}
	if s := p.Status(p.now, 1); s.Native || s.Source != Measured || resumed == 0 || s.Gain() < 15*millisecond {
		t.Errorf("%+v, resumed at %v", s, resumed)
	}
}

// TestProtectionIsSteady: whatever the requests, protection changes at most once in five seconds on average, the
// accounts stay within the elapsed time, and a new queue ends a native phase soon.
func TestProtectionIsSteady(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newProtected()
		start := p.now
		for range rapid.IntRange(1, 60).Draw(t, "phases") {
			length := time.Duration(rapid.Int64Range(1, int64(60*millisecond)).Draw(t, "length"))
			submitted := time.Duration(rapid.Int64Range(0, int64(length)).Draw(t, "submitted"))
			blocked := time.Duration(rapid.Int64Range(0, int64(length)).Draw(t, "blocked"))
			slower := time.Duration(rapid.Int64Range(0, int64(length)).Draw(t, "slower"))
			for range 50 {
				if p.Native {
					p.request(length+slower, submitted, 0, 0, 150*millisecond, true)
				} else {
					p.request(length, submitted, blocked, 0, 150*millisecond, true)
				}
			}
		}
		elapsed := p.now.Sub(start)
		if s := p.Status(p.now, 1); s.Cost > elapsed || s.CostShare < 0 || s.CostShare > 1 || p.changes != int(s.Changes) ||
			p.changes > 1+int(elapsed/changedRetry) {
			t.Fatalf("%d changes in %v: %+v", p.changes, elapsed, s)
		}
		if p.Native {
			p.LowsChanged(p.now)
			p.now = p.now.Add(changedRetry)
			p.request(millisecond, 0, 0, 0, 50*millisecond, true)
			if p.Native {
				t.Fatal("still native beside a new queue")
			}
		}
	})
}

// A watcher finds the device idle between the launches of a slow program. That ends no request, and each has two
// switches of its own.
func TestRequestOfSeveralBusyPeriods(t *testing.T) {
	now := model.Time(time.Hour)
	p := NewProtection(1, now)
	for range 60 {
		p.Begin(now)
		p.Beside(1)
		for k := range 24 {
			if k > 0 {
				p.Begin(now)
			}
			p.Block(now, millisecond/2)
			now = now.Add(millisecond / 2)
			submitted := model.NotWaited
			if k == 23 {
				submitted = millisecond / 2
			}
			p.End(now, submitted, 2*millisecond, false)
			if k < 23 {
				p.Block(now, millisecond/2)
				now = now.Add(millisecond / 2)
			}
		}
		now = now.Add(30 * millisecond)
	}
	if got := p.actual.value(50); p.requests != 60 || got < 23*millisecond || got > 24*millisecond {
		t.Errorf("%d requests, P50 %v, want 60 of 23.5 ms", p.requests, got)
	}
	if got := p.costShare(now); got < 0.40 {
		t.Errorf("cost %.2f, want nearly 23.5 of 53.5 ms", got)
	}
}
