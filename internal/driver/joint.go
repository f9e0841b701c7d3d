// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/model"
)

// A decision often suspends or resumes several processes on one device, and an operation on the device
// has a high fixed cost. A joint lets the workers of these processes make one call together, where their
// driver can. Each worker keeps its own state, lease, verification and failure handling: only the call
// itself is shared. A joint is an optimization. Whoever can't take part in time acts alone.

const (
	// joinMax bounds how long the first member waits for the others: below the cost of the call that
	// sharing saves.
	joinMax = 200 * time.Microsecond
	// jointPatience bounds how long the others wait for a shared call, so that one hung process stalls
	// no other worker. Well below the time limit of a lease.
	jointPatience = 40 * time.Millisecond
)

// errJointLate reports a shared call that has not returned yet, and may still take effect.
var errJointLate = errors.New("a shared operation has not returned yet")

// Request is a desired state for one worker.
type Request struct {
	Worker *Worker
	Want   model.Desired
	After  []<-chan struct{} // predecessors, as for Worker.Want
}

// WantAll is Worker.Want for several workers of one device that begin the same operation. It
// returns the channels of Want in the same order.
func WantAll(requests []Request) []<-chan struct{} { return wantAll(requests, window) }

func wantAll(requests []Request, window func() <-chan struct{}) []<-chan struct{} {
	j := &joint{window: window, full: make(chan struct{}), done: make(chan struct{})}
	seats := make([]*Seat, len(requests))
	for i := range seats {
		if len(requests) > 1 {
			seats[i] = j.seat(requests[i].Worker.Recovered)
		}
	}
	tried := make([]<-chan struct{}, len(requests))
	for i, w := range requests {
		tried[i] = w.Worker.wants(w.Want, seats[i], w.After)
	}
	return tried
}

// joint is one call of several workers.
type joint struct {
	window func() <-chan struct{} // how long the first member waits

	mu      sync.Mutex
	missing int     // members that have neither joined nor left
	joined  []*Seat // the first one makes the call
	sealed  bool    // the call has begun
	full    chan struct{}
	done    chan struct{} // closed when the call has returned
}

// Seat is one worker's place in a joint. A nil Seat belongs to a worker that acts alone.
type Seat struct {
	joint  *joint
	onLate func() // called when a call that the member did not wait for has returned

	// Guarded by joint.mu.
	used bool // joined or left
	late bool
	part any
	err  error
}

func (j *joint) seat(onLate func()) *Seat {
	j.missing++
	return &Seat{joint: j, onLate: onLate}
}

// Leave reports that the member makes no shared call, so that nobody waits for it.
func (s *Seat) Leave() {
	if s == nil {
		return
	}
	s.joint.mu.Lock()
	defer s.joint.mu.Unlock()
	s.take()
}

// take marks the seat as used; false: it was. Preconditions: joint.mu is held.
func (s *Seat) take() bool {
	if s.used {
		return false
	}
	s.used = true
	if s.joint.missing--; s.joint.missing == 0 {
		close(s.joint.full)
	}
	return true
}

// open returns a channel that closes with a shared call in flight; nil: there is none.
func (s *Seat) open() <-chan struct{} {
	if s == nil {
		return nil
	}
	s.joint.mu.Lock()
	defer s.joint.mu.Unlock()
	if s.late {
		return s.joint.done
	}
	return nil
}

type seatKey struct{}

// within returns a context that carries the seat to a Target.
func (s *Seat) within(ctx context.Context) context.Context {
	if s == nil {
		return ctx
	}
	return context.WithValue(ctx, seatKey{}, s)
}

// SeatOf returns the seat that a worker passes to Target.Apply; nil: the target acts alone.
func SeatOf(ctx context.Context) *Seat {
	s, _ := ctx.Value(seatKey{}).(*Seat)
	return s
}

// Join makes a call together with the other members of the joint. The first member to join gets all
// parts, its own first, and returns one error per part. shared is false if the caller has to act alone:
// nobody else came, the call has already begun, or the seat was used before. A caller whose error is
// Late does not know whether the call takes effect.
func (s *Seat) Join(part any, call func(parts []any) []error) (shared bool, err error) {
	j := s.joint
	j.mu.Lock()
	if j.sealed || !s.take() {
		j.mu.Unlock()
		return false, nil
	}
	s.part = part
	j.joined = append(j.joined, s)
	leads := len(j.joined) == 1
	j.mu.Unlock()
	if !leads {
		return s.follow()
	}
	select {
	case <-j.full:
	default:
		select {
		case <-j.full:
		case <-j.window():
		}
	}
	j.mu.Lock()
	j.sealed = true
	members := j.joined
	j.mu.Unlock()
	if len(members) == 1 {
		close(j.done)
		return false, nil
	}
	parts := make([]any, len(members))
	for i, m := range members {
		parts[i] = m.part
	}
	errs := call(parts)
	j.mu.Lock()
	for i, m := range members {
		m.err = errs[i]
		if m.late {
			go m.onLate()
		}
	}
	close(j.done)
	j.mu.Unlock()
	return true, errs[0]
}

// window returns a channel that closes after joinMax. A timer of the runtime fires after 1 ms, longer than
// the call: an idle process waits for its timers in whole milliseconds.
func window() <-chan struct{} {
	over := make(chan struct{})
	go func() {
		defer close(over)
		pause := unix.NsecToTimespec(int64(joinMax))
		_ = unix.Nanosleep(&pause, nil)
	}()
	return over
}

// follow waits for the call of the first member.
func (s *Seat) follow() (shared bool, err error) {
	limit := time.NewTimer(joinMax + jointPatience)
	defer limit.Stop()
	select {
	case <-s.joint.done:
	case <-limit.C:
	}
	s.joint.mu.Lock()
	defer s.joint.mu.Unlock()
	select {
	case <-s.joint.done:
		return true, s.err
	default:
	}
	s.late = true
	return true, errJointLate
}

// Late reports that a shared call has not returned yet, and may still take effect.
func Late(err error) bool { return errors.Is(err, errJointLate) }

// leaveSeat gives up the seat of a replaced state. Preconditions: w.mu is held.
func (w *Worker) leaveSeat() {
	w.seat.Leave()
	w.seat = nil
}

// prune forgets the shared calls that have returned.
func (w *Worker) prune() {
	w.open = slices.DeleteFunc(w.open, func(done <-chan struct{}) bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
}

// noteOpen remembers a shared call that may take effect later.
func (w *Worker) noteOpen(seat *Seat) {
	if done := seat.open(); done != nil {
		w.open = append(w.open, done)
	}
}
