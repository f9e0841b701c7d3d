// SPDX-License-Identifier: Apache-2.0

// Package top is the live view of a daemon. Model is the state of the view: messages change it, and
// its lines are a function of that state alone, so that tests need no terminal. Run connects it with
// a terminal.
package top

import (
	"context"
	"sync"
	"time"

	"xsched/internal/control"
	"xsched/internal/control/client"
)

// Source is the daemon as the view needs it.
type Source interface {
	Fetch(ctx context.Context) (control.Snapshot, error)
	Policies(ctx context.Context) (control.PolicyReply, error)

	// The actions return one line for the user.
	SetPriority(ctx context.Context, pid int, priority int32) (string, error)
	Suspend(ctx context.Context, pid int) (string, error)
	Resume(ctx context.Context, pid int) (string, error)
	SetPolicy(ctx context.Context, name string) (string, error)
}

// Daemon is the Source of a running daemon. After an error it connects anew, because the daemon may
// have been restarted, also in another directory.
type Daemon struct {
	Connect func(context.Context) (*client.Client, control.Version, error)

	mu     sync.Mutex
	client *client.Client
}

// Close ends the connection.
func (d *Daemon) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.client != nil {
		d.client.Close()
		d.client = nil
	}
}

// connection returns the current connection, or a new one.
func (d *Daemon) connection(ctx context.Context) (*client.Client, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.client != nil {
		return d.client, nil
	}
	c, _, err := d.Connect(ctx)
	if err == nil {
		d.client = c
	}
	return c, err
}

// Fetch reads one snapshot.
func (d *Daemon) Fetch(ctx context.Context) (control.Snapshot, error) {
	s, err := d.fetch(ctx)
	if err != nil {
		d.Close()
	}
	return s, err
}

func (d *Daemon) fetch(ctx context.Context) (s control.Snapshot, err error) {
	c, err := d.connection(ctx)
	if err != nil {
		return s, err
	}
	if s.Daemon, err = c.Version(ctx); err != nil {
		return s, err
	}
	if s.List, err = c.List(ctx); err != nil {
		return s, err
	}
	devices, err := c.Devices(ctx)
	s.Devices, s.Problems, s.TimeNS = devices.Devices, devices.Problems, time.Now().UnixNano()
	return s, err
}

// Stats reads the statistics of the daemon.
func (d *Daemon) Stats(ctx context.Context) (control.Stats, error) {
	c, err := d.connection(ctx)
	if err != nil {
		return control.Stats{}, err
	}
	return c.Stats(ctx)
}

// Policies reads the available policies.
func (d *Daemon) Policies(ctx context.Context) (control.PolicyReply, error) {
	c, err := d.connection(ctx)
	if err != nil {
		return control.PolicyReply{}, err
	}
	return c.Policy(ctx)
}
