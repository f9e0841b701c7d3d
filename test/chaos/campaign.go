// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// campaign runs episodes in parallel worlds until it has injected enough faults.
type campaign struct {
	tools   tools
	plan    plan
	seed    uint64
	faults  int
	worlds  int
	limit   time.Duration // 0: none
	box     time.Duration // for shrinking one failure; 0: do not shrink
	stopAt  int           // failures after which to stop
	want    []string      // rules of the failures that count; empty: all
	stalls  *stalls
	verbose bool
	say     func(format string, args ...any)

	mu       sync.Mutex
	next     int
	done     int // faults of finished episodes
	planned  int
	failures []Failure
	kinds    map[string]*KindResult
	broken   []string // worlds that could not start
	batches  uint64
}

// Failure is an episode that broke a promise.
type Failure struct {
	Violations []Violation `json:"violations"`
	Log        []string    `json:"log"` // the daemon's last lines
	Schedule   Schedule    `json:"schedule"`
	Minimal    Schedule    `json:"minimal"` // without faults: not shrunk
	Replays    int         `json:"replays"`
	Repeats    bool        `json:"repeats"` // a replay failed too
}

// outcome is the result of one episode.
type outcome struct {
	violations []Violation
	kinds      map[string]*KindResult
	log        []string
	batches    uint64
}

// episode runs a schedule in a fresh world.
func (c *campaign) episode(s Schedule, stop <-chan struct{}) (outcome, error) {
	w, err := newWorld(c.tools, s.Setup, c.stalls)
	if err != nil {
		return outcome{}, err
	}
	w.run(s, stop)
	w.close()
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	return outcome{w.ledger.violations, w.ledger.kinds, w.daemon.log.Lines(40), w.batches}, nil
}

// run returns when the campaign is over.
func (c *campaign) run() {
	c.kinds = map[string]*KindResult{}
	stop := make(chan struct{})
	if c.limit > 0 {
		timer := time.AfterFunc(c.limit, func() { close(stop) })
		defer timer.Stop()
	}
	var all sync.WaitGroup
	for range c.worlds {
		all.Go(func() {
			for {
				s, ok := c.take(stop)
				if !ok {
					return
				}
				c.play(s, stop)
			}
		})
	}
	var ended atomic.Bool
	if c.verbose {
		go func() {
			for !ended.Load() {
				time.Sleep(10 * time.Second)
				c.mu.Lock()
				c.say("%d faults, %d failures", c.done, len(c.failures))
				c.mu.Unlock()
			}
		}()
	}
	all.Wait()
	ended.Store(true)
}

// found counts the failures that broke a wanted rule.
func (c *campaign) found() (n int) {
	for _, f := range c.failures {
		if slices.ContainsFunc(f.Violations, func(v Violation) bool { return listed(c.want, v.Rule) }) {
			n++
		}
	}
	return n
}

// take returns the next episode.
func (c *campaign) take(stop <-chan struct{}) (Schedule, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-stop:
		return Schedule{}, false
	default:
	}
	if c.planned >= c.faults || c.found() >= c.stopAt || len(c.broken) > 20 {
		return Schedule{}, false
	}
	s := generate(c.seed, c.next, c.plan)
	c.next++
	c.planned += s.Faults()
	return s, true
}

func (c *campaign) play(s Schedule, stop <-chan struct{}) {
	o, err := c.episode(s, stop)
	injected := 0
	c.mu.Lock()
	if err != nil {
		c.broken = append(c.broken, fmt.Sprintf("episode %d: %v", s.Episode, err))
		c.planned -= s.Faults()
		c.mu.Unlock()
		c.say("episode %d could not start: %v", s.Episode, err)
		return
	}
	for name, k := range o.kinds {
		c.merge(name, k)
		injected += k.Count
	}
	c.done += injected
	c.batches += o.batches
	c.planned += injected - s.Faults()
	c.mu.Unlock()
	if len(o.violations) == 0 {
		return
	}
	for _, v := range o.violations[:min(3, len(o.violations))] {
		c.say("seed %d episode %d (%s): %v", s.Seed, s.Episode, s.Setup.Platform, v)
	}
	failure := Failure{Violations: o.violations, Schedule: s, Log: o.log}
	if c.box > 0 {
		c.shrink(&failure, stop)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = append(c.failures, failure)
}

func (c *campaign) merge(name string, k *KindResult) {
	sum := c.kinds[name]
	if sum == nil {
		sum = &KindResult{}
		c.kinds[name] = sum
	}
	sum.Count += k.Count
	sum.Failed += k.Failed
	sum.Violations += k.Violations
	sum.WorstMS = max(sum.WorstMS, k.WorstMS)
	sum.OverMS = max(sum.OverMS, k.OverMS)
	sum.AnswerMS = max(sum.AnswerMS, k.AnswerMS)
}
