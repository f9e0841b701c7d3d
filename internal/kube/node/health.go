// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"path/filepath"
	"time"

	"xsched/internal/health"
)

// healthSocket answers with the plugin's parts, for probes.
const healthSocket = "health.sock"

// HealthSocket returns the path of the socket in the plugin's folder.
func HealthSocket(data string) string { return filepath.Join(data, healthSocket) }

// kubeletLimit is longer than the 45 s after which the kubelet gives up a request.
const kubeletLimit = time.Minute

// periodicLimit is that of a part with a period. Each of its waits has a limit of 15 s or less.
func periodicLimit(every time.Duration) time.Duration { return time.Minute + 4*every }

// parts are those of the plugin. A restart helps all but the publication, which waits for the API server.
type parts struct {
	daemon, claims, publication *health.Part
	kubelet                     *health.Calls
}

func newParts(m *health.Monitor, periodic, kubelet time.Duration) parts {
	p := parts{
		daemon:      m.Add("reads of the daemon's GPUs", periodic, true),
		claims:      m.Add("reads of claims", periodic, true),
		publication: m.Add("publication of GPUs", periodic, false),
		kubelet:     m.AddCalls("requests of the kubelet", kubelet, true),
	}
	p.publication.End()
	return p
}

// serveHealth answers probes until ctx ends.
func (n *Node) serveHealth(ctx context.Context) {
	if err := n.options.Health.Serve(ctx, HealthSocket(n.options.Data)); err != nil {
		n.options.Log.Error("probes get no answer", "err", err)
	}
}
