// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"xsched/internal/engine"
	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/record"
)

const gpu = model.DeviceID(0x100)

// scene is a history with a clock of its own.
type scene struct {
	*History
	t     *testing.T
	trace *record.Trace
	now   model.Time
}

func newScene(t *testing.T) *scene {
	trace := record.NewTrace()
	start := model.Time(1000 * time.Second)
	return &scene{New(trace, start), t, trace, start}
}

func (s *scene) join(session, pid, uid int, command string) loop.Identity {
	who := loop.Identity{ID: model.SessionID(session), PID: pid, LocalPID: pid, User: identity.OnHost(uid), Command: command}
	s.Joined(who)
	return who
}

// to reports a transition of a program's only queue.
func (s *scene) to(session, pid int, a engine.Activity, by int) {
	s.trace.Put(engine.Transition{At: s.now, ID: model.QueueID{Session: model.SessionID(session)}, PID: pid, Device: gpu, To: a, By: by})
}

func (s *scene) wait(d time.Duration) {
	s.now = s.now.Add(d)
	s.Take(s.now)
}

func (s *scene) all(length time.Duration) []Timeline {
	_, out := s.Query(Request{Now: s.now, Length: length, Visible: func(*loop.Identity) bool { return true }})
	return out
}

var letters = [...]string{"idle", "run", "wait", "preempted"}

func text(spans []Span, start model.Time) string {
	var b strings.Builder
	for _, s := range spans {
		fmt.Fprintf(&b, "%s %s %v+%v\n", s.Who.Command, letters[s.State], s.From.Sub(start), s.To.Sub(s.From))
	}
	return b.String()
}

func TestTimeline(t *testing.T) {
	s := newScene(t)
	start := s.now
	s.join(1, 10, 1000, "serve.py")
	s.join(2, 20, 2000, "train.py")
	s.to(2, 20, engine.ActivityRun, 0)
	s.wait(5 * time.Millisecond)
	s.to(1, 10, engine.ActivityRun, 0)
	s.to(2, 20, engine.ActivityStopped, 10)
	s.wait(3 * time.Millisecond)
	s.to(1, 10, engine.ActivityIdle, 0)
	s.to(2, 20, engine.ActivityRun, 0)
	s.wait(4 * time.Millisecond)
	s.to(1, 10, engine.ActivityRun, 0)
	s.to(2, 20, engine.ActivityWait, 10)
	s.wait(2 * time.Millisecond)
	want := `train.py run 0s+5ms
train.py preempted 5ms+3ms
serve.py run 5ms+3ms
train.py run 8ms+4ms
train.py wait 12ms+2ms
serve.py run 12ms+2ms
`
	got := s.all(time.Minute)
	if len(got) != 1 || got[0].Grain != 0 || text(got[0].Spans, start) != want {
		t.Fatalf("got %+v\n%swant\n%s", got, text(got[0].Spans, start), want)
	}
	// Only what a caller may see is in the answer.
	_, mine := s.Query(Request{Now: s.now, Length: time.Minute, Visible: func(w *loop.Identity) bool { return w.User.UID == 1000 }})
	if got := text(mine[0].Spans, start); got != "serve.py run 5ms+3ms\nserve.py run 12ms+2ms\n" {
		t.Errorf("visible to uid 1000:\n%s", got)
	}
	pairs, rest := s.Preemptions()
	if len(pairs) != 1 || rest.Pairs != 0 || pairs[0].Victim.PID != 20 || pairs[0].By.Command != "serve.py" || pairs[0].Time != 3*time.Millisecond || pairs[0].Count != 1 || pairs[0].Yield {
		t.Errorf("preemptions %+v", pairs)
	}
	// The end of a queue ends its span.
	s.trace.Put(engine.Transition{At: s.now, ID: model.QueueID{Session: 2}, PID: 20, Device: gpu, Gone: true})
	s.wait(time.Second)
	if pairs, _ = s.Preemptions(); len(pairs) != 1 || !pairs[0].Yield || pairs[0].Time != 2*time.Millisecond {
		t.Errorf("yields %+v", pairs)
	}
	s.wait(2 * time.Minute)
	if got := s.all(time.Minute); len(got[0].Spans) != 1 || got[0].Spans[0].Who.PID != 10 || got[0].Spans[0].To.Sub(got[0].Spans[0].From) != time.Minute {
		t.Errorf("after two minutes: %v", got[0].Spans)
	}
}

// However many transitions there are, the ring covers a minute, and the time in each state is right.
func TestSpansAreBoundedAndExact(t *testing.T) {
	for _, lanes := range []int{1, 20, 300} {
		s := newScene(t)
		rng := rand.New(rand.NewPCG(1, uint64(lanes)))
		state := make([]engine.Activity, lanes)
		sums := map[int]*[engine.Activities]time.Duration{}
		for i := range lanes {
			s.join(i+1, i+1, 1000, "p")
			sums[i] = &[engine.Activities]time.Duration{}
		}
		for round := range 20000 / lanes {
			for i := range lanes {
				a := engine.Activity(rng.IntN(int(engine.Activities)))
				if a != state[i] {
					s.to(i+1, i+1, a, 0)
				}
				state[i] = a
			}
			d := time.Duration(1+rng.IntN(2000)) * time.Microsecond
			for i := range lanes {
				sums[i][state[i]] += d
			}
			s.wait(d)
			if round%100 == 0 {
				s.all(time.Minute)
			}
		}
		got := s.all(time.Minute)[0]
		if len(got.Spans) > shownSpans || s.devices[gpu].size > MaxSpans {
			t.Errorf("%d lanes: %d spans, %d kept", lanes, len(got.Spans), s.devices[gpu].size)
		}
		seen := map[int]*[engine.Activities]time.Duration{}
		for _, sp := range got.Spans {
			i := sp.Who.PID - 1
			if seen[i] == nil {
				seen[i] = &[engine.Activities]time.Duration{}
			}
			seen[i][sp.State] += sp.To.Sub(sp.From)
		}
		for i := range lanes {
			for a := engine.ActivityRun; int(a) < int(engine.Activities); a++ {
				if got, want := seen[i][a], sums[i][a]; got != want {
					t.Fatalf("%d lanes: lane %d was %s for %v, want %v", lanes, i, letters[a], got, want)
				}
			}
		}
	}
}

// A flood of transitions leaves room for a minute of another program's spans.
func TestFloodKeepsTheMinute(t *testing.T) {
	s := newScene(t)
	s.join(1, 1, 1000, "quiet")
	s.join(2, 2, 2000, "flood")
	start := s.now
	for n := range 50000 { // 50 s
		if n%1000 == 0 {
			s.to(1, 1, engine.ActivityRun, 0)
		} else if n%1000 == 500 {
			s.to(1, 1, engine.ActivityIdle, 0)
		}
		s.to(2, 2, engine.Activity(n%2), 0)
		s.wait(time.Millisecond)
	}
	quiet := 0
	for _, sp := range s.all(time.Minute)[0].Spans {
		if sp.Who.PID == 1 {
			quiet++
			if sp.To.Sub(sp.From) != 500*time.Millisecond {
				t.Fatalf("span %v+%v", sp.From.Sub(start), sp.To.Sub(sp.From))
			}
		}
	}
	if quiet != 50 {
		t.Errorf("%d spans of the quiet program, want 50", quiet)
	}
}

func TestSeries(t *testing.T) {
	s := newScene(t)
	who := s.join(1, 10, 1000, "a")
	view := loop.ClientView{Identity: who, Queues: []loop.QueueView{{Device: gpu}}}
	s.Sample(s.now, []loop.ClientView{view})
	for range 90 {
		s.to(1, 10, engine.ActivityRun, 0)
		s.wait(125 * time.Millisecond)
		s.to(1, 10, engine.ActivityWait, 20)
		s.wait(250 * time.Millisecond)
		s.to(1, 10, engine.ActivityStopped, 20)
		s.wait(125 * time.Millisecond)
		s.to(1, 10, engine.ActivityRun, 0)
		s.wait(125 * time.Millisecond)
		s.to(1, 10, engine.ActivityIdle, 0)
		s.wait(375 * time.Millisecond)
		view.Queues[0].Ran += 250 * time.Millisecond
		view.Queues[0].Preemptions += 2
		s.Sample(s.now, []loop.ClientView{view})
	}
	points := s.all(time.Minute)[0].Series[0].Points
	if len(points) != 60 {
		t.Fatalf("%d points", len(points))
	}
	for i, p := range points {
		if p.Share != 0.25 || p.Waited != 0.375 || p.Preemptions != 2 || p.P99US < 625e3 || p.P99US > 720e3 {
			t.Fatalf("point %d: %+v", i, p)
		}
	}
	hour := s.all(time.Hour)[0].Series[0].Points
	if last := hour[len(hour)-2]; len(hour) != 120 || last.Preemptions != 60 || last.Share < 0.249 || last.Share > 0.251 || last.Waited < 0.374 || last.Waited > 0.376 || last.P99US < 625e3 {
		t.Errorf("%d coarse points, one is %+v", len(hour), last)
	}
	if first := hour[0]; first != (Point{}) {
		t.Errorf("an hour ago: %+v", first)
	}
	// A missed sample fills the gap with the average.
	s.wait(3 * time.Second)
	view.Queues[0].Ran += 3 * time.Second / 2
	s.Sample(s.now, []loop.ClientView{view})
	points = s.all(time.Minute)[0].Series[0].Points
	for _, p := range points[57:] {
		if p.Share != 0.5 {
			t.Errorf("filled point %+v", p)
		}
	}
}

// After lost transitions, the next sample sets the states, and the answer says from when on it is complete.
func TestLostTransitions(t *testing.T) {
	s := newScene(t)
	who := s.join(1, 10, 1000, "a")
	for n := range record.TraceEvents + 2 { // nobody reads; the last state is lost
		s.to(1, 10, engine.Activity(n%2), 0)
		s.now = s.now.Add(time.Microsecond)
	}
	s.now = s.now.Add(time.Second)
	view := loop.ClientView{Identity: who, Queues: []loop.QueueView{{Device: gpu, Busy: true, Want: model.Desired{Suspend: 3}}}}
	s.Sample(s.now, []loop.ClientView{view})
	mended := s.now
	s.wait(time.Second)
	got := s.all(time.Minute)[0]
	if last := got.Spans[len(got.Spans)-1]; last.State != engine.ActivityStopped || last.From != mended || got.Complete != mended {
		t.Errorf("%+v, complete from %v, want %v", last, got.Complete, mended)
	}
}

// A user with many short programs displaces the past of nobody else.
func TestEviction(t *testing.T) {
	s := newScene(t)
	old := s.join(1, 1, 1000, "old")
	s.to(1, 1, engine.ActivityRun, 0)
	s.wait(time.Millisecond)
	s.to(1, 1, engine.ActivityIdle, 0)
	s.wait(time.Millisecond)
	s.Left(s.now, old)
	for i := 2; i < MaxLanes+200; i++ {
		who := s.join(i, i, 2000, "short")
		s.to(i, i, engine.ActivityRun, 0)
		s.wait(time.Microsecond)
		s.Left(s.now, who)
	}
	if len(s.lanes) > MaxLanes || len(s.byID) > MaxLanes {
		t.Errorf("%d lanes, %d known", len(s.lanes), len(s.byID))
	}
	if s.lanes[laneKey{1, gpu}] == nil {
		t.Error("the past of uid 1000 is gone")
	}
}

// The report of one period is bounded in all and by user.
// TestInventedDevices: one user names more devices than a history has, and as many programs. The GPUs and
// programs of two others have their timelines, whether they came before or after.
func TestInventedDevices(t *testing.T) {
	s := newScene(t)
	run := func(session, uid int, device model.DeviceID) {
		s.join(session, session, uid, fmt.Sprint(uid))
		s.trace.Put(engine.Transition{At: s.now, ID: model.QueueID{Session: model.SessionID(session)}, PID: session, Device: device, To: engine.ActivityRun})
		if s.now++; session%64 == 0 {
			s.wait(time.Microsecond)
		}
	}
	run(1, 1000, gpu)
	for i := range 3 * MaxLanes {
		run(10+i, 2000, model.DeviceID(0x1000+i%(2*MaxDevices)))
	}
	run(2, 1001, gpu+1)
	run(3, 1001, gpu)
	for i := range 10 {
		run(10+3*MaxLanes+i, 2000, model.DeviceID(0x9000+i))
	}
	s.wait(time.Second)
	seen := map[model.DeviceID]string{}
	for _, line := range s.all(time.Minute) {
		seen[line.Device] = text(line.Spans, 0)
	}
	for device, users := range map[model.DeviceID][]string{gpu: {"1000 run", "1001 run"}, gpu + 1: {"1001 run"}} {
		for _, user := range users {
			if !strings.Contains(seen[device], user) {
				t.Errorf("device %v has no span of %q: %q", device, user, seen[device])
			}
		}
	}
	if len(s.devices) > MaxDevices || len(s.lanes) > MaxLanes || s.Skipped() == 0 {
		t.Errorf("%d devices, %d lanes, %d skipped", len(s.devices), len(s.lanes), s.Skipped())
	}
}

func TestManyPairs(t *testing.T) {
	s := newScene(t)
	for i := range 200 {
		uid := 2000
		if i == 0 {
			uid = 1000
		}
		s.join(i+1, i+1, uid, "p")
		s.to(i+1, i+1, engine.ActivityStopped, 500)
	}
	s.wait(time.Millisecond)
	for i := range 200 {
		s.to(i+1, i+1, engine.ActivityRun, 0)
		if i == 0 {
			s.now = s.now.Add(time.Millisecond) // the others lose more
		}
	}
	s.wait(0)
	pairs, rest := s.Preemptions()
	mine := 0
	for _, p := range pairs {
		if p.Victim.User.UID == 1000 {
			mine++
		}
	}
	if len(pairs) != reportPairsOne+1 || mine != 1 || rest.Pairs != 200-len(pairs) || rest.Count != uint64(rest.Pairs) {
		t.Errorf("%d pairs, %d of uid 1000, rest %+v", len(pairs), mine, rest)
	}
}

func TestLatencies(t *testing.T) {
	for _, d := range []time.Duration{0, time.Microsecond, 5 * time.Microsecond, 999 * time.Microsecond, 3100 * time.Microsecond, time.Second, time.Hour} {
		var h latencies
		h.add(d)
		got := time.Duration(h.p99()) * time.Microsecond
		if d > 0 && d < time.Minute && (got < d || got > d+d/8+2*time.Microsecond) {
			t.Errorf("p99 of %v is %v", d, got)
		}
	}
}

// Programs that end before the trace is read, or of which the engine reports after their end, get a name
// if possible, and their lanes make room for others.
func TestShortPrograms(t *testing.T) {
	s := newScene(t)
	gone := func(session int) {
		s.trace.Put(engine.Transition{At: s.now, ID: model.QueueID{Session: model.SessionID(session)}, Device: gpu, Gone: true})
	}
	who := s.join(1, 10, 1000, "short")
	s.to(1, 10, engine.ActivityRun, 0)
	s.now = s.now.Add(time.Millisecond)
	s.Left(s.now, who)
	gone(1)
	s.wait(time.Millisecond)
	if got := s.all(time.Minute); len(got) != 1 || len(got[0].Spans) != 1 || got[0].Spans[0].Who.Command != "short" {
		t.Errorf("%+v", got)
	}
	for i := 2; i < MaxLanes+100; i++ {
		who := s.join(i, i, 1000, "late")
		s.Left(s.now, who)
		s.to(i, i, engine.ActivityRun, 0)
		if i%50 == 0 { // its session is still in a snapshot
			s.now = s.now.Add(FineStep)
			s.Sample(s.now, []loop.ClientView{{Identity: who, Queues: []loop.QueueView{{Device: gpu + 1, Ran: time.Second}}}})
		}
		gone(i)
		s.wait(0)
	}
	if len(s.programs) != 0 || len(s.byPID) != 0 {
		t.Errorf("%d ended programs are kept by session, %d by PID", len(s.programs), len(s.byPID))
	}
	s.join(5000, 5000, 2000, "other")
	s.to(5000, 5000, engine.ActivityRun, 0)
	s.wait(time.Millisecond)
	if n := s.Skipped(); n != 0 {
		t.Errorf("%d programs were not recorded", n)
	}
	s.now = s.now.Add(2 * time.Hour)
	s.Sample(s.now, nil)
	if len(s.lanes) != 1 || len(s.perUser) != 1 {
		t.Errorf("%d lanes of %d users after two hours", len(s.lanes), len(s.perUser))
	}
}
