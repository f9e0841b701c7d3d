// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"xsched/internal/identity"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

func TestLimits(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { c.Session.MaxSessionsPerUID = 2; c.Loop.UID = 0 })
	_, b := h.Client(t, 0, 0), h.Client(t, 0, 0)
	if _, err := sessiontest.Dial(h.Path, wire.Hello{}); err == nil || !strings.Contains(err.Error(), "limit of uid") {
		t.Errorf("third client: %v", err)
	}
	_ = b.Conn.Close()
	sessiontest.Await(t, "place is free", func() bool { return h.Server.Stats().Sessions == 1 })
	sessiontest.Await(t, "third joins", func() bool {
		c, err := sessiontest.Dial(h.Path, wire.Hello{})
		if err == nil {
			t.Cleanup(c.Close)
		}
		return err == nil
	})
	may := func(u identity.User, priority string) bool {
		change := sessiontest.Change("priority", priority)
		return h.MayHave(u, nil, &change) == ""
	}
	if may(identity.OnHost(1000), "5") || !may(identity.User{}, "5") || !may(identity.OnHost(1000), "0") {
		t.Error("priority rule")
	}
}

// A PID is reused while the session of its previous process ends. The next process must not join
// beside it, because the previous user may change whatever has the PID.
func TestReusedPID(t *testing.T) {
	var uid atomic.Int64
	h := sessiontest.Start(t, func(c *sessiontest.Config) {
		c.Session.Peer = func(conn *net.UnixConn) (identity.Peer, error) {
			p, err := identity.OfConn(conn)
			p.User = identity.OnHost(int(uid.Load()))
			return p, err
		}
	})
	uid.Store(1000)
	h.Client(t, 0, 0)
	h.Client(t, 0, 0) // a second session of the same process
	uid.Store(1001)
	if c, err := sessiontest.Dial(h.Path, wire.Hello{}); err == nil {
		c.Close()
		t.Fatal("another user's process joined with the same PID")
	}
	uid.Store(1000)
	h.Client(t, 0, 0) // the refused one has left nothing behind
}

// Another user of a root daemon may not raise its priority.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to be two users")
	}
	h := sessiontest.Start(t, nil)
	_ = os.Chmod(filepath.Dir(h.Path), 0o755)
	_ = os.Chmod(h.Path, 0o666)
	type result struct {
		c   *sessiontest.Client
		err error
	}
	done := make(chan result)
	go func() {
		// Only this thread becomes the other user; it is not unlocked and so ends with the goroutine.
		runtime.LockOSThread()
		const nobody = 65534
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); e != 0 {
			done <- result{err: e}
			return
		}
		c, err := sessiontest.Dial(h.Path, wire.Hello{Hint: wire.Hint{Said: wire.HintPriority, Priority: 9}})
		done <- result{c, err}
	}()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	defer r.c.Close()
	v, err := h.Clients(context.Background())
	if err != nil || len(v) != 1 || v[0].User.UID != 65534 || v[0].Hint.Priority != 0 || v[0].PriorityNote == "" {
		t.Errorf("%+v %v", v, err)
	}
}

// TestPlacesForOthers lets three users take all they get. Each next one finds places, and so does
// root. A user's namespaces and uids of his containers do not add places.
func TestPlacesForOthers(t *testing.T) {
	var users []identity.User
	var mu sync.Mutex
	h := sessiontest.Start(t, func(c *sessiontest.Config) {
		sessiontest.Users(c, 0)
		real := c.Session.Peer
		c.Session.MaxSessions = 32
		c.Session.Peer = func(conn *net.UnixConn) (identity.Peer, error) {
			p, err := real(conn)
			mu.Lock()
			defer mu.Unlock()
			p.User = users[0]
			users = users[1:]
			return p, err
		}
	})
	take := func(most int, as func(i int) identity.User) (n int) {
		for i := range most {
			mu.Lock()
			users = append(users, as(i))
			mu.Unlock()
			c, err := sessiontest.Dial(h.Path, wire.Hello{})
			if err != nil {
				break
			}
			t.Cleanup(c.Close)
			n++
		}
		return n
	}
	for _, test := range []struct {
		name     string
		as       func(i int) identity.User
		min, max int
	}{
		{"a user and his namespaces", func(i int) identity.User {
			if i%2 == 0 {
				return identity.OnHost(1000)
			}
			return identity.User{UID: 100000 + i, Namespace: uint64(i), Creator: 1000}
		}, 16, 16},
		{"a container", func(i int) identity.User { return identity.User{UID: i, Container: "/docker/1"} }, 8, 8},
		{"another user", func(int) identity.User { return identity.OnHost(1001) }, 4, 4},
		{"one more", func(int) identity.User { return identity.OnHost(1002) }, 2, 2},
		{"root", func(int) identity.User { return identity.User{} }, 2, 2},
	} {
		if n := take(32, test.as); n < test.min || n > test.max {
			t.Errorf("%s has %d places", test.name, n)
		}
	}
}
