// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net"
	"strings"
	"testing"
	"time"

	"xsched/internal/budget"
	"xsched/internal/health"
	"xsched/internal/identity"
)

// stuckDoor has connections that nobody can identify or close until it is freed.
type stuckDoor struct {
	net.Listener
	free chan struct{}
}

type stuckConn struct {
	net.Conn
	free chan struct{}
}

func (c stuckConn) Close() error {
	<-c.free
	return nil
}

func (d stuckDoor) next(*health.Part, func(identity.User) bool) (net.Conn, identity.User, bool, error) {
	select {
	case <-d.free:
		return nil, identity.Nobody, false, net.ErrClosed
	default:
		return stuckConn{free: d.free}, identity.Nobody, false, nil
	}
}

func (d stuckDoor) identify(net.Conn) (peer, error) {
	<-d.free
	return peer{}, nil
}

// A listener whose connections hang is named, and so is its accept when it hangs, too.
func TestWedgedListenersAreNamed(t *testing.T) {
	m := &health.Monitor{}
	d := stuckDoor{free: make(chan struct{})}
	newLimitListener(d, budget.New(), addParts(m, "the HTTP port"))
	await := func(what string, want func(s health.State) bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			ok := 0
			for _, s := range m.States() {
				if want(s) {
					ok++
				}
			}
			switch {
			case ok == 2:
				return
			case time.Now().After(end):
				t.Fatalf("%s: %+v", what, m.States())
			}
		}
	}
	await("both hang", func(s health.State) bool {
		return s.Age > 50*time.Millisecond && strings.HasSuffix(s.Name, " the HTTP port") && s.Vital == strings.HasPrefix(s.Name, "accept")
	})
	close(d.free)
	await("both work again", func(s health.State) bool { return s.Age == 0 })
}
