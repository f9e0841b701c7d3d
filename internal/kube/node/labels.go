// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"sync"
)

// runLabels serves a node without dynamic resource allocation until the context ends: it unpacks the shim for
// the plugin of the container runtime, and answers probes. It asks neither the kubelet nor the API server.
func (n *Node) runLabels(ctx context.Context) {
	n.parts.claims.End()
	if left := len(n.store.known()); left > 0 {
		n.options.Log.Warn("claims of an earlier run are prepared; their pods can't end before the plugin runs with claims again", "claims", left)
	}
	var wait sync.WaitGroup
	defer wait.Wait()
	wait.Go(func() { n.serveHealth(ctx) })
	every(ctx, n.options.Every, n.wake, n.lookForDaemon)
}

// lookForDaemon notes whether the daemon answers, for the readiness of the node.
func (n *Node) lookForDaemon(ctx context.Context) {
	n.parts.daemon.Beat()
	ctx, cancel := context.WithTimeout(ctx, n.looks.limit)
	defer cancel()
	version, err := n.daemon.Version(ctx)
	switch {
	case err == nil && n.looks.told:
		n.options.Log.Info("the daemon answers", "version", version.Version)
	case err != nil && !n.looks.told:
		n.options.Log.Warn("the daemon does not answer", "err", err)
	}
	if n.looks.told = err != nil; err == nil {
		n.parts.answers.beat()
	}
}
