// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// Attach opens a session for a process without a shim. The session has no doorbell: the process
// counts as busy until it has shown no work for a while. The caller is authorised to set the hint.
// Attach takes ownership of hw and pidfd, also on failure.
func (srv *Server) Attach(ctx context.Context, who loop.Identity, hint model.HintChange, hw driver.Attached, pidfd int) (*Session, error) {
	abandon := func() {
		hw.Close()
		_ = unix.Close(pidfd)
	}
	if r := srv.reserve(who.User); r != nil {
		abandon()
		return nil, r
	}
	s := &Session{Identity: who, hw: hw, pidfd: pidfd, version: wire.Version}
	s.Attached = true
	o := loop.ClientOptions{Doorbell: -1, Nice: niceOf(s.PID)}
	o.Kept.Set = hint
	o.Granted, _ = hint.Top()
	memfd, err := srv.newSession(s, o)
	if err != nil {
		srv.unreserve(s.User)
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
	// A previous daemon may have left the process suspended or with its timeslices.
	if err == nil {
		if _, err = hw.Free(ctx); err != nil {
			err = fmt.Errorf("bring it to a known state: %w", err)
		}
	}
	if err == nil {
		err = srv.join(ctx, s, hw.Capabilities())
	}
	if err != nil {
		s.end(false, err.Error())
		return nil, err
	}
	go s.probeLoop()
	return s, nil
}

// replaceAttached ends the attached session of a process whose shim joins. Two sessions would undo
// each other's suspensions. It reports whether the process was suspended by hand.
func (srv *Server) replaceAttached(pid int) (held bool) {
	for _, s := range srv.all() {
		if s.PID != pid || !s.Attached {
			continue
		}
		s.end(false, "the process has joined by itself")
		select {
		case <-s.closed:
		case <-time.After(replaceTime): // newSession refuses; the shim tries again
		}
		held, _ = srv.loop.Held(srv.ctx, s.client) // not before: until the end it may be suspended or resumed
	}
	return held
}

// replaceTime limits how long a shim waits for the end of the attached session.
const replaceTime = helloTime

// ErrNotFreed reports that a detached process may still be suspended, because the device has not
// answered or has refused. The guardian repeats the resume until it succeeds.
var ErrNotFreed = errors.New("the process is not free yet")

// detachTime limits how long Detach waits for the device.
const detachTime = 2 * time.Second

// Detach ends the session of an attached process. Without an error the process is free, as verified.
func (srv *Server) Detach(ctx context.Context, pid int) (driver.Freed, error) {
	var found *Session
	var joined error
	for _, s := range srv.all() {
		switch {
		case s.PID != pid:
		case s.Attached:
			found = s
			go s.end(false, "detached")
		default:
			joined = errors.New("the process has joined by itself")
		}
	}
	switch {
	case joined != nil:
		return driver.Freed{}, joined
	case found == nil:
		return driver.Freed{}, loop.ErrUnknownPID
	}
	timer := time.NewTimer(detachTime)
	defer timer.Stop()
	select {
	case <-found.closed:
		return found.freed, found.freeErr
	case <-timer.C:
	case <-ctx.Done():
	}
	return driver.Freed{}, fmt.Errorf("the device has not answered: %w", ErrNotFreed)
}
