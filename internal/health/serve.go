// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// sendLimit bounds one answer. An answer fits into the buffer of a socket, so that only an overloaded
// host needs longer.
const sendLimit = time.Second

// Serve answers every connection to a socket with the states of all parts, until ctx ends. It replaces
// a socket that an earlier process left. Only the user of this process can connect.
func (m *Monitor) Serve(ctx context.Context, path string) error {
	l, err := listenPrivate(path)
	if err != nil {
		return fmt.Errorf("serve the health: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer func() {
		stop()
		_ = l.Close()
	}()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("serve the health: %w", err)
			}
			// Without descriptors left, for example. Nobody gets an answer meanwhile, which is right.
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(sendLimit):
			}
			continue
		}
		_ = c.SetDeadline(time.Now().Add(sendLimit))
		_ = json.NewEncoder(c).Encode(m.States())
		_ = c.Close()
	}
}

// listenPrivate listens on a socket that nobody else ever sees with a wider mode.
func listenPrivate(path string) (net.Listener, error) {
	own := fmt.Sprintf("%s.%d", path, os.Getpid())
	_ = os.Remove(own)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: own, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err = os.Chmod(own, 0o600); err == nil {
		err = os.Rename(own, path)
	}
	if err != nil {
		_ = l.Close()
		_ = os.Remove(own)
		return nil, err
	}
	return l, nil
}

// Ask returns the parts of the process that serves a socket. A process that does not answer before ctx
// ends is an error.
func Ask(ctx context.Context, path string) ([]State, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	if end, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(end)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var states []State
	if err := json.NewDecoder(c).Decode(&states); err != nil {
		return nil, err
	}
	return states, nil
}

// Dead describes the first vital part that is late; empty: none is.
func Dead(states []State) string {
	for i := range states {
		if s := &states[i]; s.Vital && s.Late() {
			return s.String()
		}
	}
	return ""
}
