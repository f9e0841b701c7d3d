// SPDX-License-Identifier: Apache-2.0

package alert

import (
	"time"

	"golang.org/x/time/rate"
)

const (
	// period is the least time between two alerts about one subject.
	period = 10 * time.Minute
	// lasting is how long a condition must hold, or be over, to count. The recent figures of requests, from which a
	// missed SLO follows, begin anew every 30 s, and drivers list their GPUs as often.
	lasting = 35 * time.Second
	// Alerts of one owner at once and their distance later on; events of the host, and of all others together.
	ownerBurst, ownerEvery = 10, time.Minute
	sharedBurst            = 30
	sharedEvery            = 15 * time.Second
	// Bounds of what is remembered.
	ownerTopics, allTopics = 64, 1024
	maxOwners              = 1024
)

type key struct {
	owner, kind string
	subject     Subject
}

// topic is what is known about a subject.
type topic struct {
	owner *owner
	alert Alert
	sent  time.Time // of the last alert; zero: none
	more  bool      // events came after it

	lasts  bool      // a condition, not an event
	bad    bool      // it holds
	since  time.Time // of bad, or of its end
	review uint64    // the last one that had it
	firing bool      // the operator knows that it holds
}

func (t *topic) recent(now time.Time) bool { return !t.sent.IsZero() && now.Sub(t.sent) < period }

// owner limits the alerts of one account, or of the host.
type owner struct {
	tokens       *rate.Limiter
	topics, most int
	held         uint64 // since its last alert
}

// board decides which alerts are sent, and when. The time is an argument. The caller holds a lock.
type board struct {
	topics  map[key]*topic
	owners  map[string]*owner
	host    *owner        // whom nobody displaces
	others  *owner        // beyond maxOwners
	shared  *rate.Limiter // of all but the host
	reviews uint64
}

func newBoard() board {
	shared := rate.Every(sharedEvery)
	host := &owner{tokens: rate.NewLimiter(shared, sharedBurst), most: allTopics}
	return board{map[key]*topic{}, map[string]*owner{"": host}, host, newOwner(), rate.NewLimiter(shared, sharedBurst), 0}
}

func newOwner() *owner {
	return &owner{tokens: rate.NewLimiter(rate.Every(ownerEvery), ownerBurst), most: ownerTopics}
}

// topic returns that of an alert; nil: the owner has too many.
func (b *board) topic(name string, a *Alert) (*topic, *owner) {
	k, o := key{name, a.Kind, a.Subject}, b.owners[name]
	if o == nil {
		if o = b.others; len(b.owners) < maxOwners {
			o = newOwner()
			b.owners[name] = o
		}
	}
	t := b.topics[k]
	if t == nil && o.topics < o.most && (o == b.host || len(b.topics)-b.host.topics < allTopics) {
		o.topics++
		t = &topic{owner: o}
		b.topics[k] = t
	}
	return t, o
}

// fire returns the alert of a topic with what was held back before, unless it is to be held back, too.
func (b *board) fire(now time.Time, t *topic) []Alert {
	switch host := t.owner == b.host; {
	case t.recent(now):
		return nil
	case host && t.lasts: // few, and what tenants cause must not delay them
	case !t.owner.tokens.AllowN(now, 1), !host && !b.shared.AllowN(now, 1):
		return nil
	}
	a := t.alert
	a.Time, a.State, a.HeldBack = now, Firing, t.owner.held
	t.sent, t.more, t.owner.held = now, false, 0
	return []Alert{a}
}

// happened takes an event.
func (b *board) happened(now time.Time, name string, a Alert) (out []Alert) {
	t, o := b.topic(name, &a)
	if t != nil {
		t.alert = a
		out = b.fire(now, t)
		t.more = out == nil
	}
	if out == nil {
		o.held++
	}
	return out
}

// review takes all conditions that hold.
func (b *board) review(now time.Time, all []Condition) (out []Alert) {
	b.reviews++
	for i := range all {
		if t, _ := b.topic(all[i].Owner, &all[i].Alert); t != nil {
			t.alert, t.review, t.lasts = all[i].Alert, b.reviews, true
		}
	}
	for k, t := range b.topics {
		switch o := t.owner; {
		case t.lasts:
			out = append(out, b.condition(now, t)...)
		case t.more && o.held == 0 && o != b.host:
			t.more = false // another alert of the account has counted it
		case t.more:
			held := o.held
			o.held -= min(held, 1) // this one
			if out = append(out, b.fire(now, t)...); t.more {
				o.held = held
			}
		}
		if !t.bad && !t.firing && !t.more && !t.recent(now) {
			t.owner.topics--
			delete(b.topics, k)
		}
	}
	for name, o := range b.owners {
		if o != b.host && o.topics == 0 && o.held == 0 && o.tokens.TokensAt(now) >= ownerBurst {
			delete(b.owners, name)
		}
	}
	return out
}

// condition returns what a condition's begin or end calls for.
func (b *board) condition(now time.Time, t *topic) []Alert {
	lasted := now.Sub(t.since) >= lasting
	if bad := t.review == b.reviews; bad != t.bad {
		if t.bad && lasted && !t.firing {
			t.owner.held++
		}
		t.bad, t.since, lasted = bad, now, false
	}
	switch {
	case lasted && t.bad && !t.firing:
		out := b.fire(now, t)
		t.firing = out != nil
		return out
	case lasted && t.firing && !t.bad:
		t.firing = false
		a := t.alert
		a.Time, a.State, a.Text = now, Resolved, "over: "+a.Text
		return []Alert{a}
	}
	return nil
}
