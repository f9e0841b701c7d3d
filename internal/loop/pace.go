// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/budget"
	"xsched/internal/model"
)

// This file limits the loop's time for each user. A client can ring as often as it likes, and the
// loop may run at real-time priority: without a limit one program could delay the heartbeat of all
// others. With several users, each has a share of the loop's time, which doorbells and requests use.
// Beyond it, the loop ignores that user's doorbells until the next window and then reads the pages as
// they are: changes are seen late, never lost. Requests wait. A single user is not limited.
const (
	paceWindow = time.Millisecond
	paceShare  = paceWindow / 4
	paceFree   = 2                    // rings of a user served per window beyond the share
	paceFreeTo = 2 * paceShare        // no free rings from this time on
	paceDebt   = 8 * paceShare        // limit of the debt: the loop itself may have been preempted
	paceAgain  = 64                   // doorbells re-enabled per window, which costs time, too
	paceWake   = 5 * time.Microsecond // the kernel's cost of waking the loop
)

// account is the loop time that one user has used. Only the loop uses it.
type account struct {
	clients int
	window  uint64 // last window with a ring or request
	rings   int    // in that window
	spent   time.Duration

	queues int // of its clients, with a place of their own
	merged int // of its clients; see merge.go
	movers int // of its clients, those whose memory is scheduled
	adds   int // queues added since the heartbeat addsAt
	addsAt uint64
	// unlisted has the number of competing queues on each device that no driver lists.
	unlisted map[model.DeviceID]int
}

// pacer limits the loop's time for each user.
type pacer struct {
	epoll     int
	accounts  int // users with clients
	bills     bills
	throttled []*Client // doorbells ignored in this window
	throttles atomic.Uint64
	window    uint64
	windowEnd model.Time
}

// open assigns a new client to the account of its user.
func (p *pacer) open(c *Client) {
	c.account = &c.inbox.account
	if c.account.clients == 0 {
		p.accounts++
	}
	c.account.clients++
}

func (p *pacer) close(c *Client) {
	if c.account == nil {
		return
	}
	if c.account.clients--; c.account.clients == 0 {
		p.accounts--
	}
	c.account = nil
}

// shared reports whether several users have clients.
func (p *pacer) shared() bool { return p.accounts > 1 }

// within reports whether a user has not used its share in a window.
func (a *account) within(window uint64) bool {
	if passed := window - a.window; passed > 0 {
		a.window, a.rings = window, 0
		a.spent = max(0, a.spent-time.Duration(min(passed, 1<<20))*paceShare)
	}
	return a.spent < paceShare
}

// admit reports whether the loop serves a ring in a window, and counts it.
func (a *account) admit(window uint64) bool {
	if !a.within(window) && (a.rings >= paceFree || a.spent >= paceFreeTo) {
		return false
	}
	a.rings++
	return true
}

func (a *account) spend(t time.Duration) { a.spent = min(a.spent+t, paceDebt) }

// bills are the accounts that a pass of the loop worked for.
type bills struct {
	budget *budget.Budget
	rang   []*account // once per ring
	asked  []*inbox   // once per request
}

// request charges a request or hint to its user.
func (b *bills) request(in *inbox, t time.Duration) {
	in.account.spend(t)
	b.budget.Charge(in.user, t)
	b.asked = append(b.asked, in)
}

func (b *bills) none() bool { return len(b.rang)+len(b.asked) == 0 }

// pay splits the cost of the wake-up and the decision among the accounts that rang or asked. The work of
// programs, which rings, is no debt in the user's budget.
func (b *bills) pay(decision time.Duration) {
	each := (paceWake + decision) / time.Duration(max(1, len(b.rang)+len(b.asked)))
	for _, a := range b.rang {
		a.spend(each)
	}
	for _, in := range b.asked {
		in.account.spend(each)
		b.budget.Charge(in.user, each)
	}
	clear(b.rang)
	clear(b.asked)
	b.rang, b.asked = b.rang[:0], b.asked[:0]
}

// throttle ignores the doorbell of a client until a later window.
func (p *pacer) throttle(c *Client) {
	if p.rearm(c, unix.EPOLLET) {
		p.throttled = append(p.throttled, c)
		p.throttles.Add(1)
	}
}

// begin starts a new window if the last one is over, and re-enables throttled doorbells. A
// doorbell that has ever rung fires at once, so the loop reads the page again.
func (p *pacer) begin(now model.Time) {
	if now < p.windowEnd {
		return
	}
	p.window += uint64(now.Sub(p.windowEnd)/paceWindow) + 1
	p.windowEnd = now.Add(paceWindow)
	n := min(len(p.throttled), paceAgain)
	for _, c := range p.throttled[:n] {
		p.rearm(c, unix.EPOLLIN|unix.EPOLLET)
	}
	rest := copy(p.throttled, p.throttled[n:])
	clear(p.throttled[rest:])
	p.throttled = p.throttled[:rest]
}

func (p *pacer) rearm(c *Client, events uint32) bool {
	if c.bell < 0 { // the client has left
		return false
	}
	e := unix.EpollEvent{Events: events, Fd: int32(c.bell)}
	return unix.EpollCtl(p.epoll, unix.EPOLL_CTL_MOD, c.bell, &e) == nil
}
