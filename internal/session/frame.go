// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"fmt"
	"time"

	"xsched/internal/driver"
	"xsched/internal/quarantine"
	"xsched/internal/wire"
)

// sendTime limits how long a process may take to read a driver's packet. Its helper thread does not
// block elsewhere for long.
const sendTime = time.Second

// send delivers a driver's packet. Safe for concurrent use.
func (s *Session) send(packet []byte) error {
	_ = s.conn.SetWriteDeadline(time.Now().Add(sendTime))
	if _, err := s.conn.Write(wire.Stamp(packet, s.version)); err != nil {
		return fmt.Errorf("send to process %d: %w", s.PID, err)
	}
	return nil
}

// frame handles one packet. An error ends the session. awaited reports a reply to a request, which does
// not count against the rate limit.
func (s *Session) frame(packet []byte, rights bool) (awaited bool, err error) {
	f, err := wire.DecodeFrame(packet)
	switch {
	case err != nil:
		return false, err
	case f.Version != s.version:
		return false, wire.Malformed("version %d in a session of version %d", f.Version, s.version)
	case !rights && f.Type == wire.FrameHint:
		return false, s.hintFrame(packet)
	}
	var fds []int
	if rights {
		var refused *quarantine.Refusal
		if fds, err = s.take(packet); errors.As(err, &refused) {
			return false, nil // the session continues at level 1, and `list` shows the reason
		}
	}
	if err == nil {
		awaited, err = s.hw.Frame(packet, fds)
	}
	if err == nil && !awaited {
		s.requestProbe()
	}
	return awaited, err
}

// take receives the descriptor of a packet, if its driver wants one.
func (s *Session) take(packet []byte) ([]int, error) {
	r, ok := s.hw.(driver.Receiver)
	if !ok {
		return nil, wire.Malformed("descriptors")
	}
	want, ok := r.Wants(packet)
	if !ok {
		return nil, wire.Malformed("descriptors")
	}
	fds, err := s.conn.Take(1, want)
	if _, ok := errors.AsType[*quarantine.Refusal](err); ok {
		s.server.log.Warn("descriptor refused", "pid", s.PID, "err", err)
		r.Refused(packet, err)
	}
	return fds, err
}

// hintFrame handles a program that changes its hints at run time.
func (s *Session) hintFrame(packet []byte) error {
	f, err := wire.DecodeHint(packet)
	if err != nil {
		return err
	}
	return s.server.loop.TakeHint(s.ctx, s.client, f)
}
