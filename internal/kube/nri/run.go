// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

const (
	// DefaultSocket is where container runtimes listen for plugins.
	DefaultSocket = api.DefaultSocketPath
	name          = "xsched"
	// index is the place among the plugins. Late ones see the edits of the others.
	index = "90"

	firstWait   = 200 * time.Millisecond
	longestWait = 10 * time.Second
	dialTimeout = 5 * time.Second // a frozen runtime accepts nothing
)

var errStart = errors.New("the container runtime did not complete the registration")

// Run serves a container runtime until the context ends, and connects again if the runtime restarts.
// Without NRI it says so once and keeps looking.
func (p *Plugin) Run(ctx context.Context, socket string) {
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		p.Cluster.Run(ctx, p.Changed)
	}()
	published := make(chan struct{})
	go func() {
		defer close(published)
		p.publish(ctx)
	}()
	said, wait := "", firstWait
	for ctx.Err() == nil {
		began := time.Now()
		err := p.serve(ctx, socket)
		if ctx.Err() != nil {
			break
		}
		if text := p.lost(socket, err); text != said {
			p.Log.Warn("not connected with the container runtime", "err", text)
			said = text
		}
		if time.Since(began) > longestWait { // it worked in between
			said, wait = "", firstWait
		}
		pause(ctx, wait)
		wait = min(2*wait, longestWait)
	}
	<-watched
	<-published
}

// lost explains why there is no connection.
func (p *Plugin) lost(socket string, err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Sprintf("no NRI socket at %s: labels of pods have no effect, claims work; use containerd 2.0 or later, or enable NRI in containerd 1.7 or CRI-O", socket)
	}
	return fmt.Sprintf("%s: %v; trying again", socket, err)
}

// serve connects once and serves until the connection ends.
func (p *Plugin) serve(ctx context.Context, socket string) error {
	conn, err := p.dial(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	s, err := stub.New(p, stub.WithPluginName(name), stub.WithPluginIdx(index), stub.WithConnection(conn), stub.WithLogger(logger{p.Log}))
	if err != nil {
		return err
	}
	// If the runtime dies between registration and configuration, the stub waits for ever with its lock held.
	// Such a stub is given up with its goroutine.
	started := make(chan error, 1)
	go func() { started <- s.Start(ctx) }()
	late := time.NewTimer(p.startTimeout)
	defer late.Stop()
	select {
	case err = <-started:
	case <-late.C:
		err = errStart
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	s.Wait()
	return errors.New("connection closed")
}

// Configure implements the stub's interface.
func (p *Plugin) Configure(_ context.Context, _, runtime, version string) (api.EventMask, error) {
	p.Log.Info("container runtime", "name", runtime, "version", version)
	return 0, nil // all events that have a handler
}

// logger writes the stub's messages. Lost connections are normal, and Run reports them.
type logger struct{ *slog.Logger }

func (l logger) Debugf(ctx context.Context, format string, args ...any) {
	l.DebugContext(ctx, "message of the NRI library", "text", fmt.Sprintf(format, args...))
}

func (l logger) Infof(ctx context.Context, format string, args ...any) {
	l.DebugContext(ctx, "message of the NRI library", "text", fmt.Sprintf(format, args...))
}

func (l logger) Warnf(ctx context.Context, format string, args ...any) {
	l.WarnContext(ctx, "message of the NRI library", "text", fmt.Sprintf(format, args...))
}

func (l logger) Errorf(ctx context.Context, format string, args ...any) {
	l.ErrorContext(ctx, "message of the NRI library", "text", fmt.Sprintf(format, args...))
}
