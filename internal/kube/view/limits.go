// SPDX-License-Identifier: Apache-2.0

package view

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limits of viewers. A viewer's `kubectl xsched top` has one stream per node.
const (
	maxOpen      = 8  // requests and streams of one viewer at a time
	maxOpenTotal = 64 // of all viewers
	maxRate      = 5  // requests of one viewer a second
	maxBurst     = 20
	// forgetAfter is above the time in which a viewer's budget is full again.
	forgetAfter = 10 * time.Second
)

// limits bounds what viewers ask for.
type limits struct {
	mu      sync.Mutex
	open    int
	viewers map[string]*viewer
}

type viewer struct {
	open   int
	budget *rate.Limiter
	last   time.Time
}

// begin admits a request; end must be called after it. Without a place ok is false.
func (l *limits) begin(who string, now time.Time) (end func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.viewers == nil {
		l.viewers = map[string]*viewer{}
	}
	for name, v := range l.viewers {
		if v.open == 0 && now.Sub(v.last) > forgetAfter {
			delete(l.viewers, name)
		}
	}
	v := l.viewers[who]
	if v == nil {
		v = &viewer{budget: rate.NewLimiter(maxRate, maxBurst)}
		l.viewers[who] = v
	}
	v.last = now
	if l.open >= maxOpenTotal || v.open >= maxOpen || !v.budget.AllowN(now, 1) {
		return nil, false
	}
	l.open++
	v.open++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open--
		v.open--
	}, true
}
