// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"testing"
	"time"

	"xsched/internal/clock"
	"xsched/internal/driver"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
)

const ms = time.Millisecond

// bench is a program whose requests are measured on a clock of the test, with a rival that can preempt it.
type bench struct {
	t      *testing.T
	h      *sessiontest.Fixture
	c      *sessiontest.Client
	client *loop.Client
	now    model.Time
}

var rival = model.QueueID{Session: 99}

// measured runs f on the loop, so that nothing happens meanwhile.
func measured(t *testing.T, f func(b *bench)) {
	t.Helper()
	h := sessiontest.Start(t, nil)
	c := h.Client(t, -10, 0)
	c.Queue(0)
	sessiontest.Await(t, "it is quiet", func() bool { return c.Page.Quiet(0) })
	err := h.Call(t.Context(), func() { f(&bench{t, h, c, h.OnlyClient(), clock.Now()}) })
	if err != nil {
		t.Fatal(err)
	}
}

func (b *bench) pass(d time.Duration) { b.now = b.now.Add(d) }

// set changes a queue and lets the loop look and decide.
func (b *bench) set(slot int, busy bool) {
	b.c.Page.SetBusy(slot, busy, b.now)
	b.h.ScanAt(b.now, b.client)
	b.h.DecideAt(b.now)
}

// addRival ends quiet: a queue of another program, with a higher priority.
func (b *bench) addRival() {
	b.h.EngineOnLoop().AddQueue(b.now, model.Queue{ID: rival, PID: 99, Device: sessiontest.GPU, Level: model.LevelBlock, Hint: model.Hint{Priority: 10}})
	b.h.DecideAt(b.now)
	if b.client.QueuePolled(0) {
		b.t.Fatal("quiet beside another program")
	}
}

func (b *bench) rival(busy bool) {
	b.h.EngineOnLoop().SetBusy(b.now, rival, busy)
	b.h.DecideAt(b.now)
}

// sum returns the number of durations and their sum.
func sum(h *driver.Histogram) (n uint64, total time.Duration) {
	n, _, _ = h.Quantiles()
	_, total = h.Cumulative(nil)
	return n, total
}

func (b *bench) want(what string, n uint64, total, wait time.Duration) {
	b.t.Helper()
	v := b.client.Requests()
	if v == nil {
		b.t.Fatalf("%s: no requests", what)
	}
	for _, d := range []struct {
		kind string
		of   loop.Durations
		want time.Duration
	}{{"total", v.Total, total}, {"wait", v.Wait, wait}, {"own", v.Own, total - wait}} {
		got, ran := sum(d.of.Ever)
		recent, ranRecently := sum(d.of.Recent)
		if got != n || ran != d.want || recent != n || ranRecently != d.want || v.Requests != n {
			b.t.Errorf("%s: %s of %d requests: %d with %v, recently %d with %v; want %d with %v", what, d.kind, v.Requests, got, ran, recent, ranRecently, n, d.want)
		}
	}
}

// A request lasts from the first work to the end; the time in which others keep it from running is apart.
func TestRequestsAreBusyPeriods(t *testing.T) {
	measured(t, func(b *bench) {
		if b.client.Requests() != nil {
			t.Error("requests before the first one")
		}
		b.addRival()
		b.set(0, true)
		b.pass(3 * ms)
		b.set(0, false)
		b.want("alone", 1, 3*ms, 0)

		b.pass(5 * ms)
		b.rival(true)
		b.set(0, true) // waits
		b.pass(4 * ms)
		b.rival(false)
		b.pass(2 * ms) // the rival's next request may come soon: the low may stay suspended
		b.h.DecideAt(b.now)
		wait := b.h.EngineOnLoop().Waited(b.client.ID, 0, b.now)
		if wait < 4*ms || wait > 6*ms {
			t.Errorf("it waited for %v", wait)
		}
		b.pass(ms)
		b.set(0, false)
		wait = b.h.EngineOnLoop().Waited(b.client.ID, 0, b.now)
		b.want("behind another", 2, (3+7)*ms, wait)

		// The doorbell rings late: client and loop agree about the length anyway.
		b.pass(ms)
		b.c.Page.SetBusy(0, true, b.now)
		b.pass(ms / 4)
		b.h.ScanAt(b.now, b.client)
		b.pass(ms)
		b.c.Page.SetBusy(0, false, b.now)
		b.pass(ms / 2)
		b.h.ScanAt(b.now, b.client)
		b.want("seen late", 3, (3+7)*ms+ms+ms/4, wait)
	})
}

// While the doorbell is quiet, the number of requests and their time are exact.
func TestQuietRequests(t *testing.T) {
	measured(t, func(b *bench) {
		for range 1000 {
			b.c.Page.SetBusy(0, true, b.now)
			b.pass(10 * time.Microsecond)
			b.c.Page.SetBusy(0, false, b.now)
			b.pass(10 * time.Microsecond)
		}
		b.h.SampleAt(b.now)
		b.want("a thousand", 1000, 10*ms, 0)
		b.c.Page.SetBusy(0, true, b.now)
		b.pass(20 * ms)
		b.h.SampleAt(b.now) // a heartbeat in the middle
		if open := b.client.Open(b.now); open != 20*ms {
			t.Errorf("the request in progress lasts for %v", open)
		}
		b.pass(20 * ms)
		b.c.Page.SetBusy(0, false, b.now)
		b.pass(ms)
		b.c.Page.SetBusy(0, true, b.now)
		b.pass(ms)
		b.h.SampleAt(b.now)
		b.want("one long", 1001, 50*ms, 0)
		if _, at, top := b.client.Requests().Total.Recent.Quantiles(0.5); at[0] > 11*time.Microsecond || top != 40*ms {
			t.Errorf("P50 %v, at most %v", at[0], top)
		}
		b.addRival() // ends quiet in the middle of a request
		b.pass(ms)
		b.set(0, false)
		b.want("across the end of quiet", 1002, 52*ms, 0)
	})
}

// The queues of a program serve one request together.
func TestRequestsOfSeveralQueues(t *testing.T) {
	measured(t, func(b *bench) {
		b.addRival()
		b.c.Page.CreateQueue(1, 0, 1<<8)
		b.c.Page.CreateQueue(2, 0, 2<<8) // on another GPU
		b.h.ScanAt(b.now, b.client)
		b.set(0, true)
		b.pass(ms)
		b.set(1, true)
		b.pass(ms)
		b.set(0, false)
		b.pass(ms)
		b.set(2, true)
		b.set(1, false)
		b.pass(ms)
		// Changes that are seen together continue it as well.
		b.c.Page.SetBusy(2, false, b.now)
		b.c.Page.SetBusy(2, true, b.now.Add(ms/2))
		b.c.Page.SetBusy(1, true, b.now.Add(ms/2))
		b.pass(ms)
		b.h.ScanAt(b.now, b.client)
		b.pass(ms)
		b.set(1, false)
		if v := b.client.Requests(); v != nil {
			t.Errorf("%d requests before the end", v.Requests)
		}
		b.pass(ms)
		b.set(2, false)
		b.want("three queues", 1, 7*ms, 0)
		// A queue that goes with its work ends no request, unless it was idle in between.
		b.set(1, true)
		b.c.Page.DestroyQueue(1)
		b.pass(ms)
		b.h.ScanAt(b.now, b.client)
		b.want("destroyed", 1, 7*ms, 0)
		if open := b.client.Open(b.now); open != 0 {
			t.Errorf("a request of a destroyed queue lasts for %v", open)
		}
		b.c.Page.SetBusy(2, true, b.now)
		b.pass(ms)
		b.c.Page.SetBusy(2, false, b.now)
		b.c.Page.DestroyQueue(2)
		b.h.ScanAt(b.now, b.client)
		b.want("destroyed afterwards", 2, 8*ms, 0)
	})
}

// From the first mark on, marked requests count. They may overlap, and last longer than any work.
func TestMarkedRequests(t *testing.T) {
	measured(t, func(b *bench) {
		b.addRival()
		b.set(0, true)
		b.pass(ms)
		b.set(0, false)
		b.want("busy periods", 1, ms, 0)
		began := b.now
		b.pass(5 * ms)
		b.rival(true)
		b.set(0, true)
		b.pass(2 * ms)
		b.set(0, false) // it was suspended all the time
		b.rival(false)
		b.pass(10 * ms)
		b.c.Page.FinishRequest(began, b.now)
		b.c.Page.FinishRequest(b.now.Add(-11*ms), b.now) // 1 of the 2 ms of waiting
		b.h.WatchAt(b.now, b.client)
		b.want("marked", 2, (17+11)*ms, (2+1)*ms)
		if !b.client.Requests().Marked {
			t.Error("busy periods count beside marks")
		}
		b.set(0, true)
		b.pass(ms)
		b.set(0, false)
		b.want("busy periods no longer count", 2, (17+11)*ms, (2+1)*ms)
		// Requests of the future have no length, but count.
		b.c.Page.FinishRequest(b.now, b.now.Add(time.Hour))
		b.h.WatchAt(b.now, b.client)
		if v := b.client.Requests(); v.Requests != 3 {
			t.Errorf("%d requests", v.Requests)
		}
		// More than the ring holds, at once.
		for range 1000 {
			b.pass(ms)
			b.c.Page.FinishRequest(b.now.Add(-ms), b.now)
		}
		b.h.WatchAt(b.now, b.client)
		v := b.client.Requests()
		if n, _ := sum(v.Total.Ever); v.Requests != 1003 || n < 10 || n > 1003 {
			t.Errorf("%d requests, %d measured", v.Requests, n)
		}
		if open := b.client.Open(b.now); open != 0 {
			t.Errorf("a request is open for %v", open)
		}
		b.c.Page.BeginRequest()
		b.h.WatchAt(b.now, b.client)
		b.pass(time.Minute)
		b.h.WatchAt(b.now, b.client)
		if open := b.client.Open(b.now); open != time.Minute {
			t.Errorf("a request is open for %v, want a minute", open)
		}
	})
}

// A client that lies changes its own figures only, and not beyond the time that passed.
func TestInvalidPeriods(t *testing.T) {
	measured(t, func(b *bench) {
		b.addRival()
		b.c.Page.Corrupt(0, 1<<60, uint64(b.now.Add(time.Hour)), 1<<62)
		b.pass(ms)
		b.h.ScanAt(b.now, b.client)
		b.c.Page.Corrupt(0, 3, 0, 0)
		b.pass(ms)
		b.h.ScanAt(b.now, b.client)
		b.c.Page.Corrupt(0, 4, 1, 1<<63-1)
		b.pass(ms)
		b.h.ScanAt(b.now, b.client)
		if _, total := sum(b.client.Requests().Total.Ever); total < 0 || total > time.Since(time.Time{}) {
			t.Errorf("requests of %v", total)
		}
		if open := b.client.Open(b.now); open < 0 {
			t.Errorf("a request is open for %v", open)
		}
	})
}

// Quantiles follow the present; counts and sums stay.
func TestRecentRequests(t *testing.T) {
	measured(t, func(b *bench) {
		b.addRival()
		request := func(d time.Duration) {
			b.set(0, true)
			b.pass(d)
			b.set(0, false)
		}
		p99 := func() (n uint64, p time.Duration) {
			n, at, _ := b.client.Requests().Total.Recent.Quantiles(0.99)
			return n, at[0]
		}
		for range 10 {
			request(40 * ms)
		}
		b.pass(loop.LatencyWindow)
		request(ms)
		if n, p := p99(); n != 11 || p < 40*ms {
			t.Errorf("in the second window: %d requests, P99 %v", n, p)
		}
		b.pass(loop.LatencyWindow)
		request(ms)
		if n, p := p99(); n != 2 || p > 2*ms {
			t.Errorf("in the third window: %d requests, P99 %v", n, p)
		}
		b.pass(3 * loop.LatencyWindow)
		b.h.WatchAt(b.now, b.client)
		if n, _ := p99(); n != 0 {
			t.Errorf("after a long time: %d requests", n)
		}
		if n, total := sum(b.client.Requests().Total.Ever); n != 12 || total != 402*ms {
			t.Errorf("in all %d requests with %v", n, total)
		}
	})
}
