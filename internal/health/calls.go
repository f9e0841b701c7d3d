// SPDX-License-Identifier: Apache-2.0

package health

import (
	"sync"
	"time"
)

// Calls is a part with several pieces of work at a time. The oldest one decides. A nil Calls ignores
// all calls.
type Calls struct {
	mu    sync.Mutex
	next  uint64
	began map[uint64]time.Time
}

// AddCalls adds a part that counts as dead when a piece of its work takes longer than limit.
func (m *Monitor) AddCalls(name string, limit time.Duration, vital bool) *Calls {
	c := &Calls{began: map[uint64]time.Time{}}
	m.Watch(name, limit, vital, c.age)
	return c
}

// Begin reports a new piece of work; the returned function reports its end.
func (c *Calls) Begin() (end func()) {
	if c == nil {
		return func() {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	id := c.next
	c.began[id] = time.Now()
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.began, id)
	}
}

func (c *Calls) age() (oldest time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, began := range c.began {
		oldest = max(oldest, time.Since(began))
	}
	return oldest
}
