// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/quarantine"
	"xsched/internal/wire"
)

// Limits of clients.
const (
	helloTime   = time.Second // from connect to HELLO
	frameRate   = 1000        // sustained frames per second of one client
	frameBurst  = 2000        // a process with many contexts sends a burst at its start
	helloPerUID = 64          // connections of one user that have not sent HELLO
	helloAll    = 512         // of all users
	acceptPause = 10 * time.Millisecond
	// framePause is how long a frame of a user over its budget delays the next one. A reply that the
	// daemon waits for may be that one. 1,024 sessions then send 10,000 frames a second.
	framePause = 100 * time.Millisecond
)

// refusal is the reason why a client may not join: a name for the metrics, a line for the client.
type refusal struct{ name, reason string }

func (r *refusal) Error() string { return r.reason }

func (srv *Server) accept() {
	crowded := wire.EncodeRefused(0, "too many connections of this user have not sent HELLO, or it starts programs too fast")
	var user identity.User
	taken := false
	// It runs in the only goroutine that accepts, so it costs microseconds: connections that one user
	// opens without end are refused here, and others do not wait.
	enter := func(uid, pid int) bool {
		srv.parts.accept.Begin()
		user = srv.cfg.Glance(uid, pid)
		if taken = !srv.cfg.Budget.Exempt(user); taken && !srv.door.Take(user) {
			taken = false
			srv.countRefusal("full_hello", 0)
			srv.parts.accept.End()
			return false
		}
		return true
	}
	for {
		taken = false
		srv.parts.accept.End()
		c, err := srv.listener.AcceptKept(enter, crowded)
		srv.parts.accept.Begin()
		if errors.Is(err, net.ErrClosed) {
			srv.parts.accept.End()
			return
		}
		if err != nil {
			if taken {
				srv.door.Give(user)
			}
			// Most likely out of descriptors; ending sessions release some.
			srv.log.Warn("accept failed", "err", err)
			time.Sleep(acceptPause)
			continue
		}
		from := user
		srv.wg.Go(func() { srv.serve(c, from) })
	}
}

// admit waits until the user of a connection is within its budget, and then handshakes.
func (srv *Server) admit(c *quarantine.Conn, user identity.User) (s *Session, cr identity.Peer, err error) {
	if !srv.cfg.Budget.Exempt(user) {
		defer srv.door.Give(user)
	}
	ctx, cancel := context.WithTimeout(srv.ctx, helloTime)
	defer cancel()
	if err := srv.cfg.Budget.Enter(ctx, user); err != nil {
		return nil, identity.Peer{User: user, PIDFD: -1}, &refusal{"full_budget", err.Error()}
	}
	work := srv.cfg.Budget.Work(user)
	cr, err = srv.cfg.Peer(c.UnixConn)
	work()
	if err != nil {
		if cr.PIDFD >= 0 {
			_ = unix.Close(cr.PIDFD)
		}
		return nil, cr, err
	}
	if cr.User.Account() != user.Account() {
		if err := srv.cfg.Budget.Enter(ctx, cr.User); err != nil {
			_ = unix.Close(cr.PIDFD)
			return nil, cr, &refusal{"full_budget", err.Error()}
		}
	}
	s, err = srv.handshake(c, cr)
	return s, cr, err
}

// serve handles one connection from its first packet to its last. Its place at the door is the user's.
func (srv *Server) serve(c *quarantine.Conn, user identity.User) {
	begun := srv.parts.handshakes.Begin()
	s, cr, err := srv.admit(c, user)
	begun()
	if leftEarly(err) {
		srv.log.Debug("client ended before its session began", "pid", cr.PID)
		_ = c.Close()
		return
	}
	if err != nil {
		var version *wire.VersionError
		var r *refusal
		theirs := uint32(0)
		switch {
		case errors.As(err, &version):
			theirs = version.Theirs
			r = &refusal{"version", fmt.Sprintf("the library speaks version %d, the daemon %d and %d: use the library of this release or the previous one",
				version.Theirs, wire.Version, wire.VersionMin)}
		case !errors.As(err, &r):
			r = &refusal{"error", err.Error()}
		}
		if srv.countRefusal(r.name, cr.PID) {
			// The account pays for the line: its processes do not suppress those of others.
			srv.log.Info("client refused", "pid", cr.PID, "user", cr.User.Account(), "reason", r.reason)
		}
		_ = c.SetWriteDeadline(time.Now().Add(helloTime))
		_, _ = c.Write(wire.EncodeRefused(theirs, r.reason))
		_ = c.Close()
		return
	}
	err = s.read()
	work := srv.cfg.Budget.Work(s.User)
	s.end(!identity.Alive(s.pidfd), reason(err))
	work()
}

// reason is why a session ended: a peer that is gone has one reason, whichever call noticed it.
func reason(err error) string {
	if leftEarly(err) {
		return errEnd.Error()
	}
	return err.Error()
}

// leftEarly reports that the client closed its connection during the handshake. A program that ends
// early was not refused.
func leftEarly(err error) bool {
	for _, end := range []error{errEnd, io.EOF, unix.EPIPE, unix.ECONNRESET, identity.ErrEnded} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}

// peer identifies the process of a connection.
func peer(c *net.UnixConn) (identity.Peer, error) {
	p, err := identity.OfConn(c)
	switch {
	case errors.Is(err, identity.ErrUnseen):
		err = &refusal{"foreign_pid_namespace", err.Error() + ": run the daemon in the host's namespace, or share it (--pid=host)"}
	case err != nil && !errors.Is(err, identity.ErrEnded):
		err = &refusal{"identity", err.Error()}
	}
	return p, err
}

// handshake reads HELLO and replies with WELCOME.
func (srv *Server) handshake(c *quarantine.Conn, cr identity.Peer) (s *Session, err error) {
	c.Charge(cr.User.Account().Key())
	if r := srv.reserve(cr.User); r != nil {
		_ = unix.Close(cr.PIDFD)
		return nil, r
	}
	srv.pend(cr.User, 1)
	defer srv.pend(cr.User, -1)
	s = &Session{Identity: loop.Identity{PID: cr.PID, PIDNamespace: cr.PIDNamespace, LocalPID: cr.LocalPID, User: cr.User}, pidfd: cr.PIDFD, conn: c}
	hello, err := srv.readHello(c)
	defer srv.cfg.Budget.Work(cr.User)()
	var fds []int
	if err == nil {
		fds, err = srv.open(s, hello)
	}
	if err != nil {
		srv.unreserve(cr.User)
		_ = unix.Close(cr.PIDFD)
		return nil, err
	}
	// From here on, end releases the resources.
	err = srv.welcome(s, c, fds)
	for _, fd := range fds[:1] {
		_ = unix.Close(fd) // the page stays mapped, and the client has its own descriptor
	}
	if err != nil {
		s.end(!identity.Alive(cr.PIDFD), reason(err))
		return nil, err
	}
	return s, nil
}

// readHello waits for HELLO.
func (srv *Server) readHello(c *quarantine.Conn) (hello *wire.Hello, err error) {
	_ = c.SetReadDeadline(time.Now().Add(helloTime))
	buf := make([]byte, wire.FrameMaxBytes+1)
	packet, rights, err := receive(c, buf)
	if rights {
		return hello, &refusal{"malformed", "HELLO with descriptors"}
	}
	if leftEarly(err) {
		return hello, err
	}
	if err != nil {
		return hello, &refusal{"no_hello", "no HELLO received: " + err.Error()}
	}
	hello, err = wire.DecodeHello(packet)
	if err != nil {
		if _, ok := errors.AsType[*wire.VersionError](err); ok {
			return hello, err
		}
		return hello, &refusal{"malformed", err.Error()}
	}
	_ = c.SetReadDeadline(time.Time{})
	return hello, nil
}

// open creates the doorbell and the session. It returns the descriptors of page and doorbell.
func (srv *Server) open(s *Session, hello *wire.Hello) ([]int, error) {
	s.version = hello.Frame.Version
	s.ClientPID = int(hello.PID)
	s.Command = hello.CommandString()
	if program := identity.ProgramOf(s.PID); identity.Alive(s.pidfd) { // then its PID was not reused meanwhile
		s.Program = &program
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create doorbell: %w", err)
	}
	s.hw = srv.cfg.NewHardware(driver.SessionOptions{
		PID: s.PID, User: s.User, Log: srv.log.With("pid", s.PID), Send: s.send,
		Lease: func(gpu model.DeviceID) uint32 { return s.leases.Number(gpu) },
	})
	o := loop.ClientOptions{Doorbell: bell, Held: srv.replaceAttached(s.PID)}
	o.Said, o.Nice = hello.Hint.Change(), niceOf(s.PID)
	if hello.Scheduler == wire.SchedulerLocal {
		o.Policy = hello.PolicyString()
	}
	memfd, err := srv.newSession(s, o)
	if err != nil {
		_ = unix.Close(bell)
		s.hw.Close()
		return nil, err
	}
	return []int{memfd, bell}, nil
}

// welcome joins the session to the loop and sends page and doorbell to the client.
func (srv *Server) welcome(s *Session, c *quarantine.Conn, fds []int) error {
	if err := srv.reaper.add(s); err != nil {
		return err
	}
	go s.probeLoop()
	s.requestProbe() // without waiting for a frame: the host may limit the level
	if err := srv.join(srv.ctx, s, nil); err != nil {
		return err
	}
	_ = c.SetWriteDeadline(time.Now().Add(helloTime))
	_, _, err := c.WriteMsgUnix(wire.EncodeWelcome(uint64(s.ID), s.version), unix.UnixRights(fds...), nil)
	if err != nil {
		return fmt.Errorf("send welcome: %w", err)
	}
	return nil
}

// read handles the client's frames until the connection ends. The error is never nil.
func (s *Session) read() error {
	buf := make([]byte, wire.FrameMaxBytes+1)
	tokens, last := float64(frameBurst), time.Now()
	for {
		packet, rights, err := receive(s.conn, buf)
		if err != nil {
			return err
		}
		// Frames beyond the rate limit wait in the socket buffer.
		now := time.Now()
		tokens = min(tokens+now.Sub(last).Seconds()*frameRate, frameBurst)
		last = now
		if tokens--; tokens < 0 {
			time.Sleep(time.Duration(-tokens * float64(time.Second) / frameRate))
		}
		work := s.server.cfg.Budget.Work(s.User)
		awaited, err := s.frame(packet, rights)
		work()
		if awaited {
			tokens++ // a reply does not count
		} else {
			s.server.cfg.Budget.Pause(s.ctx, s.User, framePause)
		}
		if err != nil {
			s.server.countRefusal("malformed", s.PID)
			s.server.log.Warn("client sent a malformed frame", "pid", s.PID, "user", s.User, "err", err)
			return err
		}
	}
}

var errEnd = errors.New("connection closed")

// receive returns the next packet, within the limits of the protocol. A packet with descriptors
// (rights) stays in the connection.
func receive(c *quarantine.Conn, buf []byte) (packet []byte, rights bool, err error) {
	n, rights, err := c.Peek(buf)
	switch {
	case err != nil:
		return nil, false, err
	case n == 0:
		return nil, rights, errEnd
	case n > wire.FrameMaxBytes:
		return nil, rights, fmt.Errorf("%w: packet too long", wire.ErrFrame)
	case rights:
		return buf[:n], true, nil
	}
	if _, err := c.UnixConn.Read(buf[:n]); err != nil {
		return nil, false, err
	}
	return buf[:n], false, nil
}
