// SPDX-License-Identifier: Apache-2.0

package model

import (
	"strings"
	"testing"
	"time"
)

// TestClass: how the segments of a program decide its class.
func TestClass(t *testing.T) {
	type segment struct{ fed, tail time.Duration }
	fed, waited := func(d time.Duration) segment { return segment{d, d / 10} }, func(d time.Duration) segment { return segment{d / 10, d} }
	many := func(n int, s ...segment) (all []segment) {
		for range n {
			all = append(all, s...)
		}
		return all
	}
	for _, c := range []struct {
		name     string
		segments []segment
		want     Class
	}{
		{"nothing known", nil, ClassUnknown},
		{"two are not enough", many(2, fed(3*ms)), ClassUnknown},
		{"three", many(3, fed(3*ms)), ClassLaunchBound},
		{"long", many(3, fed(60*ms)), ClassLaunchBound},
		{"the device is what takes the time", many(3, waited(3*ms)), ClassGPUBound},
		{"one that waited", append(many(6, fed(9*ms)), waited(9*ms)), ClassLaunchBound},
		{"three that waited", append(many(6, fed(9*ms)), many(3, waited(9*ms))...), ClassGPUBound},
		{"one in four waits", many(9, fed(9*ms), fed(9*ms), fed(9*ms), waited(9*ms)), ClassLaunchBound},
		{"every second one waits", many(9, fed(9*ms), waited(9*ms)), ClassUnknown},
		{"the device is busy for most of the time", many(9, segment{7300 * us, 2500 * us}), ClassGPUBound},
		{"taken back, then doubted", append(append(many(6, fed(9*ms)), many(3, waited(9*ms))...), many(20, fed(9*ms))...), ClassUnknown},
		{"doubt ends", append(append(many(6, fed(9*ms)), many(3, waited(9*ms))...), many(doubtFirst+9, fed(9*ms))...), ClassLaunchBound},
		{"too short", many(9, fed(ms/2)), ClassUnknown},
		{"short ones in between", many(9, fed(9*ms), fed(ms/10), waited(ms/10)), ClassLaunchBound},
		{"short from now on", append(many(9, fed(9*ms)), many(shortsMax, waited(ms/10))...), ClassUnknown},
		{"delayed by lower queues", append(many(9, fed(5*ms)), many(9, segment{5 * ms, 2200 * us})...), ClassLaunchBound},
		{"few launches: it waits unseen", many(9, segment{6 * ms, 0}), ClassGPUBound},
		{"nonsense", []segment{{-1, -1}, {1<<63 - 1, 1<<63 - 1}, {1, -1 << 63}, {-1 << 63, 1}}, ClassUnknown},
	} {
		var s Segments
		now, launches := Time(time.Hour), uint64(0)
		for _, x := range c.segments {
			s.Begin(now, launches)
			end := now.Add(max(0, min(x.fed, time.Hour)) + max(0, min(x.tail, time.Hour)))
			if strings.HasPrefix(c.name, "few") {
				launches += 3
			}
			s.Progress(end, launches, true)
			s.End(end, now, x.fed, x.tail, LowsGiveWay)
			now = end.Add(10 * ms)
		}
		if s.Class() != c.want {
			t.Errorf("%s: %v, want %v", c.name, s.Class(), c.want)
		}
	}
}

// TestDoubtEndsWithTheWork: a program that was near the limit and then runs another model is launch-bound
// soon. One that alternates between both is not.
func TestDoubtEndsWithTheWork(t *testing.T) {
	for _, c := range []struct {
		name  string
		sizes []uint64
		want  Class
	}{
		{"the same model", []uint64{100}, ClassUnknown},
		{"a longer one", []uint64{300}, ClassLaunchBound},
		{"a shorter one", []uint64{20}, ClassLaunchBound},
		{"both in turn", []uint64{100, 300}, ClassUnknown},
	} {
		var s Segments
		now, launches := Time(time.Hour), uint64(0)
		segment := func(size uint64, tail time.Duration) {
			s.Begin(now, launches)
			end := now.Add(4*ms + tail)
			launches += size
			s.Progress(end, launches, true)
			s.End(end, now, 4*ms, tail, NoLows)
			now = end.Add(20 * ms)
		}
		for range 6 {
			segment(100, 0)
		}
		for range 3 {
			segment(100, 9*ms)
		}
		for i := range otherMax + 12 {
			segment(c.sizes[i%len(c.sizes)], 0)
		}
		if s.Class() != c.want {
			t.Errorf("%s: %s, want %s", c.name, s.Class(), c.want)
		}
	}
}

// TestNativeSharingIsNoEvidence: what a program waits for natively beside many lows says nothing about its class. Short
// waits do.
func TestNativeSharingIsNoEvidence(t *testing.T) {
	for _, c := range []struct {
		name        string
		first, tail time.Duration
		lows        Lows
		want        Class
	}{
		{"launch-bound, long waits natively", 0, 9 * ms, LowsCompete, ClassLaunchBound},
		{"launch-bound, long waits while lows give way", 0, 9 * ms, LowsGiveWay, ClassGPUBound},
		{"GPU-bound, long waits natively", 9 * ms, 9 * ms, LowsCompete, ClassGPUBound},
		{"GPU-bound, short waits natively", 9 * ms, 0, LowsCompete, ClassLaunchBound},
	} {
		var s Segments
		now, launches := Time(time.Hour), uint64(0)
		segment := func(tail time.Duration, lows Lows) {
			s.Begin(now, launches)
			end := now.Add(4*ms + tail)
			launches += 100
			s.Progress(end.Add(-tail), launches, true)
			s.End(end, now, 4*ms, tail, lows)
			now = end.Add(20 * ms)
		}
		for range 6 {
			segment(c.first, NoLows)
		}
		for range 20 {
			segment(c.tail, c.lows)
		}
		if s.Class() != c.want {
			t.Errorf("%s: %s, want %s", c.name, s.Class(), c.want)
		}
	}
}

// TestHiddenWaits: a program that submits many kernels at once and then waits unseen looks launch-bound by its
// times alone. Its launches show that it is not, and the doubt lasts.
func TestHiddenWaits(t *testing.T) {
	var s Segments
	now, launches, bound := Time(time.Hour), uint64(0), 0
	for range 300 {
		began := now
		s.Begin(now, launches)
		launches += 200 // within the first millisecond
		for end := began.Add(9 * ms); ; {
			f := s.Feeding()
			if f.CheckAt == 0 || f.CheckAt >= end {
				now = end
				break
			}
			now = f.CheckAt
			s.Progress(now, launches, false)
		}
		s.Progress(now, launches, true)
		s.End(now, began, 9*ms, 0, LowsGiveWay)
		now = now.Add(10 * ms)
		if s.Class() == ClassLaunchBound {
			bound++
		}
	}
	if s.Class() == ClassLaunchBound || bound > 30 {
		t.Errorf("launch-bound after %d of 300 segments: %+v", bound, s.State())
	}
}

// TestHiddenWaitNowAndThen: one wait in eight that nothing reports does not make the program doubted.
func TestHiddenWaitNowAndThen(t *testing.T) {
	s, now, launches := learntProgram(t)
	hidden := 0
	for i := range 300 {
		began := now
		s.Begin(now, launches)
		if i%8 == 7 { // all launches at once, then a wait
			launches += 200
			for end := began.Add(9 * ms); ; {
				f := s.Feeding()
				if f.CheckAt == 0 || f.CheckAt >= end {
					break
				}
				now = f.CheckAt
				s.Progress(now, launches, false)
			}
			hidden += int(b2i(s.hidden))
		} else {
			launches += 200
		}
		now = began.Add(9 * ms)
		s.Progress(now, launches, true)
		s.End(now.Add(100*us), began, 8900*us, 100*us, LowsGiveWay)
		now = now.Add(10 * ms)
	}
	if hidden == 0 {
		t.Fatal("no wait was hidden")
	}
	if s.Class() != ClassLaunchBound || s.doubt != 0 {
		t.Errorf("class %s, doubt %d after %d hidden waits", s.Class(), s.doubt, hidden)
	}
}
