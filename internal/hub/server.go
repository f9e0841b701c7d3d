// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/model"
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

func (h *Hub) accept() {
	for {
		c, err := h.cfg.Listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors, most likely: sessions that end give some back.
			h.log.Warn("accept failed", "err", err)
			time.Sleep(acceptPause)
			continue
		}
		select {
		case h.handshakes <- struct{}{}:
		case <-h.ctx.Done():
			_ = c.Close()
			return
		}
		h.wg.Go(func() { h.serve(c) })
	}
}

// serve is one connection from its first packet to its last.
func (h *Hub) serve(c *net.UnixConn) {
	s, err := h.handshake(c)
	<-h.handshakes
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
		h.countRefusal(r.name)
		h.log.Info("client refused", "reason", r.reason)
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

type credentials struct {
	pid, uid int
	pidfd    int
}

// peer reads the peer's credentials from the kernel. From Linux 6.5 the socket
// yields its pidfd; before, the pid may have been reused since it connected.
func peer(c *net.UnixConn) (credentials, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return credentials{}, err
	}
	cr := credentials{pidfd: -1}
	var inner error
	err = raw.Control(func(fd uintptr) {
		ucred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			inner = fmt.Errorf("read peer credentials: %w", err)
			return
		}
		cr.pid, cr.uid = int(ucred.Pid), int(ucred.Uid)
		if cr.pid == 0 {
			inner = &refusal{"foreign_pid_namespace", "the client is in a pid namespace that the daemon can't see: run the daemon in the host's, or share it (--pid=host)"}
			return
		}
		if pidfd, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); err == nil {
			cr.pidfd = pidfd
			return
		}
		if cr.pidfd, err = unix.PidfdOpen(cr.pid, 0); err != nil {
			inner = &refusal{"pidfd", fmt.Sprintf("pidfd of process %d: %v", cr.pid, err)}
		}
	})
	if err == nil {
		err = inner
	}
	return cr, err
}

// handshake takes HELLO and answers WELCOME.
func (h *Hub) handshake(c *net.UnixConn) (*Session, error) {
	cr, err := h.cfg.peer(c)
	if err != nil {
		if cr.pidfd >= 0 {
			_ = unix.Close(cr.pidfd)
		}
		return nil, err
	}
	if r := h.reserve(cr.uid); r != nil {
		_ = unix.Close(cr.pidfd)
		return nil, r
	}
	h.pend(cr.uid, 1)
	defer h.pend(cr.uid, -1)
	s := &Session{PID: cr.pid, UID: cr.uid, pidfd: cr.pidfd, conn: c, bell: -1}
	fds, err := h.introduce(s, c)
	if err != nil {
		h.unreserve(cr.uid)
		_ = unix.Close(cr.pidfd)
		return nil, err
	}
	// From here on the session's end cleans up.
	err = h.welcome(s, c, fds)
	for _, fd := range fds[:1] {
		_ = unix.Close(fd) // the page's file; the mapping and the client's copy stay
	}
	if err != nil {
		s.end(!alive(cr.pidfd), err.Error())
		return nil, err
	}
	return s, nil
}

// introduce reads HELLO and makes the page and the doorbell.
func (h *Hub) introduce(s *Session, c *net.UnixConn) ([]int, error) {
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
	h.introduceHint(s, hello)
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create doorbell: %w", err)
	}
	s.bell = bell
	s.hw = h.cfg.NewHardware(driver.SessionOptions{PID: s.PID, UID: s.UID, Log: h.log.With("pid", s.PID), Send: s.send})
	memfd, err := h.newSession(s)
	if err != nil {
		_ = unix.Close(bell)
		s.hw.Close()
		return nil, err
	}
	return []int{memfd, bell}, nil
}

// mayHave says why a user may not have a priority; empty: may.
func (h *Hub) mayHave(uid int, p model.Priority) string {
	if p > model.PriorityDefault && h.cfg.UID == 0 && uid != 0 && !h.cfg.AllowPriority {
		return fmt.Sprintf("priority %d was asked for: only root may have one above 0 from a daemon of root's", p)
	}
	return ""
}

// welcome makes the session known to everybody and hands over page and doorbell.
func (h *Hub) welcome(s *Session, c *net.UnixConn, fds []int) error {
	if err := h.reaper.add(s); err != nil {
		return err
	}
	go s.resolve()
	s.poke() // also before the first frame: the reason for a missing level may be the host's
	var joined error
	if err := h.call(h.ctx, func(l *loop) { joined = l.join(s) }); err != nil {
		return err
	}
	if joined != nil {
		return joined
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
			s.hub.countRefusal("malformed")
			s.hub.log.Warn("client ended", "pid", s.PID, "err", err)
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

// Attach enters a process without a shim. It has no doorbell, and counts as busy
// until it has shown no work for a while. The hub takes pidfd and hardware over,
// also when it fails.
func (h *Hub) Attach(ctx context.Context, s *Session, hint model.Hint, hw driver.Attached, pidfd int) error {
	abandon := func() {
		hw.Close()
		_ = unix.Close(pidfd)
	}
	if r := h.reserve(s.UID); r != nil {
		abandon()
		return r
	}
	s.Attached, s.hw, s.pidfd, s.bell, s.hint = true, hw, pidfd, -1, hint
	s.hint.Nice = niceOf(s.PID)
	s.granted = hint.Priority // the caller was asked whether it may
	memfd, err := h.newSession(s)
	if err != nil {
		h.unreserve(s.UID)
		abandon()
		return err
	}
	defer func() { _ = unix.Close(memfd) }()
	// The guardian must see a living daemon from its first look on.
	if err = h.reaper.add(s); err == nil {
		err = h.call(ctx, func(l *loop) { s.page.Heartbeat(l.now()) })
	}
	if err == nil {
		var onEnd func(restored bool)
		if onEnd, err = hw.Guard(ctx, uint64(s.ID), memfd); err == nil && !s.atEnd(onEnd) {
			onEnd(true) // nothing was done to it
			err = errEnd
		}
	}
	if err == nil {
		var joined error
		err = h.call(ctx, func(l *loop) {
			if joined = l.join(s); joined == nil {
				l.setCaps(s, hw.Capabilities())
			}
		})
		err = errors.Join(err, joined)
	}
	if err != nil {
		s.end(false, err.Error())
		return err
	}
	go s.resolve()
	return nil
}
