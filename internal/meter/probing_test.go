// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"fmt"
	"testing"
	"time"

	"xsched/internal/engine"
	"xsched/internal/model"
)

// attachLoop is a user who attaches to idle programs and detaches again.
type attachLoop struct {
	attached, detached time.Duration
	programs           int  // 0: a new one each time
	together           int  // attached at a time
	service            bool // of another user, with requests all the time, next to unmanaged programs
}

// run returns the share of the GPU that a lower-priority job of another user has, which is always busy,
// and the number of estimates that are kept in the end.
func (a attachLoop) run(t *testing.T, length time.Duration) (share float64, kept int) {
	t.Helper()
	e, err := engine.New(engine.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	times := NewGuessTimes(e.Config().Quantum, e.Config().StarvationBound)
	job := model.QueueID{Session: 1}
	e.AddQueue(1, model.Queue{ID: job, PID: 1, Device: 1, Hint: model.Hint{Priority: -5}, Level: model.LevelInterrupt, Busy: true})
	type attached struct {
		id      model.QueueID
		process ProcessID
		guess   Guess
		probing *Probing
		until   time.Duration
	}
	var all Estimates
	places := make([]*attached, max(1, a.together))
	pause := make([]time.Duration, len(places)) // until the next attach
	count, had := 0, time.Duration(0)
	const step = 250 * time.Microsecond
	service := model.QueueID{Session: 1 << 20}
	if a.service {
		e.AddQueue(1, model.Queue{ID: service, PID: 2, Device: 1, Hint: model.Hint{Priority: 10}, Level: model.LevelInterrupt})
		e.SetUnmanaged(1, 1, true)
	}
	for at := step; at < length; at += step {
		now := model.Time(at)
		for i, p := range places {
			switch {
			case p == nil && at >= pause[i]:
				process := ProcessID{PID: count, Start: 1}
				if count++; a.programs > 0 {
					process.PID %= a.programs
				}
				p = &attached{id: model.QueueID{Session: model.SessionID(1 + count)}, process: process, until: at + a.attached}
				p.guess, p.probing = all.Begin(now, "1000", process, 1, true, times)
				places[i] = p
				e.AddQueue(now, model.Queue{
					ID: p.id, PID: 10 + count, Device: 1, Level: model.LevelInterrupt, Busy: p.guess.Busy(), Guessed: true,
				})
			case p != nil && at >= p.until:
				e.RemoveQueue(now, p.id)
				p.probing.End(now, p.process, p.guess, times)
				places[i], pause[i] = nil, at+a.detached
			case p != nil && at%(50*time.Millisecond) == 0:
				g := &p.guess
				g.Observe(now, false, Standing{e.Kept(p.id), e.WaitsSince(p.id, g.Since())}, times.PaidBy(p.probing))
				e.SetBusy(now, p.id, g.Busy())
			}
		}
		if a.service {
			e.SetBusy(now, service, at%(2500*time.Microsecond) == 0)
		}
		changes, _ := e.Decide(now)
		for _, d := range changes {
			for _, p := range places {
				if p == nil || d.Queue != p.id || (d.Suspend != 0) == p.guess.Stopped() {
					continue
				}
				if p.guess.Stopped() {
					p.guess.Resume(now)
				} else {
					p.guess.Stop(now, e.WaitsSince(p.id, p.guess.Since()), times.PaidBy(p.probing))
				}
				e.SetBusy(now, p.id, p.guess.Busy())
			}
		}
		if !e.Kept(job) {
			had += step
		}
	}
	for _, p := range all.accounts {
		kept += len(p.left)
	}
	return float64(had) / float64(length), kept
}

// However often a user attaches, and to however many programs without work: the job of another user
// keeps 90 % of the GPU, and nearly all of it if the programs are the same. Next to the service and
// unmanaged programs, 0.70 is all that it could have.
func TestAttachesCostOthersLittle(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		attachLoop
		least float64
	}{
		{attachLoop{attached: 10 * ms, detached: 5 * ms, programs: 4, together: 4}, 0.98},
		{attachLoop{attached: 70 * ms, detached: 5 * ms, programs: 4, together: 4}, 0.98},
		{attachLoop{attached: 3000 * ms, detached: 110 * ms, programs: 4, together: 4}, 0.90},
		{attachLoop{attached: 30 * ms, detached: 110 * ms, programs: 1}, 0.98},
		{attachLoop{attached: 10 * ms, detached: 5 * ms}, 0.90},
		{attachLoop{attached: 120 * ms, detached: 110 * ms}, 0.90},
		{attachLoop{attached: 400 * ms, detached: 5 * ms, together: 100}, 0.90},
		{attachLoop{attached: 400 * ms, detached: 5 * ms, programs: 4, together: 4, service: true}, 0.63},
		{attachLoop{attached: 60_000 * ms, programs: 100, together: 100}, 0.90},
	} {
		t.Run(fmt.Sprintf("%v of %d, %d together", c.attached, c.programs, max(1, c.together)), func(t *testing.T) {
			share, kept := c.run(t, 20*time.Second)
			t.Logf("%.3f of the GPU, %d estimates kept", share, kept)
			if share < c.least {
				t.Errorf("the job has %.3f of the GPU, want at least %.2f", share, c.least)
			}
			if kept > keptEstimates {
				t.Errorf("%d estimates are kept, at most %d", kept, keptEstimates)
			}
		})
	}
}

// A daemon that was stopped during a probing turn gives the program its next turn within the longest pause,
// as any other: after 800 ms the account owed 15 s before.
func TestStoppedDaemonIsChargedToNobody(t *testing.T) {
	const bound = 2 * time.Second
	times := NewGuessTimes(time.Second, bound)
	for _, stopped := range []time.Duration{0, 800 * time.Millisecond, time.Minute} {
		for _, how := range []string{"observed", "ended"} {
			var all Estimates
			process := ProcessID{PID: 1, Start: 1}
			g, account := all.Begin(0, "1000", process, 1, true, times)
			paid := times.PaidBy(account)
			now := model.Time(stopped + probeTime)
			if how == "observed" {
				g.Observe(now, false, Standing{}, paid)
			} else { // by a detach and another attach
				account.End(now, process, g, times)
				g, account = all.Begin(now, "1000", process, 1, true, times)
				paid = times.PaidBy(account)
			}
			g.Stop(now, false, paid)
			ended := now
			for !g.Busy() && now.Sub(ended) < time.Hour {
				now = now.Add(10 * time.Millisecond)
				g.Observe(now, false, Standing{}, paid)
			}
			if wait := now.Sub(ended); wait > bound {
				t.Errorf("stopped for %v, %s: the next probing turn begins after %v, want at most %v", stopped, how, wait, bound)
			}
		}
	}
}

// A hundred programs of one account get a probing turn each in turn.
func TestProbesOfManyProgramsTakeTurns(t *testing.T) {
	const programs = 100
	times := NewGuessTimes(time.Second, 2*time.Second)
	var all Estimates
	guesses := make([]Guess, programs)
	var account *Probing
	for i := range guesses {
		guesses[i], account = all.Begin(0, "1000", ProcessID{PID: i, Start: 1}, 1, true, times)
		guesses[i].Stop(0, true, times.PaidBy(account))
	}
	turns := make([]int, programs)
	for now := model.Time(0); now < model.Time(200*time.Second); now = now.Add(50 * time.Millisecond) {
		for i := range guesses {
			g := &guesses[i]
			if g.Busy() {
				turns[i]++
				g.Resume(now)
				g.Stop(now.Add(50*time.Millisecond), false, times.PaidBy(account))
			}
			g.Observe(now, false, Standing{Kept: true}, times.PaidBy(account))
		}
	}
	least, most := turns[0], turns[0]
	for _, n := range turns {
		least, most = min(least, n), max(most, n)
	}
	if least < 1 || most > 4 {
		t.Errorf("%d to %d turns in 200 s; one every 100 s is an equal share", least, most)
	}
}

// The number of accounts that are remembered is bounded. One with a queue stays.
func TestAccountsAreBounded(t *testing.T) {
	times := NewGuessTimes(time.Second, 2*time.Second)
	var all Estimates
	_, stays := all.Begin(1, "stays", ProcessID{1, 1}, 1, true, times)
	for i := range 4 * keptAccounts {
		g, p := all.Begin(model.Time(2+i), fmt.Sprint(i), ProcessID{PID: i, Start: 1}, 1, true, times)
		p.End(model.Time(2+i), ProcessID{PID: i, Start: 1}, g, times)
	}
	if n := len(all.accounts); n > keptAccounts || all.accounts[accountOnGPU{"stays", 1}] != stays {
		t.Errorf("%d accounts are kept, or the one with a queue is not", n)
	}
}
