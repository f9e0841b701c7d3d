// SPDX-License-Identifier: Apache-2.0

// Package health knows which parts of a process still work. Each part beats while it works, or marks
// the beginning and the end of each piece of work. A part that is late looks dead to everybody who
// asks: the probes, the service manager's watchdog and the status.
package health

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Monitor is the list of parts. The zero value has none.
type Monitor struct {
	mu    sync.Mutex
	parts []*Part
}

// Part is a part of the process. A nil part ignores all calls.
type Part struct {
	name  string
	limit time.Duration
	vital bool
	age   func() time.Duration // nil: since last
	began time.Time            // origin of last: a step of the clock changes no age
	last  atomic.Int64         // 0: nothing to do
}

func (p *Part) now() int64 { return max(1, int64(time.Since(p.began))) }

// Add adds a part that counts as dead when its last beat is older than limit. A restart of the
// process helps a vital part; what others wait for, such as a disk, it does not help.
func (m *Monitor) Add(name string, limit time.Duration, vital bool) *Part {
	p := &Part{name: name, limit: limit, vital: vital, began: time.Now()}
	p.Beat()
	m.add(p)
	return p
}

// Watch adds a part that knows the age of its last beat.
func (m *Monitor) Watch(name string, limit time.Duration, vital bool, age func() time.Duration) {
	m.add(&Part{name: name, limit: limit, vital: vital, age: age})
}

func (m *Monitor) add(p *Part) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.parts = append(m.parts, p)
}

// Beat reports that the part works. A part that waits for work uses Begin and End instead.
func (p *Part) Beat() {
	if p != nil {
		p.last.Store(p.now())
	}
}

// Begin reports that the part has begun a piece of work.
func (p *Part) Begin() { p.Beat() }

// End reports that the part waits for work.
func (p *Part) End() {
	if p != nil {
		p.last.Store(0)
	}
}

// State is a part at one moment.
type State struct {
	Name  string        `json:"name"`
	Age   time.Duration `json:"age_ns"` // 0: it waits for work
	Limit time.Duration `json:"limit_ns"`
	Vital bool          `json:"vital"`
}

// Late reports that the part counts as dead.
func (s *State) Late() bool { return s.Age > s.Limit }

// String describes a part that is late.
func (s *State) String() string {
	return fmt.Sprintf("%s: the last sign of life was %v ago, the limit is %v", s.Name, s.Age.Round(time.Millisecond), s.Limit)
}

// States returns all parts in the order of their addition. It waits for none of them.
func (m *Monitor) States() []State {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]State, 0, len(m.parts))
	for _, p := range m.parts {
		s := State{Name: p.name, Limit: p.limit, Vital: p.vital}
		if p.age != nil {
			s.Age = p.age()
		} else if last := p.last.Load(); last != 0 {
			s.Age = time.Duration(max(0, p.now()-last))
		}
		out = append(out, s)
	}
	return out
}

// Alive reports that no vital part is late.
func (m *Monitor) Alive() bool {
	return Dead(m.States()) == ""
}
