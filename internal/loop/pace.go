// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/model"
)

// This file rate-limits doorbells. A client can ring as often as it likes, and the loop may run at
// real-time priority: without a limit one program could delay the heartbeat of all others. With
// several users, each has a share of the loop's time. Beyond it, the loop ignores that user's
// doorbells until the next window and then reads the pages as they are: changes are seen late, never
// lost. A single user is not limited.
const (
	paceWindow = time.Millisecond
	paceShare  = paceWindow / 4
	paceFree   = 2                    // rings of a user in a window that are heard beyond the share
	paceFreeTo = 2 * paceShare        // unless that much was taken
	paceDebt   = 8 * paceShare        // most that is remembered: the loop may have been kept from its CPU
	paceAgain  = 64                   // doorbells listened to again in a window: that costs time, too
	paceWake   = 5 * time.Microsecond // of the kernel, for waking the loop
)

// account is what the doorbells of one user have taken.
type account struct {
	sessions int
	window   uint64 // the last in which one rang
	rings    int    // in that
	spent    time.Duration
}

// open finds the account of a session that joins.
func (l *Loop) open(c *Client) {
	if l.accounts[c.UID] == nil {
		l.accounts[c.UID] = &account{window: l.window}
	}
	c.account = l.accounts[c.UID]
	c.account.sessions++
}

func (l *Loop) closeAccount(c *Client) {
	if c.account == nil {
		return
	}
	if c.account.sessions--; c.account.sessions == 0 {
		delete(l.accounts, c.UID)
	}
	c.account = nil
}

// answer reads the page of a session that rang, unless its user has had his share.
func (l *Loop) answer(now model.Time, c *Client) {
	a := c.account
	if len(l.accounts) == 1 {
		l.scan(now, c)
		return
	}
	if !a.admit(l.window) {
		l.deafen(c)
		return
	}
	l.rang = append(l.rang, a)
	start := l.now()
	l.scan(now, c)
	a.spend(l.now().Sub(start))
}

// admit says whether a ring is heard in a window, and counts it.
func (a *account) admit(window uint64) bool {
	if passed := window - a.window; passed > 0 {
		a.window, a.rings = window, 0
		a.spent = max(0, a.spent-time.Duration(min(passed, 1<<20))*paceShare)
	}
	if a.spent >= paceShare && (a.rings >= paceFree || a.spent >= paceFreeTo) {
		return false
	}
	a.rings++
	return true
}

func (a *account) spend(t time.Duration) { a.spent = min(a.spent+t, paceDebt) }

// charge divides what waking up and the decision took among those whose doorbells led to it.
func (l *Loop) charge(decision time.Duration) {
	for i, a := range l.rang {
		a.spend((paceWake + decision) / time.Duration(len(l.rang)))
		l.rang[i] = nil
	}
	l.rang = l.rang[:0]
}

func (l *Loop) deafen(c *Client) {
	if l.watchAgain(c, unix.EPOLLET) {
		l.deaf = append(l.deaf, c)
		l.deafened++
	}
}

// listen begins a window if one is over, and listens again to those that had to wait for it. One that has
// rung meanwhile, or ever, then rings at once.
func (l *Loop) listen(now model.Time) {
	if now < l.windowEnd {
		return
	}
	l.window += uint64(now.Sub(l.windowEnd)/paceWindow) + 1
	l.windowEnd = now.Add(paceWindow)
	n := min(len(l.deaf), paceAgain)
	for _, c := range l.deaf[:n] {
		l.watchAgain(c, unix.EPOLLIN|unix.EPOLLET)
	}
	rest := copy(l.deaf, l.deaf[n:])
	clear(l.deaf[rest:])
	l.deaf = l.deaf[:rest]
}

func (l *Loop) watchAgain(c *Client, events uint32) bool {
	if c.bell < 0 { // it has ended
		return false
	}
	e := unix.EpollEvent{Events: events, Fd: int32(c.bell)}
	return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_MOD, c.bell, &e) == nil
}
