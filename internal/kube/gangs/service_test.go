// SPDX-License-Identifier: Apache-2.0

package gangs

import (
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
