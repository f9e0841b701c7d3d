// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// Attach opens a session for a process without a shim. The session has no doorbell: the process
// counts as busy until it has shown no work for a while. The caller is authorised to set the hint.
// Attach takes ownership of hw and pidfd, also on failure.
func (srv *Server) Attach(ctx context.Context, identity loop.Identity, hint model.Hint, hw driver.Attached, pidfd int) (*Session, error) {
	abandon := func() {
		hw.Close()
		_ = unix.Close(pidfd)
	}
	if r := srv.reserve(identity.UID); r != nil {
		abandon()
		return nil, r
	}
	s := &Session{Identity: identity, hw: hw, pidfd: pidfd}
	s.Attached = true
	o := loop.ClientOptions{Doorbell: -1, Hint: hint, Granted: hint.Priority}
	o.Hint.Nice = niceOf(s.PID)
	memfd, err := srv.newSession(s, o)
	if err != nil {
		srv.unreserve(s.UID)
		abandon()
		return nil, err
	}
	defer func() { _ = unix.Close(memfd) }()
	// The guardian must find a recent heartbeat at its first check.
	if err = srv.reaper.add(s); err == nil {
		err = srv.loop.Heartbeat(ctx, s.client)
	}
	if err == nil {
		var onEnd func(restored bool)
		if onEnd, err = hw.Guard(ctx, uint64(s.ID), memfd); err == nil && !s.atEnd(onEnd) {
			onEnd(true) // nothing to restore
			err = errEnd
		}
	}
	if err == nil {
		err = srv.loop.Join(ctx, s.client, hw.Capabilities())
	}
	if err != nil {
		s.end(false, err.Error())
		return nil, err
	}
	go s.probeLoop()
	return s, nil
}

// ErrNotFreed reports that a detached process is still suspended, because the device has not
// answered. The session resumes the process as soon as the device answers.
var ErrNotFreed = errors.New("the device has not answered: the process is not free yet")

// detachTime limits how long Detach waits for the device.
const detachTime = 2 * time.Second

// Detach ends the session of an attached process. Without an error the process is free.
func (srv *Server) Detach(ctx context.Context, pid int) error {
	var freed <-chan struct{}
	var joined error
	for _, s := range srv.all() {
		switch {
		case s.PID != pid:
		case s.Attached:
			freed = s.freed
			go s.end(false, "detached")
		default:
			joined = errors.New("the process has joined by itself")
		}
	}
	switch {
	case joined != nil:
		return joined
	case freed == nil:
		return loop.ErrUnknownPID
	}
	timer := time.NewTimer(detachTime)
	defer timer.Stop()
	select {
	case <-freed:
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	return ErrNotFreed
}
