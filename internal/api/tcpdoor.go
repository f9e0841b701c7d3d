// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"xsched/internal/budget"
	"xsched/internal/health"
	"xsched/internal/identity"
)

// tcpDoor is the door of a TCP port.
type tcpDoor struct{ net.Listener }

// tcpConn is a connection within this machine, and who owns its other end.
type tcpConn struct {
	net.Conn
	uid   int
	inode uint64
	err   error // why the owner is not known
}

// refuseBatch is how long connections are refused before a pause. The pauses of shorter batches would be
// shorter than a timer.
const refuseBatch = time.Millisecond

// next charges connections from this machine to the users that own them. One question to the kernel
// finds the owner in 20 us, however many sockets there are. Connections that one user opens without end
// are closed here, and others find places. Connections from other machines, and all on a kernel that
// does not answer, share the places of those that are not known.
func (d tcpDoor) next(part *health.Part, enter func(identity.User) bool) (_ net.Conn, user identity.User, known bool, err error) {
	for spent := time.Duration(0); ; {
		c, err := d.Accept()
		if err != nil {
			return nil, user, false, err
		}
		part.Begin()
		began := time.Now()
		owned, ok := ownerOf(c, diagOwner)
		if !ok {
			return c, user, false, nil
		}
		user = owned.user()
		if enter(user) {
			return owned, user, true, nil
		}
		_ = c.Close()
		if spent += time.Since(began); spent >= refuseBatch {
			time.Sleep(budget.Pause(spent))
			spent = 0
		}
		part.End()
	}
}

// user is whom the limits apply to.
func (c *tcpConn) user() identity.User {
	if c.err != nil {
		return identity.Nobody
	}
	return identity.OnHost(c.uid)
}

// ownerOf asks who owns the other end of a connection; false: it is not on this machine, or the kernel
// does not answer.
func ownerOf(conn net.Conn, ask func(src, dst netip.AddrPort) (int, uint64, error)) (*tcpConn, bool) {
	local, localOK := conn.LocalAddr().(*net.TCPAddr)
	remote, remoteOK := conn.RemoteAddr().(*net.TCPAddr)
	if !localOK || !remoteOK || !remote.IP.IsLoopback() || !local.IP.IsLoopback() {
		return nil, false
	}
	c := &tcpConn{Conn: conn}
	c.uid, c.inode, c.err = ask(unmapped(remote.AddrPort()), unmapped(local.AddrPort()))
	return c, c.err == nil || errors.Is(c.err, errNoOwner)
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// identify finds the user behind a loopback connection. Connections from other machines, and
// those whose user is unknown, share the limits of one user.
//
// The kernel names the uid of a TCP connection, but not its process. A process in a container may
// share the host's network, so the uid alone proves nothing. The first request finds the process.
func (tcpDoor) identify(conn net.Conn) (peer, error) {
	p := peer{Peer: identity.Peer{User: identity.Nobody, PIDFD: -1}}
	c, ok := conn.(*tcpConn)
	if !ok {
		if c, _ = ownerOf(conn, procOwner); c == nil {
			return p, nil // from another machine
		}
	}
	p.local = true
	if c.err != nil {
		p.err = c.err
		return p, nil
	}
	p.User = c.user()
	p.resolve = untilFound(func() (identity.Peer, error) { return searches.find(c.inode, c.uid) })
	return p, nil
}

// untilFound remembers the first success. A failed search, for example on a busy machine, is repeated
// by the connection's next request: a browser keeps its connections.
func untilFound(find func() (identity.Peer, error)) func() (identity.Peer, error) {
	var mu sync.Mutex
	var found *identity.Peer
	return func() (identity.Peer, error) {
		mu.Lock()
		defer mu.Unlock()
		if found != nil {
			return *found, nil
		}
		p, err := find()
		if err == nil {
			found = &p
		}
		return p, err
	}
}

// searches runs one search for a process per user at a time: a search takes as long as the user has
// open files.
var searches = search{busy: map[int]chan struct{}{}}

type search struct {
	mu   sync.Mutex
	busy map[int]chan struct{}
}

func (s *search) find(inode uint64, uid int) (identity.Peer, error) {
	for {
		s.mu.Lock()
		wait := s.busy[uid]
		if wait == nil {
			break
		}
		s.mu.Unlock()
		<-wait
	}
	done := make(chan struct{})
	s.busy[uid] = done
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.busy, uid)
		s.mu.Unlock()
		close(done)
	}()
	return identity.OfSocket(inode, uid)
}
