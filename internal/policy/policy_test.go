// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"xsched/internal/model"
)

const (
	us  = time.Microsecond
	ms  = time.Millisecond
	now = model.Time(time.Hour)
)

// ago is a time before now.
func ago(d time.Duration) model.Time { return now.Add(-d) }

// viewOf makes a view of queues in the order given, which must be theirs.
func viewOf(queues ...model.Queue) *View {
	v := &View{Queues: make([]Queue, len(queues)), CanSuspend: true, Knobs: DefaultKnobs(), Processes: len(queues)}
	for i, q := range queues {
		q.ID, q.PID, q.Rank = model.QueueID{Session: model.SessionID(i + 1)}, i+1, q.Hint.Priority
		v.Queues[i] = Queue{
			Queue: q, Admitted: q.Eligible(), Ready: q.Ready(), Progressing: q.Ready() && q.Running,
			Verdict: model.Verdict{Run: q.Running}, Slice: v.Knobs.NativeSlice, Active: q.Got, Process: i, Group: -1,
		}
	}
	return v
}

// decide asks a policy about a device it has not seen before.
func decide(t testing.TB, name string, v *View) (model.Plan, model.Time) {
	t.Helper()
	p, err := New(name)
	if err != nil {
		t.Fatal(err)
	}
	return p.Decide(now, v, p.NewState())
}

// queue is a sliced Lv3 queue that progressed for 10 ms; flags: b busy, r running, h held, n no slices.
func queue(prio model.Priority, flags string) model.Queue {
	return model.Queue{
		Hint: model.Hint{Priority: prio}, Level: model.LevelInterrupt, Slices: !strings.Contains(flags, "n"),
		Busy: strings.Contains(flags, "b"), Running: strings.Contains(flags, "r"), Held: strings.Contains(flags, "h"),
		ChangedAt: ago(time.Second), WaitSince: ago(20 * ms), Got: 10 * ms,
	}
}

func with(q model.Queue, change func(*model.Queue)) model.Queue {
	change(&q)
	return q
}

// planText formats a plan as one word per queue.
func planText(plan model.Plan) string {
	words := make([]string, len(plan))
	for i, p := range plan {
		switch {
		case !p.Run:
			words[i] = "-"
		case p.Slice == 0:
			words[i] = "native"
		default:
			words[i] = p.Slice.String()
		}
	}
	return strings.Join(words, " ")
}

func TestRegistry(t *testing.T) {
	if !slices.IsSorted(Names()) || len(Names()) < 2 {
		t.Errorf("names %v", Names())
	}
	for _, name := range Names() {
		p, err := New(strings.ToLower(name))
		if err != nil || p.Name() != name || Summary(name) == "" || NameOf(Number(name)) != name {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
	_, err := New("X")
	if want := `unknown policy "X": known are ` + strings.Join(Names(), ", "); err == nil || err.Error() != want || !errors.Is(err, ErrUnknown) {
		t.Errorf("error %v", err)
	}
}

// The error of a near miss names what is meant.
func TestNearMiss(t *testing.T) {
	if _, err := New("HFP"); !errors.Is(err, ErrUnknown) || err.Error() != `unknown policy "HFP"; use HPF` {
		t.Errorf("error %v", err)
	}
}

// A typing error is corrected if it can only mean one name.
func TestRemedy(t *testing.T) {
	all := "use one of " + strings.Join(Names(), ", ")
	for name, want := range map[string]string{
		"HFP": "use HPF", "cfss": "use CFS", "mflq": "use MLFQ", "X": all, "nonsense": all, "": all, "hpf/intime": "use HPF/in-time",
		"FPS": "use one of " + strings.Join(Names(), ", "), "UUP": "use one of PUP, UP",
	} {
		if got := Remedy(name); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}

func TestHPF(t *testing.T) {
	late := func(q *model.Queue) { q.Got = 60 * ms }
	for _, c := range []struct {
		name   string
		queues []model.Queue
		want   string
		wake   time.Duration // after now; -1: never
	}{
		{"nobody", nil, "", -1},
		{"one alone", []model.Queue{queue(0, "br")}, "native", -1},
		{"equals share natively", []model.Queue{queue(0, "br"), queue(0, "b"), queue(0, "")}, "native native native", -1},
		{"equal background work has longer slices", []model.Queue{queue(-1, "br"), queue(-1, "b")}, "10ms 10ms", -1},
		{"one background program", []model.Queue{queue(-1, "br")}, "native", -1},
		{"held and never", []model.Queue{queue(3, "bh"), queue(0, "b"), queue(model.PriorityNever, "b")}, "- native -", -1},
		{"idle high, idle lows: one enabled", []model.Queue{queue(9, "r"), queue(0, ""), queue(0, "r")}, "1s - 1µs", -1},
		{"a low that never ran", []model.Queue{queue(9, "r"), queue(0, ""), queue(0, "")}, "1s 1µs -", -1},
		{"busy high beside an active low", []model.Queue{queue(9, "br"), queue(0, "br"), queue(0, "b")}, "1s 1µs -", -1},
		{"a turn goes on", []model.Queue{queue(9, "r"), queue(0, "b"), queue(0, "br")}, "1s - 1µs", 40 * ms},
		{"a turn ends", []model.Queue{queue(9, "r"), queue(0, "b"), with(queue(0, "br"), late)}, "1s 1µs -", 50 * ms},
		{"nobody else to turn to", []model.Queue{queue(9, "r"), queue(0, ""), with(queue(0, "br"), late)}, "1s - 1µs", -1},
		{"a gap is held over", []model.Queue{
			queue(9, "r"), queue(0, "b"), with(queue(0, "r"), func(q *model.Queue) { q.ChangedAt = ago(200 * us) }),
		}, "1s - 1µs", 300 * us},
		{"a longer gap is not", []model.Queue{
			queue(9, "r"), queue(0, "b"), with(queue(0, "r"), func(q *model.Queue) { q.ChangedAt = ago(500 * us) }),
		}, "1s 1µs -", -1},
		{"the middle class goes first", []model.Queue{queue(9, "r"), queue(1, "b"), queue(0, "br")}, "1s 1µs -", -1},
		{"the longest waiting is next", []model.Queue{
			queue(9, "r"), queue(0, "b"), with(queue(0, "b"), func(q *model.Queue) { q.WaitSince = ago(90 * ms) }), with(queue(0, "br"), late),
		}, "1s - 1µs -", 50 * ms},
		{"two busy highs share", []model.Queue{queue(9, "br"), queue(9, "br"), queue(0, "br")}, "10ms 10ms 1µs", -1},
		{"no slices: stopped while the high works", []model.Queue{queue(9, "brn"), queue(0, "brn"), queue(0, "bn")}, "native - -", -1},
		{"no slices: one low while it is idle", []model.Queue{queue(9, "rn"), queue(0, "brn"), queue(0, "bn")}, "native native -", 40 * ms},
		{"no slices: held over the high's gap", []model.Queue{
			with(queue(9, "rn"), func(q *model.Queue) { q.ChangedAt = ago(100 * us) }), queue(0, "bn"),
		}, "native -", 400 * us},
		{"slices for the high only", []model.Queue{queue(9, "br"), queue(0, "brn")}, "1s -", -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan, wake := decide(t, "HPF", viewOf(c.queues...))
			check(t, plan, wake, c.want, c.wake)
		})
	}
}

func check(t *testing.T, plan model.Plan, wake model.Time, want string, after time.Duration) {
	t.Helper()
	if got := planText(plan); got != want {
		t.Errorf("plan %q, want %q", got, want)
	}
	expect := model.Never
	if after >= 0 {
		expect = now.Add(after)
	}
	if wake != expect {
		t.Errorf("wake %v after now, want %v", wake.Sub(now), after)
	}
}

func TestHPFTimesliceOnly(t *testing.T) {
	for _, c := range []struct {
		queues []model.Queue
		want   string
	}{
		{[]model.Queue{queue(9, "br"), queue(0, "br")}, "1s 1µs"},
		{[]model.Queue{queue(9, "br"), queue(0, "br"), queue(0, "")}, "50ms native native"},
		{[]model.Queue{queue(9, "brn"), queue(0, "br")}, "native native"},
		{[]model.Queue{queue(9, "br"), queue(0, "bh"), queue(model.PriorityNever, "b")}, "native - -"},
	} {
		v := viewOf(c.queues...)
		v.CanSuspend = false
		plan, wake := decide(t, "HPF", v)
		check(t, plan, wake, c.want, -1)
	}
}

func TestFIFO(t *testing.T) {
	first := func(q *model.Queue) { q.ChangedAt = ago(2 * time.Second) }
	for _, c := range []struct {
		name   string
		queues []model.Queue
		share  bool
		want   string
	}{
		{"nobody", nil, false, ""},
		{"all idle: one enabled", []model.Queue{queue(3, ""), queue(0, "r")}, false, "- native"},
		{"the first", []model.Queue{queue(3, "b"), with(queue(0, "b"), first)}, false, "- native"},
		{"a running one goes on", []model.Queue{with(queue(3, "b"), first), queue(0, "br")}, false, "- native"},
		{"held", []model.Queue{with(queue(3, "bhr"), first), queue(0, "b")}, false, "- native"},
		{"no stops: a long slice instead", []model.Queue{queue(3, "b"), with(queue(0, "b"), first)}, true, "native 1s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := viewOf(c.queues...)
			v.CanSuspend = !c.share
			plan, wake := decide(t, "FIFO", v)
			check(t, plan, wake, c.want, -1)
		})
	}
}

func TestStarvationBound(t *testing.T) {
	starved := func(q *model.Queue) { q.WaitSince = ago(2 * time.Second) }
	p, err := New("HPF")
	if err != nil {
		t.Fatal(err)
	}
	three := func() *View { return viewOf(queue(9, "br"), queue(0, "br"), with(queue(0, "b"), starved)) }
	v, st := three(), p.NewState()
	plan, wake := p.Decide(now, v, st)
	check(t, plan, wake, "native - 10ms", 50*ms)
	if st.Grants() != 1 {
		t.Errorf("%d grants", st.Grants())
	}
	plan, _ = p.Decide(now.Add(49*ms), v, st)
	if got := planText(plan); got != "native - 10ms" {
		t.Errorf("within the grant %q", got)
	}
	plan, _ = p.Decide(now.Add(50*ms), v, st)
	if got := planText(plan); got != "1s 1µs -" {
		t.Errorf("after the grant %q", got)
	}

	plan, wake = p.Decide(now, viewOf(queue(9, "brn"), with(queue(0, "bn"), starved)), p.NewState())
	check(t, plan, wake, "native native", 50*ms)

	v = three()
	v.Knobs.StarvationBound = 0
	plan, wake = p.Decide(now, v, p.NewState())
	check(t, plan, wake, "1s 1µs -", -1)

	// Too many queues for the bound: it stretches, so that the high keeps the device.
	many := []model.Queue{queue(9, "br"), queue(0, "br")}
	for range 40 {
		many = append(many, with(queue(0, "b"), starved))
	}
	st = p.NewState()
	if plan, _ = p.Decide(now, viewOf(many...), st); st.Granted() || plan[0].Slice != time.Second {
		t.Errorf("a grant with %d queues waiting", len(many)-2)
	}
}

// TestTurnsChangeAfterRequests: beside a high with several requests per quantum, the turn of equal lows changes when a
// request has just ended. Beside others it changes when it is over.
func TestTurnsChangeAfterRequests(t *testing.T) {
	const ms, quantum = time.Millisecond, 50 * time.Millisecond
	at := func(d time.Duration) model.Time { return model.Time(time.Hour).Add(d) }
	for _, c := range []struct {
		name   string
		period time.Duration
		idle   time.Duration // since the last request
		over   time.Duration
		want   time.Duration // from now
	}{
		{"a request has just ended", 10 * ms, ms / 2, 0, 0},
		{"one may arrive", 10 * ms, 5 * ms, 0, 95 * ms},
		{"over for long", 10 * ms, 5 * ms, 60 * ms, 40 * ms},
		{"over for too long", 10 * ms, 5 * ms, 100 * ms, 0},
		{"no request for long", 10 * ms, 100 * ms, 0, 0},
		{"one request per quantum", 50 * ms, 5 * ms, 0, 95 * ms},
		{"requests are rare", 51 * ms, 5 * ms, 0, 0},
	} {
		var r rhythm
		for i := range 10 {
			r.follow(at(time.Duration(i) * c.period))
			r.follow(0) // one is at work
		}
		now := at(9 * c.period).Add(c.idle)
		if got := r.changeAt(now, c.over, quantum); got != now.Add(c.want) {
			t.Errorf("%s: in %v, want %v", c.name, got.Sub(now), c.want)
		}
	}
	var burst rhythm
	for _, ms := range []time.Duration{0, 10, 20, 30, 5000, 5010} {
		burst.follow(at(ms * time.Millisecond))
	}
	if burst.period != 10*ms {
		t.Errorf("a pause counts as a period: %v", burst.period)
	}
	if now := at(0); (rhythm{}).changeAt(now, 0, quantum) != now {
		t.Error("a turn waits for requests that never came")
	}
	queue := func(ended time.Duration, change func(*Queue)) Queue {
		q := Queue{Admitted: true}
		if q.ChangedAt = at(ended); change != nil {
			change(&q)
		}
		return q
	}
	for _, c := range []struct {
		name   string
		second Queue
		want   model.Time
	}{
		{"both have ended", queue(7*ms, nil), at(7 * ms)},
		{"one works", queue(7*ms, func(q *Queue) { q.Ready = true }), 0},
		{"one goes on after a pause", queue(7*ms, func(q *Queue) { q.Feeding.Paused = true }), 0},
		{"one takes no part", queue(7*ms, func(q *Queue) { q.Admitted, q.Ready = false, true }), at(5 * ms)},
	} {
		v := View{Queues: []Queue{queue(5*ms, nil), c.second}}
		if got := v.lastRequest(0, 2); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
