// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/loop"
	"xsched/internal/seqpacket"
	"xsched/internal/wire"
)

// Bounds on what a client can ask of the daemon.
const (
	helloTime   = time.Second            // to say HELLO after connecting
	frameRate   = 1000                   // frames a second of one client in the long run
	frameBurst  = 2000                   // and at once: a process with many contexts starts like that
	helloPerUID = 64                     // connections of one user that have not said it yet
	lingerTime  = 200 * time.Millisecond // for a refused client to read why
	acceptPause = 10 * time.Millisecond
)

// refusal is why a client is not taken: a name for the counters, a line for the client.
type refusal struct{ name, reason string }

func (r *refusal) Error() string { return r.reason }

func (srv *Server) accept() {
	for {
		c, err := srv.cfg.Listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors, most likely: sessions that end give some back.
			srv.log.Warn("accept failed", "err", err)
			time.Sleep(acceptPause)
			continue
		}
		select {
		case srv.handshakes <- struct{}{}:
		case <-srv.ctx.Done():
			_ = c.Close()
			return
		}
		srv.wg.Go(func() { srv.serve(c) })
	}
}

// serve is one connection from its first packet to its last.
func (srv *Server) serve(c *net.UnixConn) {
	s, err := srv.handshake(c)
	<-srv.handshakes
	if err != nil {
		var version *wire.VersionError
		var r *refusal
		theirs := uint32(0)
		switch {
		case errors.As(err, &version):
			theirs = version.Theirs
			r = &refusal{"version", fmt.Sprintf("the library speaks version %d, the daemon %d: use the library of the same release", version.Theirs, version.Ours)}
		case !errors.As(err, &r):
			r = &refusal{"error", err.Error()}
		}
		srv.countRefusal(r.name)
		srv.log.Info("client refused", "reason", r.reason)
		_ = c.SetWriteDeadline(time.Now().Add(helloTime))
		_, _ = c.Write(wire.EncodeRefused(theirs, r.reason))
		linger(c)
		return
	}
	err = s.read()
	s.end(!alive(s.pidfd), err.Error())
}

// linger closes a connection after its client has read the last packet: closing
// with unread input would discard it.
func linger(c *net.UnixConn) {
	_ = c.CloseWrite()
	_ = c.SetReadDeadline(time.Now().Add(lingerTime))
	buf := make([]byte, wire.FrameMaxBytes)
	for range 16 {
		_, fds, err := receive(c, buf)
		seqpacket.CloseAll(fds)
		if err != nil && !errors.Is(err, wire.ErrFrame) {
			break
		}
	}
	_ = c.Close()
}

// Credentials identify the peer of a connection. The receiver owns PIDFD.
type Credentials struct {
	PID, UID int
	PIDFD    int // -1: none
}

// PeerCredentials reads the peer's credentials from the kernel. From Linux 6.5 the socket
// yields its pidfd; before, the pid may have been reused since it connected.
func PeerCredentials(c *net.UnixConn) (Credentials, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Credentials{}, err
	}
	cr := Credentials{PIDFD: -1}
	var inner error
	err = raw.Control(func(fd uintptr) {
		ucred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			inner = fmt.Errorf("read peer credentials: %w", err)
			return
		}
		cr.PID, cr.UID = int(ucred.Pid), int(ucred.Uid)
		if cr.PID == 0 {
			inner = &refusal{"foreign_pid_namespace", "the client is in a pid namespace that the daemon can't see: run the daemon in the host's, or share it (--pid=host)"}
			return
		}
		if pidfd, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); err == nil {
			cr.PIDFD = pidfd
			return
		}
		if cr.PIDFD, err = unix.PidfdOpen(cr.PID, 0); err != nil {
			inner = &refusal{"pidfd", fmt.Sprintf("pidfd of process %d: %v", cr.PID, err)}
		}
	})
	if err == nil {
		err = inner
	}
	return cr, err
}

// handshake takes HELLO and answers WELCOME.
func (srv *Server) handshake(c *net.UnixConn) (*Session, error) {
	cr, err := srv.cfg.Peer(c)
	if err != nil {
		if cr.PIDFD >= 0 {
			_ = unix.Close(cr.PIDFD)
		}
		return nil, err
	}
	if r := srv.reserve(cr.UID); r != nil {
		_ = unix.Close(cr.PIDFD)
		return nil, r
	}
	srv.pend(cr.UID, 1)
	defer srv.pend(cr.UID, -1)
	s := &Session{Identity: loop.Identity{PID: cr.PID, UID: cr.UID}, pidfd: cr.PIDFD, conn: c}
	fds, err := srv.introduce(s, c)
	if err != nil {
		srv.unreserve(cr.UID)
		_ = unix.Close(cr.PIDFD)
		return nil, err
	}
	// From here on the session's end cleans up.
	err = srv.welcome(s, c, fds)
	for _, fd := range fds[:1] {
		_ = unix.Close(fd) // the page's file; the mapping and the client's copy stay
	}
	if err != nil {
		s.end(!alive(cr.PIDFD), err.Error())
		return nil, err
	}
	return s, nil
}

// introduce reads HELLO and makes the page and the doorbell.
func (srv *Server) introduce(s *Session, c *net.UnixConn) ([]int, error) {
	_ = c.SetReadDeadline(time.Now().Add(helloTime))
	buf := make([]byte, wire.FrameMaxBytes+1)
	packet, fds, err := receive(c, buf)
	seqpacket.CloseAll(fds)
	if err != nil {
		return nil, &refusal{"no_hello", "no HELLO received: " + err.Error()}
	}
	hello, err := wire.DecodeHello(packet)
	if err != nil {
		if _, ok := errors.AsType[*wire.VersionError](err); ok {
			return nil, err
		}
		return nil, &refusal{"malformed", err.Error()}
	}
	_ = c.SetReadDeadline(time.Time{})
	s.ClientPID = int(hello.PID)
	s.Command = hello.CommandString()
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create doorbell: %w", err)
	}
	s.hw = srv.cfg.NewHardware(driver.SessionOptions{PID: s.PID, UID: s.UID, Log: srv.log.With("pid", s.PID), Send: s.send})
	o := loop.ClientOptions{Doorbell: bell}
	hello.Hint.Apply(&o.Hint)
	o.Hint.Nice = niceOf(s.PID)
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

// welcome makes the session known to everybody and hands over page and doorbell.
func (srv *Server) welcome(s *Session, c *net.UnixConn, fds []int) error {
	if err := srv.reaper.add(s); err != nil {
		return err
	}
	go s.resolve()
	s.poke() // also before the first frame: the reason for a missing level may be the host's
	if err := srv.loop.Join(srv.ctx, s.client, nil); err != nil {
		return err
	}
	_ = c.SetWriteDeadline(time.Now().Add(helloTime))
	_, _, err := c.WriteMsgUnix(wire.EncodeWelcome(uint64(s.ID)), unix.UnixRights(fds...), nil)
	if err != nil {
		return fmt.Errorf("send welcome: %w", err)
	}
	return nil
}

// read takes the client's frames until its end, and never returns nil.
func (s *Session) read() error {
	buf := make([]byte, wire.FrameMaxBytes+1)
	tokens, last := float64(frameBurst), time.Now()
	for {
		packet, fds, err := receive(s.conn, buf)
		if err != nil {
			seqpacket.CloseAll(fds)
			return err
		}
		// Frames beyond the rate wait in the client's own socket buffer.
		now := time.Now()
		tokens = min(tokens+now.Sub(last).Seconds()*frameRate, frameBurst)
		last = now
		if tokens--; tokens < 0 {
			time.Sleep(time.Duration(-tokens * float64(time.Second) / frameRate))
		}
		awaited, err := s.frame(packet, fds)
		if awaited {
			tokens++ // it was asked for
		}
		if err != nil {
			s.server.countRefusal("malformed")
			s.server.log.Warn("client ended", "pid", s.PID, "err", err)
			return err
		}
	}
}

var errEnd = errors.New("connection closed")

// receive reads one packet and its descriptors. Whatever is too much is an error.
func receive(c *net.UnixConn, buf []byte) ([]byte, []int, error) {
	var oob [256]byte
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, oob[:])
	fds := seqpacket.Rights(oob[:max(oobn, 0)])
	switch {
	case err != nil:
		return nil, fds, err
	case n == 0:
		return nil, fds, errEnd
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || n > wire.FrameMaxBytes:
		return nil, fds, fmt.Errorf("%w: packet too long", wire.ErrFrame)
	case len(fds) > wire.FrameMaxFDs:
		return nil, fds, fmt.Errorf("%w: %d descriptors", wire.ErrFrame, len(fds))
	}
	return buf[:n], fds, nil
}
