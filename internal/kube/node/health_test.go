// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"xsched/internal/control"
	"xsched/internal/health"
)

// stuckDaemon does not answer and ignores every limit, once it is closed.
type stuckDaemon struct {
	*daemon
	stuck, free chan struct{}
}

func (d *stuckDaemon) Version(ctx context.Context) (control.Version, error) {
	select {
	case <-d.stuck:
		<-d.free
	default:
	}
	return d.daemon.Version(ctx)
}

// TestWedgedPartsLookDead: a part of the plugin that hangs is late at the socket that probes ask, by its
// name. The probe's verdict is that of the vital parts.
func TestWedgedPartsLookDead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		vital bool
		wedge func(t *testing.T, n *Node, d *stuckDaemon, to *blocked)
	}{
		{"reads of the daemon's GPUs", true, func(_ *testing.T, _ *Node, d *stuckDaemon, _ *blocked) { close(d.stuck) }},
		{"reads of claims", true, func(t *testing.T, n *Node, _ *stuckDaemon, _ *blocked) {
			n.store.mu.Lock()
			t.Cleanup(n.store.mu.Unlock)
		}},
		{"requests of the kubelet", true, func(t *testing.T, n *Node, _ *stuckDaemon, _ *blocked) {
			n.store.mu.Lock()
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = n.plugin.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{allocated(1, []string{gpu0}, 0)})
			}()
			t.Cleanup(func() { n.store.mu.Unlock(); <-done })
		}},
		{"publication of GPUs", false, func(_ *testing.T, n *Node, _ *stuckDaemon, _ *blocked) { n.lookSoon() }},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			f := newFolders(t)
			d := &stuckDaemon{daemon: f.daemon, stuck: make(chan struct{}), free: make(chan struct{})}
			n := newNode(t, f, apiServer(t, http.NotFound))
			n.daemon, n.options.Every = d, 5*time.Millisecond
			n.options.Health = &health.Monitor{}
			n.parts = newParts(n.options.Health, 500*time.Millisecond, 100*time.Millisecond, time.Minute)
			n.plugin.calls = n.parts.kubelet
			to := &blocked{free: make(chan struct{}), calls: make(chan resourceslice.DriverResources, 1000)}
			if c.name != "publication of GPUs" {
				close(to.free)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); n.watch(ctx, to) }()
			t.Cleanup(func() { // after the part goes on
				cancel()
				close(d.free)
				if c.name == "publication of GPUs" {
					close(to.free)
				}
				<-done
			})
			c.wedge(t, n, d, to)
			eventuallyLate(t, n, c.name, c.vital)
		})
	}
}

func eventuallyLate(t *testing.T, n *Node, name string, vital bool) {
	t.Helper()
	var states []health.State
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		states, err = health.Ask(t.Context(), HealthSocket(n.options.Data))
		for i := range states {
			if s := &states[i]; s.Name == name && s.Late() {
				if dead := health.Dead(states); (dead != "") != vital {
					t.Errorf("the probe's verdict is %q", dead)
				}
				return
			}
		}
	}
	t.Errorf("%s is not late: %v, %v", name, states, err)
}
