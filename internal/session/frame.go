// SPDX-License-Identifier: Apache-2.0

package session

import (
	"fmt"
	"time"

	"xsched/internal/seqpacket"
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

// frame handles one packet and owns its descriptors. An error ends the session.
// awaited reports a reply to a request, which does not count against the rate limit.
func (s *Session) frame(packet []byte, fds []int) (awaited bool, err error) {
	f, err := wire.DecodeFrame(packet)
	if err == nil && f.Version != s.version {
		seqpacket.CloseAll(fds)
		return false, wire.Malformed("version %d in a session of version %d", f.Version, s.version)
	}
	if err == nil && len(fds) == 0 && f.Type == wire.FrameHint {
		return false, s.hintFrame(packet)
	}
	awaited, err = s.hw.Frame(packet, fds)
	if err == nil && !awaited {
		s.requestProbe()
	}
	return awaited, err
}

// hintFrame handles a program that changes its hints at run time.
func (s *Session) hintFrame(packet []byte) error {
	f, err := wire.DecodeHint(packet)
	if err != nil {
		return err
	}
	return s.server.loop.TakeHint(s.ctx, s.client, f)
}
