// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"slices"
	"time"

	"xsched/internal/model"
)

// This file bounds what estimates cost others. Each probing turn takes GPU time from programs with work,
// and each attach used to begin with one. An account therefore pays for its probing turns, and the
// estimate of a process outlives the end of its control.

const (
	// probeShare is the inverse of the time that all probing turns of one account may take on a GPU: 5 %.
	// docs/threat-model.md permits a user to cost others 10 %, and a latency-critical program may leave
	// them half of the time only. Two idle programs need it in full: 50 ms each in the longest pause of 2 s.
	probeShare = 20
	// keptEstimates is how many processes of an account the daemon remembers on a GPU. An account with
	// more gets further first turns, which it pays for.
	keptEstimates = 64
	// keptAccounts bounds the memory: 256 accounts of 64 estimates are 2 MB.
	keptAccounts = 256
)

// ProcessID identifies a process until the next boot. Without a start time it identifies none.
type ProcessID struct {
	PID   int
	Start uint64
}

// Estimates has the estimates of all accounts. The zero value has none.
type Estimates struct {
	accounts map[accountOnGPU]*Probing
}

type accountOnGPU struct {
	account string
	gpu     model.DeviceID
}

// Probing is what the queues of one account on one GPU have in common.
type Probing struct {
	queues int           // estimated now
	spent  time.Duration // probing turns, of which probeShare of the time since is repaid
	at     model.Time    // of spent
	left   []leftEstimate
}

// leftEstimate is the estimate of a process that is not controlled now; the oldest comes first.
type leftEstimate struct {
	process ProcessID
	guess   Guess
}

// Begin estimates a queue. The estimate of a process continues where it ended. A new one begins with a
// probing turn if the queue may have work and the account can pay for it.
func (e *Estimates) Begin(now model.Time, account string, process ProcessID, gpu model.DeviceID, busy bool, t GuessTimes) (Guess, *Probing) {
	key := accountOnGPU{account, gpu}
	p := e.accounts[key]
	if p == nil {
		if e.accounts == nil {
			e.accounts = map[accountOnGPU]*Probing{}
		}
		e.makeRoom()
		p = &Probing{at: now}
		e.accounts[key] = p
	}
	p.queues++
	if i := slices.IndexFunc(p.left, func(l leftEstimate) bool { return l.process == process }); i >= 0 {
		g := p.left[i].guess
		p.left = slices.Delete(p.left, i, i+1)
		g.counted, g.since = now, now
		return g, p
	}
	return NewGuess(now, busy && p.take(now, t)), p
}

// End keeps the estimate of a queue that leaves. A probing turn ends with it.
func (p *Probing) End(now model.Time, process ProcessID, g Guess, t GuessTimes) {
	p.queues--
	if process.Start == 0 {
		return
	}
	g.leave(now, t.PaidBy(p))
	if len(p.left) >= keptEstimates {
		p.left = slices.Delete(p.left, 0, 1)
	}
	p.left = append(p.left, leftEstimate{process, g})
}

// makeRoom forgets the account that has not paid for the longest time, if there are too many.
func (e *Estimates) makeRoom() {
	if len(e.accounts) < keptAccounts {
		return
	}
	var oldest accountOnGPU
	var found *Probing
	for key, p := range e.accounts {
		if p.queues == 0 && (found == nil || p.at < found.at) {
			oldest, found = key, p
		}
	}
	delete(e.accounts, oldest)
}

// take pays for a probing turn, or reports that the account has used its share. The account may take the
// turns of one longest pause at once.
func (p *Probing) take(now model.Time, t GuessTimes) bool {
	p.spent = max(0, p.spent-now.Sub(p.at)/probeShare)
	p.at = now
	if p.spent > 0 && p.spent+t.probe > t.pause/probeShare {
		return false
	}
	p.spent += t.probe
	return true
}

// PaidBy adds the account that pays for probing turns.
func (t GuessTimes) PaidBy(p *Probing) GuessTimes {
	t.probing = p
	return t
}

// turns is the pause after which the account can pay for a turn of each of its queues; 0: it is shorter
// than the usual pauses.
func (t GuessTimes) turns() time.Duration {
	if t.probing == nil || time.Duration(t.probing.queues)*t.probe*probeShare <= t.pause {
		return 0
	}
	return time.Duration(t.probing.queues) * t.probe * probeShare
}

// mayProbe reports whether a probing turn may begin, and pays for it.
func (t GuessTimes) mayProbe(now model.Time) bool { return t.probing == nil || t.probing.take(now, t) }

// charge pays for a probing turn that took longer than planned: its end waits for an observation. After a
// turn in which the daemon was stopped, the account owes no more than it repays within one pause: nobody
// was suspended for that turn.
func (t GuessTimes) charge(took time.Duration) {
	if p := t.probing; p != nil {
		p.spent = min(p.spent+max(0, took-t.probe), max(t.pause, t.turns())/probeShare)
	}
}
