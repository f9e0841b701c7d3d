// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"xsched/internal/budget"
	"xsched/internal/identity"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// A user who joins and sends frames without end pays for it: its next programs wait or are refused.
// Others and the administrator join at once.
func TestJoinsAreCharged(t *testing.T) {
	b := budget.New()
	var uid atomic.Int64
	h := sessiontest.Start(t, func(c *sessiontest.Config) {
		sessiontest.Users(c, 0)
		c.Session.Budget = b
		real := c.Session.Peer
		c.Session.Peer = func(conn *net.UnixConn) (identity.Peer, error) {
			p, err := real(conn)
			p.User = identity.OnHost(int(uid.Load()))
			return p, err
		}
	})
	join := func(as int) (time.Duration, error) {
		uid.Store(int64(as))
		began := time.Now()
		c, err := sessiontest.Dial(h.Path, wire.Hello{})
		if err == nil {
			c.Close()
		}
		return time.Since(began), err
	}
	for n := 0; !b.Over(identity.OnHost(1000)); n++ {
		if _, err := join(1000); err != nil || n > 5000 {
			t.Fatalf("join %d: %v", n, err)
		}
	}
	b.Charge(identity.OnHost(1000), 30*time.Millisecond)
	if took, err := join(1000); err != nil || took < 100*time.Millisecond {
		t.Errorf("a user over its budget joins after %v: %v", took, err)
	}
	b.Charge(identity.OnHost(1000), time.Second)
	if took, err := join(1000); err == nil || !strings.Contains(err.Error(), "CPU time") || took > 500*time.Millisecond {
		t.Errorf("a user far over its budget: %v after %v", err, took)
	}
	for _, as := range []int{1001, 0} {
		if _, err := join(as); err != nil {
			t.Errorf("uid %d: %v", as, err)
		}
	}
	if n := h.Server.Stats().Refused["full_budget"]; n != 1 {
		t.Errorf("%d refusals are counted", n)
	}
}
