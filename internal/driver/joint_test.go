// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"xsched/internal/model"
)

// device makes calls for jointTargets, with the cost of a call.
type device struct {
	mu    sync.Mutex
	calls [][]string // members of each call
	cost  func(parts int) time.Duration
	fail  error // of shared calls
}

func (d *device) call(names ...string) error {
	if d.cost != nil {
		time.Sleep(d.cost(len(names)))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, names)
	if len(names) > 1 {
		return d.fail
	}
	return nil
}

// jointTarget joins others as driver targets do, and acts alone where that fails.
type jointTarget struct {
	fakeTarget
	name        string
	device      *device
	before      func() // runs before the target joins
	late        atomic.Bool
	invalidated atomic.Int32
}

func (t *jointTarget) Invalidate() { t.invalidated.Add(1) }

func (t *jointTarget) Apply(ctx context.Context, want model.Desired) error {
	if t.before != nil {
		t.before()
	}
	shared, err := false, error(nil)
	if seat := SeatOf(ctx); seat != nil {
		shared, err = seat.Join(t.name, func(parts []any) []error {
			var names []string
			for _, p := range parts {
				names = append(names, p.(string))
			}
			err, errs := t.device.call(names...), make([]error, len(parts))
			for i := range errs {
				errs[i] = err
			}
			return errs
		})
		t.late.Store(t.late.Load() || Late(err))
	}
	if !shared || err != nil {
		if err = t.device.call(t.name); err != nil {
			return err
		}
	}
	return t.fakeTarget.Apply(ctx, want)
}

type team struct {
	*device
	targets []*jointTarget
	workers []*Worker
	pages   []*fakePage
	clock   *clock
	window  func() <-chan struct{}
}

// fakeWindow is window with the clock of a synctest bubble.
func fakeWindow() <-chan struct{} {
	over := make(chan struct{})
	time.AfterFunc(joinMax, func() { close(over) })
	return over
}

func newTeam(t *testing.T, n int) *team {
	team := &team{device: &device{}, clock: &clock{}, window: fakeWindow}
	for i := range n {
		target, page := &jointTarget{name: string(rune('a' + i)), device: team.device}, &fakePage{}
		w, _, _ := start(t, target, page, team.clock)
		team.targets, team.workers, team.pages = append(team.targets, target), append(team.workers, w), append(team.pages, page)
	}
	return team
}

func (tm *team) want(t *testing.T, d model.Desired) []<-chan struct{} {
	t.Helper()
	var requests []Request
	for _, w := range tm.workers {
		requests = append(requests, Request{Worker: w, Want: d})
	}
	return wantAll(requests, tm.window)
}

func (tm *team) end() {
	for _, w := range tm.workers {
		<-w.Stop(false)
	}
}

// sizes returns the number of members of each call.
func (tm *team) sizes() (out []int) {
	tm.mu.Lock()
	defer tm.mu.Unlock()
	for _, c := range tm.calls {
		out = append(out, len(c))
	}
	return out
}

func equal(t *testing.T, what string, got []int, want ...int) {
	t.Helper()
	same := len(got) == len(want)
	for i := range want {
		same = same && got[i] == want[i]
	}
	if !same {
		t.Errorf("%s: calls of %v members, want %v", what, got, want)
	}
}

// What one decision wants of several workers is one call, without any wait. Each has its own lease.
func TestOneCallForOneDecision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tm := newTeam(t, 3)
		began := time.Now()
		for _, done := range tm.want(t, stop) {
			<-done
		}
		for i, p := range tm.pages {
			if _, deadline := p.get(); deadline == 0 {
				t.Errorf("worker %d stops without a lease", i)
			}
		}
		for _, done := range tm.want(t, run) {
			<-done
		}
		for i, p := range tm.pages {
			if _, deadline := p.get(); deadline != 0 {
				t.Errorf("the lease of worker %d is left", i)
			}
		}
		equal(t, "stop and resume of three", tm.sizes(), 3, 3)
		if d := time.Since(began); d != 0 {
			t.Errorf("they waited %v for each other", d)
		}
		tm.end()
	})
}

// Decision to stopped, with the costs of an H200: 0.66 ms for one process, 0.08 ms for each further one.
func TestTimeToStopThree(t *testing.T) {
	cost := func(n int) time.Duration { return 580*time.Microsecond + time.Duration(n)*80*time.Microsecond }
	for n, want := range map[int]time.Duration{1: 660 * time.Microsecond, 3: 820 * time.Microsecond} {
		synctest.Test(t, func(t *testing.T) {
			tm := newTeam(t, n)
			tm.cost = cost
			began := time.Now()
			for _, done := range tm.want(t, stop) {
				<-done
			}
			if d := time.Since(began); d != want {
				t.Errorf("%d processes are stopped after %v, want %v", n, d, want)
			}
			tm.end()
		})
	}
}

// A worker that is busy, or that a newer state or its end takes away, delays nobody.
func TestNobodyWaitsForAnAbsentMember(t *testing.T) {
	for name, away := range map[string]func(tm *team, hang chan struct{}){
		"busy": func(tm *team, hang chan struct{}) {
			tm.targets[0].before = func() { <-hang }
			tm.workers[0].Want(model.Desired{Slice: 1})
			synctest.Wait()
		},
		"ended": func(tm *team, _ chan struct{}) { <-tm.workers[0].Stop(false) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tm, hang := newTeam(t, 3), make(chan struct{})
				away(tm, hang)
				began := time.Now()
				tried := tm.want(t, stop)
				<-tried[1]
				<-tried[2]
				if d := time.Since(began); d != 0 {
					t.Errorf("the others waited %v", d)
				}
				equal(t, name, tm.sizes(), 2)
				close(hang)
				<-tried[0]
				tm.end()
			})
		})
	}
}

// A member that needs long before its call, such as one that probes new handles, is left behind.
func TestSlowMemberActsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tm := newTeam(t, 3)
		tm.targets[1].before = func() { time.Sleep(5 * time.Millisecond) }
		began := time.Now()
		tried := tm.want(t, stop)
		<-tried[0]
		<-tried[2]
		if d := time.Since(began); d != joinMax {
			t.Errorf("the others waited %v, want %v", d, joinMax)
		}
		<-tried[1]
		equal(t, "slow member", tm.sizes(), 2, 1)
		tm.end()
	})
}

// The others wait for it for less time than a call takes, also while the process is idle.
func TestSlowMemberCostsLittle(t *testing.T) {
	tm := newTeam(t, 2)
	tm.window = window
	tm.targets[1].before = func() { time.Sleep(3 * time.Millisecond) }
	var waits []time.Duration
	for i := range 40 {
		began := time.Now()
		tried := tm.want(t, []model.Desired{stop, run}[i%2])
		<-tried[0]
		waits = append(waits, time.Since(began))
		<-tried[1]
	}
	tm.end()
	slices.Sort(waits)
	if usual := waits[len(waits)/4]; usual > 700*time.Microsecond {
		t.Errorf("waited %v", usual)
	}
}

// A failed shared call is repeated by each worker alone.
func TestFailedCallIsSplit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tm := newTeam(t, 3)
		tm.fail = errors.New("refused")
		for _, done := range tm.want(t, stop) {
			<-done
		}
		equal(t, "refused", tm.sizes(), 3, 1, 1, 1)
		for i, w := range tm.workers {
			if d, _ := tm.targets[i].last(); d != stop || w.Stats().Errors != 0 {
				t.Errorf("worker %d: %+v, %+v", i, d, w.Stats())
			}
		}
		tm.end()
	})
}

// A shared call that hangs stalls only the worker whose call it is. When it returns, the others assume
// nothing about their hardware, and a process that left meanwhile is freed once more.
func TestHungCallStallsOneWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tm := newTeam(t, 3)
		hang := make(chan struct{})
		tm.cost = func(parts int) time.Duration {
			if parts > 1 {
				<-hang
			}
			return 0
		}
		began := time.Now()
		tried := tm.want(t, stop)
		lead, others := -1, []int(nil)
		time.Sleep(joinMax + jointPatience)
		synctest.Wait()
		for i := range tried {
			select {
			case <-tried[i]:
				others = append(others, i)
			default:
				lead = i
			}
		}
		if len(others) != 2 || time.Since(began) != joinMax+jointPatience {
			t.Fatalf("%v acted after %v", others, time.Since(began))
		}
		stays, leaves := others[0], others[1]
		<-tm.workers[stays].Want(run)
		gone := tm.workers[leaves].Stop(true)
		time.Sleep(time.Second)
		synctest.Wait()
		select {
		case <-gone:
			t.Error("a worker ended before the shared call returned, which may suspend its process")
		default:
		}
		if tm.workers[leaves].Restored() {
			t.Error("reported as restored too early")
		}
		before, _ := tm.targets[stays].last()
		_, ops := tm.targets[stays].last()
		close(hang)
		<-gone
		<-tried[lead]
		synctest.Wait()
		if _, n := tm.targets[stays].last(); before != run || n != ops+1 || tm.targets[stays].invalidated.Load() == 0 {
			t.Errorf("the member that stayed was left as it was: %+v, %d operations, then %d", before, ops, n)
		}
		if d, _ := tm.targets[leaves].last(); d != run || !tm.workers[leaves].Restored() {
			t.Errorf("the member that left is at %+v", d)
		}
		tm.end()
	})
}

// While a shared call is open, its members make no other one: two that take effect late would suspend a
// process more often than a resume undoes.
func TestOneOpenCallAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tm := newTeam(t, 3)
		hang := make(chan struct{})
		tm.cost = func(parts int) time.Duration {
			if parts == 3 {
				<-hang
			}
			return 0
		}
		tm.want(t, stop)
		time.Sleep(joinMax + jointPatience)
		synctest.Wait()
		tm.want(t, run)
		synctest.Wait()
		equal(t, "with an open call", tm.sizes(), 1, 1, 1, 1)
		close(hang)
		synctest.Wait()
		hang = make(chan struct{})
		close(hang)
		before := len(tm.sizes())
		for _, done := range tm.want(t, stop) {
			<-done
		}
		equal(t, "after it", tm.sizes()[before:], 3)
		tm.end()
	})
}

// A lease that ends during the call voids only its own suspension.
func TestLeaseEndsDuringTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tm := newTeam(t, 2)
		tm.cost = func(parts int) time.Duration {
			if parts > 1 {
				tm.pages[1].recover()
			}
			return 0
		}
		for _, done := range tm.want(t, stop) {
			<-done
		}
		a, _ := tm.targets[0].last()
		b, _ := tm.targets[1].last()
		if a != stop || b != run || tm.workers[1].Stats().Undone != 1 || tm.workers[0].Stats().Undone != 0 {
			t.Errorf("%+v and %+v", a, b)
		}
		tm.end()
	})
}

// A resume that is wanted while the suspension is in flight follows it.
func TestResumeDuringTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tm := newTeam(t, 3)
		tm.cost = func(int) time.Duration { return time.Millisecond }
		tm.want(t, stop)
		time.Sleep(500 * time.Microsecond)
		for _, done := range tm.want(t, run) {
			<-done
		}
		for i, target := range tm.targets {
			if d, n := target.last(); d != run || n != 2 {
				t.Errorf("worker %d ends at %+v after %d operations", i, d, n)
			}
		}
		tm.end()
	})
}
