// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"fmt"
	"time"

	"xsched/internal/wire"
)

// This file is what clients say of their hardware queues, and what they are told about those that
// obey only the process that made them.

// orderTime is how long a process may take to read its orders: its helper thread does
// nothing else for long.
const orderTime = time.Second

// order sends one to the process. Several may be sent at once, from whatever goroutine.
func (s *Session) order(o wire.Order) error {
	_ = s.conn.SetWriteDeadline(time.Now().Add(orderTime))
	if _, err := s.conn.Write(wire.EncodeOrder(o)); err != nil {
		return fmt.Errorf("reach process %d: %w", s.PID, err)
	}
	return nil
}

// queueFrame is a process that tells of its queues.
func (s *Session) queueFrame(packet []byte) error {
	events, err := wire.DecodeKFD(packet)
	if err != nil {
		return err
	}
	hw, ok := s.hw.(QueueHardware)
	if !ok {
		return nil
	}
	for _, e := range events {
		hw.Queue(e)
	}
	s.poke()
	return nil
}

// doneFrame is a process that has carried out an order.
func (s *Session) doneFrame(packet []byte) (awaited bool, err error) {
	d, err := wire.DecodeDone(packet)
	if err != nil {
		return false, err
	}
	hw, ok := s.hw.(QueueHardware)
	return ok && hw.Answer(*d), nil
}

// frame handles one packet and owns its descriptors. An error ends the session. awaited: it
// answers something that was asked.
func (s *Session) frame(packet []byte, fds []int) (awaited bool, err error) {
	if f, err := wire.DecodeFrame(packet); err == nil && len(fds) == 0 {
		switch f.Type {
		case wire.FrameHint:
			return false, s.hintFrame(packet)
		case wire.FrameKFD:
			return false, s.queueFrame(packet)
		case wire.FrameDone:
			return s.doneFrame(packet)
		}
	}
	return false, s.objectFrame(packet, fds)
}

// objectFrame is about objects of NVIDIA's resource manager.
func (s *Session) objectFrame(packet []byte, fds []int) error {
	events, err := wire.DecodeRM(packet)
	if err != nil {
		closeFDs(fds)
		return err
	}
	carries := len(events) == 1 && events[0].Kind == wire.RMClient
	if carries && len(fds) == 1 {
		if s.hw == nil {
			closeFDs(fds)
			return nil
		}
		if err := s.hw.AddClient(events[0].Client, fds[0]); err != nil {
			// Not an end: it only stays at level 1, and `list` says why.
			s.hub.log.Warn("control file refused", "pid", s.PID, "err", err)
		}
		s.poke()
		return nil
	}
	closeFDs(fds)
	if len(fds) > 0 || carries {
		return fmt.Errorf("%w: %d descriptors with %d RM events", wire.ErrFrame, len(fds), len(events))
	}
	if s.hw == nil {
		return nil
	}
	for _, e := range events {
		switch e.Kind {
		case wire.RMClient:
			return fmt.Errorf("%w: RM client without its file", wire.ErrFrame)
		case wire.RMAlloc:
			if err := s.hw.Alloc(e.Client, e.Parent, e.Object, e.ObjectClass); err != nil {
				s.hub.log.Debug("object ignored", "pid", s.PID, "err", err)
			}
		case wire.RMFree:
			s.hw.Free(e.Client, e.Object)
		case wire.RMTimeslice:
			s.hw.Timeslice(e.Client, e.Object, e.Value)
		}
	}
	s.poke()
	return nil
}
