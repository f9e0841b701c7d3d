// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"xsched/internal/clock"
	"xsched/internal/driver"
	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

type leasePage struct{}

func (leasePage) WriteLease(uint64, model.Time) {}
func (leasePage) WriteLeaseDeadline(model.Time) {}
func (leasePage) RecoveredEpoch() uint64        { return 0 }

// lows are processes with a worker each. Their clients are 0x10, 0x20 and so on, and their n channels
// begin at 100.
type lows struct {
	t       *testing.T
	rm      *fakeRM
	metrics *driver.Metrics
	objects []*Objects
	workers []*driver.Worker
}

func newLows(t *testing.T, processes, channels int) *lows {
	l := &lows{t: t, rm: newFakeRM(), metrics: &driver.Metrics{}}
	d := &Driver{transport: l.rm, ungated: true}
	for i := range processes {
		s := NewObjects(d, Limits{Clients: 4, Objects: 300}, l.metrics)
		s.process = 1000 + i
		l.rm.newContext(t, s, l.client(i), fakeGPU, channels)
		if _, err := s.Resolve(context.Background()); err != nil {
			t.Fatal(err)
		}
		lease := driver.NewLease(leasePage{}, time.Minute)
		w := driver.StartWorker(s.Target(fakeDevice), lease, l.metrics, slog.New(slog.DiscardHandler), clock.Now)
		t.Cleanup(func() { <-w.Stop(false); s.Close() })
		l.objects, l.workers = append(l.objects, s), append(l.workers, w)
	}
	return l
}

func (l *lows) client(i int) uint32 { return uint32(0x10 * (i + 1)) }

// reach brings all processes to a state by one decision, and returns the requests by command.
func (l *lows) reach(d model.Desired) map[uint32]int {
	l.t.Helper()
	l.rm.mu.Lock()
	l.rm.calls, l.rm.lists = map[uint32]int{}, nil
	l.rm.mu.Unlock()
	var requests []driver.Request
	for _, w := range l.workers {
		requests = append(requests, driver.Request{Worker: w, Want: d})
	}
	for _, done := range driver.WantAll(requests) {
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			l.t.Fatal("never reached")
		}
	}
	l.rm.mu.Lock()
	defer l.rm.mu.Unlock()
	return l.rm.calls
}

// expect checks every channel: "" runs, "3" is stopped once at level 3. Copy channels run always.
func (l *lows) expect(what, state string) {
	l.t.Helper()
	for i := range l.workers {
		for handle, o := range l.rm.clients[l.client(i)] {
			if o.kind != kindChannel {
				continue
			}
			want := state
			if handle < 100 {
				want = ""
			}
			if got := l.rm.object(l.client(i), handle).stopped; got != want {
				l.t.Errorf("%s: channel %d of process %d is %q, want %q", what, handle, i, got, want)
			}
		}
	}
}

const disableCmd = abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS

var (
	stopped = model.Desired{Suspend: model.LevelInterrupt}
	running = model.Desired{}
)

// shares repeats a decision until all processes were in one request. On a loaded machine a worker may be
// late for it.
func (l *lows) shares(what string) {
	l.t.Helper()
	for range 50 {
		stop := l.reach(stopped)[disableCmd]
		l.expect(what, "3")
		resume := l.reach(running)[disableCmd]
		l.expect(what, "")
		if stop == 1 && resume == 1 {
			return
		}
	}
	l.t.Errorf("%s: never in one request", what)
}

func TestOneRequestForThreeProcesses(t *testing.T) {
	l := newLows(t, 3, 8)
	l.shares("three")
	if l.metrics.Shared.Load() < 4 {
		t.Errorf("%d operations were shared", l.metrics.Shared.Load())
	}
	if s, r := l.metrics.Suspends.Load(), l.metrics.Resumes.Load(); l.metrics.Split.Load() == 0 && (s%3 != 0 || s != r) {
		t.Errorf("%d suspends and %d resumes of three processes", s, r)
	}
}

// A request has at most 64 channels. Processes that do not fit make their own.
func TestRequestIsBounded(t *testing.T) {
	l := newLows(t, 4, 20)
	for range 20 {
		l.reach(stopped)
		l.expect("eighty channels", "3")
		for _, n := range l.rm.lists {
			if n > 64 {
				t.Fatalf("a request of %d channels", n)
			}
		}
		l.reach(running)
		l.expect("eighty channels", "")
	}
	if l.metrics.Shared.Load() == 0 {
		t.Error("no request was shared")
	}
}

// A driver that refuses clients of other files gets one request per process, soon without an attempt.
func TestRefusedSharing(t *testing.T) {
	l := newLows(t, 3, 8)
	l.rm.ownOnly = true
	for range 30 {
		l.reach(stopped)
		l.expect("refused", "3")
		l.reach(running)
		l.expect("refused", "")
	}
	if split := l.metrics.Split.Load(); split == 0 || split > 24 { // each of three carriers fails once with both others
		t.Errorf("%d operations were repeated", split)
	}
	l.rm.ownOnly = false
	for _, s := range l.objects {
		s.mu.Lock()
		for process, p := range s.apart {
			p.until = time.Now()
			s.apart[process] = p
		}
		s.mu.Unlock()
	}
	l.shares("allowed again")
}

// A refused request may have stopped some channels. The next resume frees them nevertheless.
func TestPartlyRefusedSharing(t *testing.T) {
	l := newLows(t, 3, 8)
	l.rm.ownOnly, l.rm.partly = true, true
	for range 10 {
		l.reach(stopped)
		l.reach(running)
		l.expect("partly refused", "")
	}
	if l.metrics.Split.Load() == 0 {
		t.Error("nothing was refused")
	}
}

// A process frees its client without a word, and a stranger gets the number: the daemon must not touch
// the stranger's channels, whether the change comes before the request or during it.
func TestReusedClientNumber(t *testing.T) {
	for _, when := range []string{"before", "during"} {
		t.Run(when, func(t *testing.T) {
			l := newLows(t, 3, 8)
			l.shares("before the change")
			replaced := map[uint32]bool{}
			reuse := func(carrier uint32) {
				for i := range 3 {
					// The client of a call in progress can't be freed.
					if c := l.client(i); c != carrier && len(replaced) < 2 {
						l.rm.owner[c], replaced[c] = 1<<40, true
						for _, o := range l.rm.clients[c] {
							o.touched = false
						}
					}
				}
			}
			l.rm.mu.Lock()
			if when == "before" {
				reuse(0)
			} else {
				l.rm.inside = reuse
			}
			l.rm.mu.Unlock()
			for range 20 {
				l.reach(stopped)
				if len(replaced) > 0 {
					break
				}
				l.reach(running)
			}
			l.rm.mu.Lock()
			defer l.rm.mu.Unlock()
			if len(replaced) != 2 {
				t.Fatalf("replaced %v", replaced)
			}
			for c := range replaced {
				for handle, o := range l.rm.clients[c] {
					if o.stopped != "" || when == "before" && o.touched {
						t.Errorf("channel %d of the stranger with client %#x is %q", handle, c, o.stopped)
					}
				}
			}
		})
	}
}

// The same for the second client of the process whose file carries the request.
func TestReusedClientOfTheCarrier(t *testing.T) {
	l := newLows(t, 3, 8)
	for i, s := range l.objects {
		l.rm.newContext(t, s, l.client(i)+1, fakeGPU, 8)
		if _, err := s.Resolve(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	l.shares("before the change")
	var stranger uint32
	l.rm.mu.Lock()
	l.rm.inside = func(carrier uint32) {
		if stranger == 0 {
			stranger = carrier + 1
			l.rm.owner[stranger] = 1 << 40
		}
	}
	l.rm.mu.Unlock()
	for range 20 {
		l.reach(stopped)
		if stranger != 0 {
			break
		}
		l.reach(running)
	}
	l.rm.mu.Lock()
	defer l.rm.mu.Unlock()
	if stranger == 0 {
		t.Fatal("nothing was shared")
	}
	for handle, o := range l.rm.clients[stranger] {
		if o.stopped != "" {
			t.Errorf("channel %d of the stranger with client %#x is %q", handle, stranger, o.stopped)
		}
	}
}

// The same for a process whose worker did not wait for the reply.
func TestReusedClientOfALateMember(t *testing.T) {
	l := newLows(t, 3, 8)
	var first atomic.Pointer[chan struct{}] // what the next FIFO_DISABLE waits for
	var carrier atomic.Uint32
	l.rm.enter = func(cmd, client, _ uint32) {
		if cmd != disableCmd {
			return
		}
		if hang := first.Swap(nil); hang != nil {
			carrier.Store(client)
			<-*hang
		}
	}
	for range 20 {
		hang := make(chan struct{})
		first.Store(&hang)
		split := l.metrics.Split.Load()
		var requests []driver.Request
		for _, w := range l.workers {
			requests = append(requests, driver.Request{Worker: w, Want: stopped})
		}
		tried := driver.WantAll(requests)
		lead := -1
		for i := range tried {
			select {
			case <-tried[i]:
			case <-time.After(500 * time.Millisecond):
				lead = i
			}
		}
		if lead < 0 || l.client(lead) != carrier.Load() || l.metrics.Split.Load() != split+2 {
			close(hang) // on a loaded machine, a worker may be late for the request
			l.reach(running)
			continue
		}
		stranger := l.client((lead + 1) % 3)
		l.rm.mu.Lock()
		l.rm.owner[stranger] = 1 << 40
		for _, o := range l.rm.clients[stranger] {
			o.stopped = ""
		}
		l.rm.mu.Unlock()
		close(hang)
		<-tried[lead]
		l.rm.mu.Lock()
		defer l.rm.mu.Unlock()
		for handle, o := range l.rm.clients[stranger] {
			if o.stopped != "" {
				t.Errorf("channel %d of the stranger is %q", handle, o.stopped)
			}
		}
		return
	}
	t.Error("nothing was shared")
}

// A process that needs more than one step does not keep the others waiting.
func TestNobodyWaitsForAnUnevenProcess(t *testing.T) {
	l := newLows(t, 2, 8)
	var uneven atomic.Pointer[chan struct{}] // what a FIFO_DISABLE of process 1 waits for
	l.rm.enter = func(cmd, client, _ uint32) {
		if hang := uneven.Load(); hang != nil && cmd == disableCmd && client == l.client(1) {
			<-*hang
		}
	}
	best := time.Hour
	for range 50 {
		l.objects[1].Target(fakeDevice).Invalidate()
		hang := make(chan struct{})
		uneven.Store(&hang)
		began := time.Now()
		tried := driver.WantAll([]driver.Request{{Worker: l.workers[0], Want: stopped}, {Worker: l.workers[1], Want: stopped}})
		<-tried[0]
		best = min(best, time.Since(began))
		close(hang)
		<-tried[1]
		l.reach(running)
	}
	limit := 200 * time.Microsecond // for which the others would wait
	if raceEnabled {
		limit = 2 * time.Millisecond // with the detector, the first step takes longer than they wait
	}
	if best >= limit {
		t.Errorf("stopped after %v at best", best)
	}
}

// A process of the request ends, or frees a channel, without a word: the others are stopped all the same.
func TestMemberEnds(t *testing.T) {
	for what, vanish := range map[string]func(*lows){
		"its client": func(l *lows) { delete(l.rm.clients, l.client(1)); delete(l.rm.owner, l.client(1)) },
		"a channel":  func(l *lows) { delete(l.rm.clients[l.client(1)], 103) },
	} {
		t.Run(what, func(t *testing.T) {
			l := newLows(t, 3, 8)
			l.shares("before the end")
			l.rm.mu.Lock()
			vanish(l)
			l.rm.mu.Unlock()
			for range 5 {
				l.reach(stopped)
				for _, i := range []int{0, 2} {
					for h := uint32(100); h < 108; h++ {
						if o := l.rm.object(l.client(i), h); o.stopped == "" {
							t.Errorf("channel %d of process %d runs", h, i)
						}
					}
				}
				l.reach(running)
				l.expect(what, "")
			}
		})
	}
}

// Processes at different levels, or with channels that need more than one step, act alone.
func TestUnevenProcesses(t *testing.T) {
	l := newLows(t, 3, 8)
	l.objects[1].Target(fakeDevice).Invalidate()
	l.reach(stopped)
	l.expect("one of unknown state", "3")
	l.reach(running)
	l.expect("one of unknown state", "")
	l.shares("afterwards")
	l.reach(model.Desired{Suspend: model.LevelDeactivate})
	l.expect("level 2", "2")
	if n := l.reach(running)[disableCmd]; n != 9 {
		t.Errorf("%d requests to leave level 2 with three processes, want 3 each", n)
	}
	l.expect("level 2", "")
}

// Requests of one turn of a low: stop, and resume with a tiny timeslice. The timeslice of a stopped
// process is left alone.
func TestRequestsPerTurn(t *testing.T) {
	for n := range 3 {
		l := newLows(t, n+1, 8)
		turn := model.Desired{Slice: time.Microsecond}
		l.reach(turn)
		most := 0
		for range 20 {
			stop, resume := l.reach(stopped), l.reach(turn)
			if l.metrics.Split.Load() > 0 {
				break // this machine stalls: a worker gave up a shared request
			}
			if s := stop[abi.NVA06C_CTRL_CMD_SET_TIMESLICE] + resume[abi.NVA06C_CTRL_CMD_SET_TIMESLICE]; s != 0 {
				t.Fatalf("%d timeslices set", s)
			}
			most = max(most, stop[disableCmd]+resume[disableCmd])
			if n == 0 && fmt.Sprint(stop, resume) != fmt.Sprint(map[uint32]int{disableCmd: 1}, map[uint32]int{disableCmd: 1}) {
				t.Fatalf("a turn of one low made requests %v and %v", stop, resume)
			}
		}
		if most > 2*(n+1) {
			t.Errorf("a turn of %d lows made up to %d requests", n+1, most)
		}
		l.reach(running)
		for i := range n + 1 {
			if us := l.rm.object(l.client(i), 10).slice; us != 2048 {
				t.Errorf("timeslice of process %d left at %d us", i, us)
			}
		}
	}
}
