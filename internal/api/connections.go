// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"xsched/internal/budget"
	"xsched/internal/health"
	"xsched/internal/identity"
	"xsched/internal/quarantine"
)

// Bounds on connections to a listener. Every user may connect to a root daemon; no user may use
// up its file descriptors.
const (
	maxConnections        = 256
	maxConnectionsPerUser = 64
	// admitTime limits how long a connection waits for its user's budget. Clients wait for longer.
	admitTime = 5 * time.Second
)

// door accepts connections.
type door interface {
	net.Listener
	// next returns the next connection for which enter returns true, given whom it is charged to. Where
	// that is not known at once, enter is not called. known reports, also with an error, that it was.
	// The part has work from when a connection has come until it is refused or returned.
	next(part *health.Part, enter func(identity.User) bool) (c net.Conn, payer identity.User, known bool, err error)
	// identify identifies the peer of a connection, in a goroutine of its own.
	identify(net.Conn) (peer, error)
}

// limitListener accepts connections within the bounds, in all and by user. Each waits for its user's budget
// and is identified in a goroutine of its own, before the server knows it.
type limitListener struct {
	door
	budget *budget.Budget
	places budget.Places // by the user that a connection is charged to
	known  budget.Places // by the user that was identified
	new    chan struct{} // places of connections whose user is not known at all
	ready  chan *peerConn
	ended  chan struct{} // closed after err is set
	err    error
	parts  listenerParts
}

// A part counts as dead after these times. The second is above admitTime and a search on a busy machine.
const (
	acceptLimit  = 10 * time.Second
	connectLimit = 20 * time.Second
)

// listenerParts are those of a listener. A restart helps the accept, which waits for nobody. A connection
// may wait for what identifies its peer.
type listenerParts struct {
	accept      *health.Part
	connections *health.Calls
}

// addParts adds the parts of a listener to a monitor; nil: there is none.
func addParts(m *health.Monitor, name string) listenerParts {
	if m == nil {
		return listenerParts{}
	}
	p := listenerParts{m.Add("accept on "+name, acceptLimit, true), m.AddCalls("connections to "+name, connectLimit, false)}
	p.accept.End()
	return p
}

func newLimitListener(d door, b *budget.Budget, p listenerParts) *limitListener {
	l := &limitListener{
		door: d, budget: b, parts: p, ready: make(chan *peerConn), ended: make(chan struct{}), new: make(chan struct{}, maxConnections/2),
		places: budget.Places{All: maxConnections, Each: maxConnectionsPerUser},
		known:  budget.Places{All: maxConnections, Each: maxConnectionsPerUser},
	}
	go l.run()
	return l
}

// Accept returns the next connection whose peer is known.
func (l *limitListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.ready:
		return c, nil
	case <-l.ended:
		return nil, l.err
	}
}

// run accepts connections. It costs little for each: connections that one user opens without end are
// closed here, and others do not wait.
func (l *limitListener) run() {
	defer close(l.ended)
	for {
		l.parts.accept.End()
		conn, user, known, err := l.next(l.parts.accept, l.enter)
		l.parts.accept.Begin()
		switch {
		case err == nil && known:
			go l.admit(&peerConn{Conn: conn, listener: l, payer: user})
		case err == nil:
			select {
			case l.new <- struct{}{}:
				go l.identifyFirst(&peerConn{Conn: conn, listener: l})
			default:
				limits.connections.Add(1)
				_ = conn.Close()
			}
		case errors.Is(err, net.ErrClosed):
			l.parts.accept.End()
			l.err = err
			return
		default:
			if known {
				l.places.Give(user)
			}
			time.Sleep(acceptPause) // most likely out of descriptors; connections that end release some
		}
	}
}

// enter takes a place for a connection.
func (l *limitListener) enter(user identity.User) bool {
	ok := l.places.Take(user)
	if !ok {
		limits.connections.Add(1)
	}
	return ok
}

// identifyFirst admits a connection whose identification alone shows whom it is charged to.
func (l *limitListener) identifyFirst(c *peerConn) {
	done := l.parts.connections.Begin()
	took := budget.Measure()
	p, err := l.identify(c.Conn)
	l.budget.Charge(p.User, took())
	<-l.new
	done()
	if err != nil || !l.enter(p.User) {
		_ = c.Conn.Close()
		return
	}
	c.payer, c.peer, c.identified = p.User, p, true
	l.admit(c)
}

// acceptPause is the time until accept is tried again.
const acceptPause = 10 * time.Millisecond

// admit waits for the budget of a connection's user and identifies the peer.
func (l *limitListener) admit(c *peerConn) {
	defer l.parts.connections.Begin()()
	ctx, cancel := context.WithTimeout(context.Background(), admitTime)
	defer cancel()
	err := l.budget.Enter(ctx, c.payer)
	if err == nil && !c.identified {
		work := l.budget.Work(c.payer)
		c.peer, err = l.identify(c.Conn)
		work()
	}
	if c.known = err == nil && l.known.Take(c.peer.User); !c.known {
		limits.connections.Add(1)
		_ = c.Close()
		return
	}
	select {
	case l.ready <- c:
	case <-l.ended:
		_ = c.Close()
	}
}

// peerConn is a connection whose peer is known and counted.
type peerConn struct {
	net.Conn
	listener *limitListener
	payer    identity.User // whom its place is charged to
	peer     peer

	identified bool // before its budget was asked
	known      bool // counted in listener.known
	close      sync.Once
}

// Close also releases the connection's places.
func (c *peerConn) Close() error {
	err := c.Conn.Close()
	c.close.Do(func() {
		c.listener.places.Give(c.payer)
		if c.known {
			c.listener.known.Give(c.peer.User)
		}
		c.peer.close()
	})
	return err
}

// unixDoor is the door of a unix socket.
type unixDoor struct{ *quarantine.Listener }

func (d *unixDoor) next(part *health.Part, enter func(identity.User) bool) (_ net.Conn, user identity.User, known bool, _ error) {
	c, err := d.AcceptKept(func(uid, pid int) bool {
		part.Begin()
		user = identity.Glance(uid, pid)
		if known = enter(user); !known {
			part.End()
		}
		return known
	}, nil)
	if err != nil {
		return nil, user, known, err
	}
	return c, user, true, nil
}

func (d *unixDoor) identify(conn net.Conn) (peer, error) {
	c, ok := conn.(*quarantine.Conn)
	if !ok {
		return peer{}, errors.New("not a unix socket")
	}
	p, err := identity.OfConn(c.UnixConn)
	if errors.Is(err, identity.ErrUnseen) { // its requests get the reason
		return peer{Peer: p, local: true, err: err}, nil
	}
	if err != nil {
		return peer{}, err
	}
	c.Charge(p.User.Account().Key())
	return peer{Peer: p, local: true}, nil
}
