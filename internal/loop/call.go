// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"errors"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/driver"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// This file is the interface to other goroutines. Each request runs on the loop.

// ErrStopped reports a request to a loop that has ended.
var ErrStopped = errors.New("the daemon is stopping")

var (
	errEnded  = errors.New("the session has ended")
	errOldPID = errors.New("a session of another user with this PID has not ended yet; try again")
)

func (t *thread) ring() {
	t.fdMu.RLock()
	defer t.fdMu.RUnlock()
	if t.closed {
		return
	}
	one := [8]byte{1}
	_, _ = unix.Write(t.wake, one[:])
}

// call runs f on the loop and waits for it. After an error f was not run and never will be, so the
// caller owns the variables that f writes.
func (t *thread) call(ctx context.Context, f func()) error {
	var taken atomic.Bool // by the loop, or by a caller that gives up
	done := make(chan struct{})
	err := t.post(ctx, func() {
		if taken.CompareAndSwap(false, true) {
			f()
			close(done)
		}
	})
	if err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-t.done:
		err = ErrStopped
	case <-ctx.Done():
		err = ctx.Err()
	}
	if taken.CompareAndSwap(false, true) {
		return err
	}
	<-done // f runs, or has run
	return nil
}

// on charges requests to the client's user. A program of the administrator pays, too: only requests
// through the control interface come first.
func (c *Client) on(ctx context.Context) context.Context {
	return context.WithValue(ctx, clientKey{}, c.User)
}

// Heartbeat writes a heartbeat to the page of a client that has not joined yet.
func (l *Loop) Heartbeat(ctx context.Context, c *Client) error {
	return l.call(ctx, func() { c.page.Heartbeat(clock.Now()) })
}

// Join makes a client known to the engine and starts listening to its doorbell. caps is nil until
// the drivers have probed the client.
func (l *Loop) Join(ctx context.Context, c *Client, caps map[model.DeviceID]driver.Capability) error {
	var joined error
	err := l.call(c.on(ctx), func() {
		if joined = l.pages.join(c); joined == nil {
			l.pages.setCaps(c, caps)
		}
	})
	return errors.Join(err, joined)
}

// Remove removes a client, whether it has joined or not, and releases its page and doorbell. It is
// not bound to a context: sessions end while the daemon stops, and the loop ends last.
func (l *Loop) Remove(c *Client) {
	_ = l.call(c.on(context.Background()), func() { l.pages.remove(c) })
	l.mail.close(c.inbox)
}

// SetCapabilities updates what the drivers can do to a client on each device.
func (l *Loop) SetCapabilities(ctx context.Context, c *Client, caps map[model.DeviceID]driver.Capability) error {
	return l.post(c.on(ctx), func() { l.pages.setCaps(c, caps) })
}

// Turned reports that a worker lost or regained control of a client on a device.
func (l *Loop) Turned(ctx context.Context, c *Client, gpu model.DeviceID, w *driver.Worker) error {
	return l.post(c.on(ctx), func() { l.turned(c, gpu, w.Off(), w.Loose()) })
}

// TakeHint applies a hint that a client has sent.
func (l *Loop) TakeHint(ctx context.Context, c *Client, f *wire.HintFrame) error {
	return l.post(c.on(ctx), func() { l.pages.takeHint(c, f) })
}

// SetNice updates the CPU nice value of a client, or returns ErrBusy. It does not block.
func (l *Loop) SetNice(c *Client, nice int) error {
	return l.offer(c.User, func() { l.hints.setNice(c, nice) })
}

// OpenGates ends scheduling and opens every gate, because the daemon stops. It returns when ctx
// ends at the latest; a request that the loop has accepted still runs.
func (l *Loop) OpenGates(ctx context.Context) {
	opened := make(chan struct{})
	if l.post(ctx, func() { l.dispatch.openAll(); close(opened) }) != nil {
		return
	}
	select {
	case <-opened:
	case <-ctx.Done():
	}
}
