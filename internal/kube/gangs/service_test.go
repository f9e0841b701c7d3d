// SPDX-License-Identifier: Apache-2.0

package gangs

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"xsched/internal/kube/gang"
)

var job = gang.Key{Namespace: "ml", Group: "job"}

// asks reports whether a node asks to hold the group for longer than a moment.
func asks(t *testing.T, s *store) bool {
	for _, a := range s.record(t, job).Asks {
		if a.Until > time.Now().Add(time.Second).UnixNano() {
			return true
		}
	}
	return false
}

// TestSilentDaemon checks that a daemon which is stuck ends the ask of its node, and that the node asks
// again when the daemon works again.
func TestSilentDaemon(t *testing.T) {
	virtual(t, []string{"job"}, func(t *testing.T, s *store, n *node, log *lines) {
		until(t, 20*time.Second, "an ask", func() bool { return asks(t, s) })
		n.set(func(n *node) { n.silent = true })
		time.Sleep(4 * time.Second)
		if asks(t, s) {
			t.Errorf("a silent daemon's node asks: %+v", s.record(t, job))
		}
		before := s.record(t, job).Version
		time.Sleep(time.Minute)
		if r := s.record(t, job); r.Version != before {
			t.Errorf("it writes: %+v", r)
		}
		if got := log.of("gangs wait for the daemon"); got != 1 {
			t.Errorf("logged %d times", got)
		}
		n.set(func(n *node) { n.silent = false })
		until(t, 20*time.Second, "another ask", func() bool { return asks(t, s) })
	})
}

// count returns how many holds the daemon was told last, and how often it was told.
func (n *node) count() (holds, sent int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.holds), n.sent
}

// TestLostRelease checks that a release which the daemon did not take is sent again, for as long as the
// daemon could still hold ranks, and that a failure which lasts is logged once a minute.
func TestLostRelease(t *testing.T) {
	virtual(t, []string{"job"}, func(t *testing.T, s *store, n *node, log *lines) {
		until(t, 20*time.Second, "a hold", func() bool { holds, _ := n.count(); return holds == 1 })
		n.set(func(n *node) { n.refuses, n.groups = errors.New("refused"), nil })
		until(t, 20*time.Second, "the end of the ask", func() bool { return !asks(t, s) })
		time.Sleep(2 * time.Second)
		n.set(func(n *node) { n.refuses = nil })
		time.Sleep(time.Second)
		if holds, _ := n.count(); holds != 0 {
			t.Errorf("the release is lost: %d holds", holds)
		}
		_, before := n.count()
		time.Sleep(time.Minute)
		if _, after := n.count(); after != before {
			t.Errorf("sent %d times without a hold", after-before)
		}
		if got := log.of("holds not sent to the daemon; trying again"); got != 1 {
			t.Errorf("logged %d times", got)
		}
	})
}

// TestServerDown checks that writes which fail for long are logged once a minute, and that a daemon which
// takes no holds is asked no longer than they last.
func TestServerDown(t *testing.T) {
	virtual(t, []string{"job"}, func(t *testing.T, s *store, n *node, log *lines) {
		until(t, 20*time.Second, "a hold", func() bool { holds, _ := n.count(); return holds == 1 })
		s.mu.Lock()
		s.broken = errors.New("connection refused")
		s.mu.Unlock()
		n.set(func(n *node) { n.refuses = errors.New("refused") })
		time.Sleep(150 * time.Second)
		if got := log.of("gang not written; trying again"); got < 2 || got > 3 {
			t.Errorf("logged %d times in 150 s", got)
		}
		_, before := n.count()
		time.Sleep(20 * time.Second)
		if _, after := n.count(); after != before {
			t.Errorf("sent %d times without a hold", after-before)
		}
	})
}

// TestManyGroups checks that a node coordinates a bounded number of groups, and takes others when one ends.
func TestManyGroups(t *testing.T) {
	var groups []string
	for i := range maxGroups + 5 {
		groups = append(groups, fmt.Sprint("job", i))
	}
	virtual(t, groups, func(t *testing.T, s *store, n *node, log *lines) {
		leases := func() int {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.leases)
		}
		until(t, time.Minute, "leases", func() bool { return leases() == maxGroups })
		time.Sleep(5 * time.Second)
		if got := leases(); got != maxGroups {
			t.Errorf("%d leases", got)
		}
		if got := log.of("gang not coordinated: the node has too many groups"); got != 1 {
			t.Errorf("logged %d times", got)
		}
		if holds, _ := n.count(); holds > maxGroups {
			t.Errorf("%d holds", holds)
		}
		n.set(func(n *node) { n.groups = n.groups[maxGroups:] })
		until(t, time.Minute, "leases of the others", func() bool {
			return !slices.ContainsFunc(groups[maxGroups:], func(name string) bool {
				return s.record(t, gang.Key{Namespace: "ml", Group: name}).Version == ""
			})
		})
	})
}

// TestUnusedLease checks that a lease which is left behind while nodes run is deleted.
func TestUnusedLease(t *testing.T) {
	virtual(t, nil, func(t *testing.T, s *store, n *node, _ *lines) {
		n.set(func(n *node) { n.silent = true })
		time.Sleep(time.Second)
		r := gang.Default().Suspend(gang.Record{}, time.Now().UnixNano(), time.Minute)
		if _, err := Put(t.Context(), s, job, "gone", r); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		if len(s.record(t, job).Asks) == 0 {
			t.Error("deleted too early")
		}
		time.Sleep(2 * unusedPeriod)
		if r := s.record(t, job); r.Version != "" {
			t.Errorf("not deleted: %+v", r)
		}
	})
}
