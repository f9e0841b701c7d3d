// SPDX-License-Identifier: Apache-2.0

package predict

import (
	"strings"
	"testing"
	"time"

	"xsched/internal/model"
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
		want     model.Class
	}{
		{"nothing known", nil, model.ClassUnknown},
		{"two are not enough", many(2, fed(3*ms)), model.ClassUnknown},
		{"three", many(3, fed(3*ms)), model.ClassLaunchBound},
		{"long", many(3, fed(60*ms)), model.ClassLaunchBound},
		{"the device is what takes the time", many(3, waited(3*ms)), model.ClassGPUBound},
		{"one that waited", append(many(6, fed(9*ms)), waited(9*ms)), model.ClassLaunchBound},
		{"three that waited", append(many(6, fed(9*ms)), many(3, waited(9*ms))...), model.ClassGPUBound},
		{"one in four waits", many(9, fed(9*ms), fed(9*ms), fed(9*ms), waited(9*ms)), model.ClassLaunchBound},
		{"every second one waits", many(9, fed(9*ms), waited(9*ms)), model.ClassUnknown},
		{"the device is busy for most of the time", many(9, segment{7300 * us, 2500 * us}), model.ClassGPUBound},
		{"taken back, then doubted", append(append(many(6, fed(9*ms)), many(3, waited(9*ms))...), many(20, fed(9*ms))...), model.ClassUnknown},
		{"doubt ends", append(append(many(6, fed(9*ms)), many(3, waited(9*ms))...), many(model.Doubtful+9, fed(9*ms))...), model.ClassLaunchBound},
		{"too short", many(9, fed(ms/2)), model.ClassUnknown},
		{"short ones in between", many(9, fed(9*ms), fed(ms/10), waited(ms/10)), model.ClassLaunchBound},
		{"short from now on", append(many(9, fed(9*ms)), many(16, waited(ms/10))...), model.ClassUnknown},
		{"delayed by lower queues", append(many(9, fed(5*ms)), many(9, segment{5 * ms, 2200 * us})...), model.ClassLaunchBound},
		{"few launches: it waits unseen", many(9, segment{6 * ms, 0}), model.ClassGPUBound},
		{"nonsense", []segment{{-1, -1}, {1<<63 - 1, 1<<63 - 1}, {1, -1 << 63}, {-1 << 63, 1}}, model.ClassUnknown},
	} {
		var s Program
		now, launches := model.Time(time.Hour), uint64(0)
		for _, x := range c.segments {
			s.Begin(now, launches)
			end := now.Add(max(0, min(x.fed, time.Hour)) + max(0, min(x.tail, time.Hour)))
			if strings.HasPrefix(c.name, "few") {
				launches += 3
			} else {
				launches += uint64(max(0, min(x.fed, time.Hour)) / (50 * us))
			}
			s.Progress(end, launches, true)
			s.End(end, now, x.fed, x.tail, model.LowerYield)
			now = end.Add(10 * ms)
		}
		if s.class.Is != c.want {
			t.Errorf("%s: %v, want %v", c.name, s.class.Is, c.want)
		}
	}
}

// TestNativeSharingIsNoEvidence: what a program waits for natively beside many lows says nothing about its class. Short
// waits do.
func TestNativeSharingIsNoEvidence(t *testing.T) {
	for _, c := range []struct {
		name        string
		first, tail time.Duration
		lows        model.Lower
		want        model.Class
	}{
		{"launch-bound, long waits natively", 0, 9 * ms, model.LowerCompete, model.ClassLaunchBound},
		{"launch-bound, long waits while lows give way", 0, 9 * ms, model.LowerYield, model.ClassGPUBound},
		{"GPU-bound, long waits natively", 9 * ms, 9 * ms, model.LowerCompete, model.ClassGPUBound},
		{"GPU-bound, short waits natively", 9 * ms, 0, model.LowerCompete, model.ClassLaunchBound},
	} {
		var s Program
		now, launches := model.Time(time.Hour), uint64(0)
		segment := func(tail time.Duration, lows model.Lower) {
			s.Begin(now, launches)
			end := now.Add(4*ms + tail)
			launches += 100
			s.Progress(end.Add(-tail), launches, true)
			s.End(end, now, 4*ms, tail, lows)
			now = end.Add(20 * ms)
		}
		for range 6 {
			segment(c.first, model.LowerIdle)
		}
		for range 20 {
			segment(c.tail, c.lows)
		}
		if s.class.Is != c.want {
			t.Errorf("%s: %s, want %s", c.name, s.class.Is, c.want)
		}
	}
}

// TestHiddenWaits: a program that submits many kernels at once and then waits unseen looks launch-bound by its
// times alone. Its launches show that it is not, and the doubt lasts.
func TestHiddenWaits(t *testing.T) {
	var s Program
	now, launches, bound := model.Time(time.Hour), uint64(0), 0
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
		s.End(now, began, 9*ms, 0, model.LowerYield)
		now = now.Add(10 * ms)
		if s.class.Is == model.ClassLaunchBound {
			bound++
		}
	}
	if s.class.Is == model.ClassLaunchBound || bound > 30 {
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
			if s.count == s.found {
				hidden++
			}
		} else {
			launches += 200
		}
		now = began.Add(9 * ms)
		s.Progress(now, launches, true)
		s.End(now.Add(100*us), began, 8900*us, 100*us, model.LowerYield)
		now = now.Add(10 * ms)
	}
	if hidden == 0 {
		t.Fatal("no wait was hidden")
	}
	if s.class.Is != model.ClassLaunchBound {
		t.Errorf("class %s after %d hidden waits", s.class.Is, hidden)
	}
}
