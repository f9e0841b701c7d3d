// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// Bounds of the model. A tenant without progress for longer than its bound plus grace is late.
const (
	grace = 200 * time.Millisecond
	// nativeBound holds without a scheduler: all tenants share by the driver's slices.
	nativeBound = 100 * time.Millisecond
	// The daemon runs with these. With n waiting queues each progresses within B + 2n quanta, where B
	// is the larger of the starvation bound and 2n quanta (docs/policies/README.md). A fault may cost
	// a grant, so that the next one counts.
	starvationBound = 300 * time.Millisecond
	quantum         = 20 * time.Millisecond
	waitingQueues   = 8
	policyBound     = 2*starvationBound + 2*waitingQueues*quantum
	// highBound holds for the highest priority under HPF: its request waits for one preemption.
	highBound = 100 * time.Millisecond
	// bareBound holds beside slices of up to a second that the daemon can't change: for a program that
	// XSched does not manage, and while the device rejects the daemon's changes.
	bareBound = policyBound + time.Second
	// olderBound is for programs under the other release, whose defects are its own.
	olderBound = 5 * time.Second
	// stuckAfter past its bound a tenant counts as stuck, even if it runs again later.
	stuckAfter = 3 * time.Second
)

// Violation is one broken promise.
type Violation struct {
	Rule   string  `json:"rule"` // late, stuck, held, checksum, ...
	Role   string  `json:"role,omitempty"`
	Text   string  `json:"text"`
	AtMS   int64   `json:"at_ms"` // since the world began
	Active []Fault `json:"active,omitempty"`
}

func (v Violation) String() string {
	return fmt.Sprintf("%s %s at %d ms: %s", v.Rule, v.Role, v.AtMS, v.Text)
}

// watch follows the progress of one tenant. Its owner is the world's watcher.
type watch struct {
	since   int64         // last progress, or begin of the current bound
	bound   time.Duration // 0: excused
	why     string
	changed int64
	note    <-chan string // what was known when it became late; nil: it is not
	told    bool          // a violation was reported since the last progress

	heldFrom  int64 // since when a suspension by hand is undisturbed
	heldCount int   // iterations at its begin
}

// follow takes the tenant's bound and its last progress. It returns a finished or an overdue gap.
func (w *watch) follow(at int64, bound time.Duration, why string, progress int64) (gap stall, over bool) {
	if bound != w.bound {
		w.bound, w.why, w.since, w.changed, w.told, w.note = bound, why, max(at, progress), at, false, nil
		return stall{}, false
	}
	if bound == 0 {
		w.since = at
		return stall{}, false
	}
	if progress > w.since {
		gap = stall{w.since, progress}
		w.since, w.told = progress, false
		return gap, false
	}
	return stall{w.since, at}, true
}

// restart begins every bound anew: nobody watched until now.
func (w *watch) restart(at int64) { w.since, w.heldFrom = at, at }

// known returns what has been found out about a late tenant.
func (w *watch) known() string {
	var all []string
	for {
		select {
		case text := <-w.note:
			all = append(all, text)
		default:
			return strings.Join(all, " | ")
		}
	}
}

// ledger collects what a world did and what it broke.
type ledger struct {
	mu         sync.Mutex
	start      int64
	violations []Violation
	live       []*running
	kinds      map[string]*KindResult
}

// running is a fault with its real times.
type running struct {
	Fault
	from, to int64 // to is 0 while it lasts
}

// KindResult sums up the faults of one kind.
type KindResult struct {
	Count      int     `json:"count"`
	Failed     int     `json:"could_not"` // injections that were impossible at that moment
	WorstMS    float64 `json:"worst_ms"`  // longest time without progress beside it, without excuse
	OverMS     float64 `json:"over_ms"`   // by how much the worst one exceeded its bound
	AnswerMS   float64 `json:"answer_ms"` // longest time until a daemon that was well answered during it
	Violations int     `json:"violations"`
}

func newLedger() *ledger { return &ledger{start: now(), kinds: map[string]*KindResult{}} }

func (l *ledger) kind(name string) *KindResult {
	k := l.kinds[name]
	if k == nil {
		k = &KindResult{}
		l.kinds[name] = k
	}
	return k
}

func (l *ledger) begin(f Fault) *running {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &running{Fault: f, from: now()}
	l.live = append(l.live, r)
	l.kind(f.Kind).Count++
	return r
}

func (l *ledger) end(r *running, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.to = now()
	if err != nil {
		l.kind(r.Kind).Failed++
	}
}

// beside returns the faults that overlap [from, to], or that ended less than a second before.
func (l *ledger) beside(from, to int64) (out []*running) {
	for _, r := range l.live {
		if r.from <= to && (r.to == 0 || r.to+int64(time.Second) >= from) {
			out = append(out, r)
		}
	}
	return out
}

// answered notes how long the daemon took to answer during faults.
func (l *ledger) answered(from int64, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.beside(from, now()) {
		k := l.kind(r.Kind)
		k.AnswerMS = max(k.AnswerMS, float64(took.Microseconds())/1000)
	}
}

// gap notes how long a tenant went without progress.
func (l *ledger) gap(g stall, net, bound time.Duration) {
	if net < 50*time.Millisecond {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.beside(g.from, g.to) {
		k := l.kind(r.Kind)
		k.WorstMS = max(k.WorstMS, float64(net.Microseconds())/1000)
		k.OverMS = max(k.OverMS, float64((net-bound).Microseconds())/1000)
	}
}

// violate records a broken promise with the faults around it.
func (l *ledger) violate(from int64, rule, role, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := Violation{Rule: rule, Role: role, Text: fmt.Sprintf(format, args...), AtMS: (now() - l.start) / 1e6}
	seen := map[string]bool{}
	for _, r := range l.beside(from, now()) {
		v.Active = append(v.Active, r.Fault)
		if !seen[r.Kind] {
			l.kind(r.Kind).Violations++
			seen[r.Kind] = true
		}
	}
	l.violations = append(l.violations, v)
}

func (l *ledger) failed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.violations) > 0
}

// recent tells whether a fault of one of these kinds is active or ended within the last d.
func (l *ledger) recent(d time.Duration, names ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := now()
	for _, r := range l.live {
		if (r.to == 0 || at-r.to < int64(d)) && listed(names, r.Kind) {
			return true
		}
	}
	return false
}
