// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"

	"xsched/internal/health"
)

// background publishes in a goroutine of its own, because the first publication waits until the API server
// answers. Resources that another call replaced are not published.
type background struct {
	to  publisher
	log *slog.Logger

	mu   sync.Mutex
	next *resourceslice.DriverResources
	wake chan struct{}
}

func newBackground(to publisher, log *slog.Logger) *background {
	return &background{to: to, log: log, wake: make(chan struct{}, 1)}
}

// PublishResources implements publisher.
func (b *background) PublishResources(_ context.Context, r resourceslice.DriverResources) error {
	b.mu.Lock()
	b.next = &r
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
	return nil
}

// run publishes until the context ends. It tries again after a pause if publishing fails.
func (b *background) run(ctx context.Context, pause time.Duration, part *health.Part) {
	for {
		part.End()
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
		}
		part.Begin()
		for !b.publish(ctx) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
	}
}

// publish publishes what is there; false: it failed, and nothing newer is there.
func (b *background) publish(ctx context.Context) bool {
	b.mu.Lock()
	r := b.next
	b.next = nil
	b.mu.Unlock()
	if r == nil {
		return true
	}
	err := b.to.PublishResources(ctx, *r)
	if err == nil {
		return true
	}
	b.log.Error("publishing the GPUs failed; trying again", "err", err)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = r
	}
	return false
}
