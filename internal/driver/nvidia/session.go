// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"fmt"
	"log/slog"

	"xsched/internal/driver"
	"xsched/internal/quarantine"
	"xsched/internal/wire"
)

// session holds the RM objects of a process that announces them.
type session struct {
	*Objects
	log *slog.Logger
}

var _ driver.Session = (*session)(nil)

// Frame handles an RM frame: one new client with its control file, or events without files.
func (s *session) Frame(packet []byte, fds []int) (awaited bool, err error) {
	events, err := DecodeRM(packet)
	if err != nil {
		closeAll(fds)
		return false, err
	}
	carries := len(events) == 1 && events[0].Kind == RMClient
	if carries && len(fds) == 1 {
		if err := s.AddClient(events[0].Client, fds[0]); err != nil {
			// The session continues at level 1, and `list` shows the reason.
			s.log.Warn("control file refused", "err", err)
		}
		return false, nil
	}
	closeAll(fds)
	if len(fds) > 0 || carries {
		return false, fmt.Errorf("%w: %d descriptors with %d RM events", wire.ErrFrame, len(fds), len(events))
	}
	for _, e := range events {
		switch e.Kind {
		case RMClient:
			return false, fmt.Errorf("%w: RM client without its file", wire.ErrFrame)
		case RMAlloc:
			if err := s.Alloc(e.Client, e.Parent, e.Object, e.ObjectClass); err != nil {
				s.log.Debug("object ignored", "err", err)
			}
		case RMFree:
			s.Free(e.Client, e.Object)
		case RMTimeslice:
			s.Timeslice(e.Client, e.Object, e.Value)
		}
	}
	return false, nil
}

// Wants implements driver.Receiver: only the packet of a new client carries a file.
func (s *session) Wants(packet []byte) (quarantine.Want, bool) {
	events, err := DecodeRM(packet)
	if err != nil || len(events) != 1 || events[0].Kind != RMClient {
		return quarantine.Want{}, false
	}
	return s.driver.transport.Control(), true
}

// Refused implements driver.Receiver.
func (s *session) Refused(_ []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.showClients()
	s.rejected = err.Error()
}

// Disconnect is a no-op, because the daemon acts through its own duplicates.
func (s *Objects) Disconnect() {}
