// SPDX-License-Identifier: Apache-2.0

package alert

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// timeline is a board on a virtual clock, which is reviewed each second.
type timeline struct {
	board
	now  time.Time
	sent []string
}

func newTimeline() *timeline { return &timeline{board: newBoard(), now: time.Unix(1_000_000, 0)} }

func (l *timeline) note(all []Alert) {
	for _, a := range all {
		l.sent = append(l.sent, fmt.Sprintf("%s %s %s%d held %d", a.Kind, a.State, a.Subject.GPU, a.Subject.PID, a.HeldBack))
	}
}

func (l *timeline) pass(d time.Duration, all ...Condition) {
	for end := l.now.Add(d); l.now.Before(end); l.now = l.now.Add(time.Second) {
		l.note(l.review(l.now, append([]Condition(nil), all...)))
	}
}

func (l *timeline) event(owner string, a Alert) { l.note(l.happened(l.now, owner, a)) }

func (l *timeline) want(t *testing.T, what string, sent ...string) {
	t.Helper()
	if fmt.Sprint(l.sent) != fmt.Sprint(sent) {
		t.Errorf("%s: sent %q, want %q", what, l.sent, sent)
	}
	l.sent = nil
}

func service(owner string, pid int) Condition {
	return Condition{owner, Alert{Kind: SLO, Severity: Warning, Subject: Subject{PID: pid}, Text: "misses"}}
}

func lost(gpu string) Condition {
	return Condition{"", Alert{Kind: GPU, Severity: Critical, Subject: Subject{GPU: gpu}}}
}

// A condition that lasts fires once and is resolved once. Two services and two GPUs do not disturb each other.
func TestConditions(t *testing.T) {
	l, a, b := newTimeline(), service("1", 1), service("2", 2)
	l.pass(lasting-time.Second, a)
	l.pass(time.Minute)
	l.want(t, "too short")
	l.pass(lasting+2*time.Second, a)
	l.want(t, "the first", "slo firing 1 held 0")
	l.pass(lasting+2*time.Second, a, b)
	l.want(t, "the second", "slo firing 2 held 0")
	l.pass(20*time.Second, b)
	l.pass(time.Minute, a, b)
	l.want(t, "a short recovery")
	l.pass(lasting+2*time.Second, b)
	l.want(t, "recovered, or ended", "slo resolved 1 held 0")
	l.pass(24*time.Hour, b)
	l.want(t, "no reminders")
	l.pass(lasting+2*time.Second, b, lost("g"))
	l.want(t, "one GPU", "gpu firing g0 held 0")
	l.pass(lasting+2*time.Second, b, lost("g"), lost("h"))
	l.want(t, "the other GPU", "gpu firing h0 held 0")
	l.pass(lasting+2*time.Second, b, lost("g"))
	l.want(t, "the other is back", "gpu resolved h0 held 0")
}

// A service that recovers and fails again fires once in a period, also if it stays bad.
func TestFlapping(t *testing.T) {
	l, a := newTimeline(), service("1", 1)
	for range 4 {
		l.pass(time.Minute, a)
		l.pass(time.Minute)
	}
	l.want(t, "flapping", "slo firing 1 held 0", "slo resolved 1 held 0")
	l.pass(5*time.Minute, a)
	l.want(t, "still bad after the period", "slo firing 1 held 3")
	l.pass(time.Minute)
	l.want(t, "over", "slo resolved 1 held 0")
	l.pass(time.Hour)
	if len(l.topics) != 0 {
		t.Errorf("%d subjects are remembered", len(l.topics))
	}
}

// Repeated faults are one alert, and a summary with their number after the period.
func TestRepeatedFaults(t *testing.T) {
	l := newTimeline()
	fault := Alert{Kind: Fault, Subject: Subject{PID: 7}}
	for range 300 {
		l.event("1", fault)
		l.pass(time.Second)
	}
	l.want(t, "repeated", "fault firing 7 held 0")
	l.pass(period)
	l.want(t, "summary", "fault firing 7 held 298")
	l.pass(2 * period)
	l.want(t, "nothing new")
	l.event("1", fault)
	l.want(t, "later", "fault firing 7 held 0")
}

// TestFloodOfTenants: thousands of programs of strangers cause a bounded number of alerts, delay nothing of the host
// and of another user, and are counted.
func TestFloodOfTenants(t *testing.T) {
	l := newTimeline()
	var held, fired uint64
	count := func(all []Alert) {
		for _, a := range all {
			fired++
			held += a.HeldBack
		}
	}
	for pid := range 5000 {
		count(l.happened(l.now, "evil", Alert{Kind: Fault, Subject: Subject{PID: 1 + pid}}))
		if pid%10 == 0 {
			count(l.review(l.now, nil))
			l.now = l.now.Add(time.Second)
		}
	}
	if most := uint64(ownerBurst) + uint64(500*time.Second/ownerEvery) + 1; fired > most {
		t.Errorf("%d alerts of one user in 500 s, want at most %d", fired, most)
	}
	if len(l.topics) > ownerTopics {
		t.Errorf("%d subjects are remembered", len(l.topics))
	}
	l.event("good", Alert{Kind: Fault, Subject: Subject{PID: 3}})
	l.event("", Alert{Kind: Xid, Subject: Subject{GPU: "g"}})
	l.want(t, "others", "fault firing 3 held 0", "xid firing g0 held 0")
	for range 3600 {
		count(l.review(l.now, nil))
		l.now = l.now.Add(time.Second)
	}
	if fired+held != 5000 {
		t.Errorf("%d alerts and %d held back, of 5000", fired, held)
	}

	// Many accounts together are bounded, too, and the host's own alerts come through.
	l, fired = newTimeline(), 0
	for n := range 600_000 {
		if owner := fmt.Sprint(n % 2000); n%1000 == 0 {
			count(l.review(l.now, []Condition{service(owner, n)}))
			l.now = l.now.Add(time.Second)
		} else {
			count(l.happened(l.now, owner, Alert{Kind: Fault, Subject: Subject{PID: n}}))
		}
	}
	if most := uint64(sharedBurst) + uint64(600*time.Second/sharedEvery) + 1; fired > most || len(l.owners) > maxOwners || len(l.topics) > allTopics {
		t.Errorf("%d alerts, want at most %d; %d accounts, %d subjects", fired, most, len(l.owners), len(l.topics))
	}
	l.pass(lasting+2*time.Second, lost("g"))
	if !slices.Contains(l.sent, "gpu firing g0 held 0") {
		t.Errorf("the lost GPU is not among %q", l.sent)
	}
}

// The host's own subjects are bounded, also after a quiet day. They hide no other error of their GPU, and delay no
// condition of a GPU.
func TestManyErrorsOfTheHost(t *testing.T) {
	l := newTimeline()
	l.pass(24 * time.Hour)
	for code := range 4000 {
		l.event("", Alert{Kind: Xid, Subject: Subject{GPU: "g", Xid: 1 + code}})
	}
	if n := len(l.sent); n != sharedBurst || len(l.topics) > allTopics {
		t.Errorf("%d alerts, %d subjects", n, len(l.topics))
	}
	l = newTimeline()
	for code := range 40 {
		l.event("", Alert{Kind: Xid, Subject: Subject{GPU: "g", Xid: 1 + code}})
		l.pass(time.Second, lost("g"))
	}
	l.event("", Alert{Kind: Xid, Subject: Subject{GPU: "h", Xid: 79}})
	l.pass(period, lost("g"))
	for _, want := range []string{"gpu firing g0 ", "xid firing h0 "} {
		at := slices.IndexFunc(l.sent, func(s string) bool { return strings.HasPrefix(s, want) })
		if at < 0 || want[0] == 'g' && at > sharedBurst+5 {
			t.Errorf("%q is not among %q, or late", want, l.sent)
		}
	}
}
