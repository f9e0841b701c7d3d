// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"xsched/internal/control"
)

// TestCancelledNeighbour: a preparation that the kubelet gives up fails none of those that wait with it, for
// the same claim or for others.
func TestCancelledNeighbour(t *testing.T) {
	f := newFolders(t)
	synctest.Test(t, func(t *testing.T) {
		s := f.store(t, nil)
		release := make(chan struct{})
		send := s.send
		s.send = func(ctx context.Context, grants []control.Grant) error {
			select {
			case <-release:
				return send(ctx, grants)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		first, cancel := context.WithCancel(t.Context())
		results := make(chan error, 4)
		go func() { results <- s.prepare(first, records(t, 1)) }()
		synctest.Wait()
		for n := 1; n <= 3; n++ {
			go func() { results <- s.prepare(t.Context(), records(t, n)) }()
			synctest.Wait()
		}
		cancel()
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Fatalf("the cancelled one: %v", err)
		}
		close(release)
		for range 3 {
			if err := <-results; err != nil {
				t.Errorf("its neighbour: %v", err)
			}
		}
		f.consistent(t, s, 1, 2, 3)
	})
}

// TestHungDaemon: with a daemon that takes requests and does not answer, a preparation fails before the kubelet
// gives up, a pod's end takes little, and readers do not wait at all.
func TestHungDaemon(t *testing.T) {
	f := newFolders(t)
	const kubelet = 45 * time.Second
	synctest.Test(t, func(t *testing.T) {
		s := f.store(t, nil)
		if err := s.prepare(t.Context(), records(t, 1, 2)); err != nil {
			t.Fatal(err)
		}
		s.send = func(ctx context.Context, _ []control.Grant) error { <-ctx.Done(); return ctx.Err() }
		began := time.Now()
		var wait sync.WaitGroup
		for n := 3; n < 6; n++ {
			wait.Go(func() {
				if err := s.prepare(t.Context(), records(t, n)); err == nil || time.Since(began) >= kubelet-10*time.Second {
					t.Errorf("%v after %v", err, time.Since(began))
				}
			})
		}
		time.Sleep(time.Second)
		at := time.Now()
		if err := s.unprepare(t.Context(), []types.UID{uid(claimKind, 1)}); err != nil || time.Since(at) > giveBackLimit {
			t.Errorf("gave back: %v after %v", err, time.Since(at))
		}
		at = time.Now()
		if len(s.known()) != 4 || !s.pending() || time.Since(at) != 0 {
			t.Errorf("readers waited %v", time.Since(at))
		}
		wait.Wait()
		s.send = func(ctx context.Context, grants []control.Grant) error {
			_, err := f.daemon.SetGrants(ctx, control.GrantsRequest{Source: grantSource, Grants: grants})
			return err
		}
		if err := s.repair(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.consistent(t, s, 2, 3, 4, 5)
	})
}

// TestOneRequestForMany: preparations that arrive while the daemon is busy share its next request.
func TestOneRequestForMany(t *testing.T) {
	f := newFolders(t)
	synctest.Test(t, func(t *testing.T) {
		s := f.store(t, nil)
		send := s.send
		s.send = func(ctx context.Context, grants []control.Grant) error {
			time.Sleep(100 * time.Millisecond)
			return send(ctx, grants)
		}
		var wait sync.WaitGroup
		for n := range 50 {
			wait.Go(func() {
				if err := s.prepare(t.Context(), records(t, n+1)); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		if f.daemon.sets > 3 || len(f.daemon.grants) != 50 {
			t.Error(fmt.Sprint(f.daemon.sets, " requests, ", len(f.daemon.grants), " grants"))
		}
	})
}
