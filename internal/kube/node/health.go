// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"path/filepath"
	"sync/atomic"
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
	answers                     *answers
}

// answers knows when the daemon answered last. No restart of the plugin helps one that does not: claims then
// can't be prepared.
type answers struct {
	began time.Time
	limit time.Duration
	last  atomic.Int64 // since began; 0: never
}

func (a *answers) beat() { a.last.Store(max(1, int64(time.Since(a.began)))) }

func (a *answers) age() time.Duration {
	last := time.Duration(a.last.Load())
	if last == 0 {
		return a.limit + time.Since(a.began) // late from the start
	}
	return time.Since(a.began) - last
}

func newParts(m *health.Monitor, periodic, kubelet, ready time.Duration) parts {
	p := parts{
		daemon:      m.Add("reads of the daemon's GPUs", periodic, true),
		claims:      m.Add("reads of claims", periodic, true),
		publication: m.Add("publication of GPUs", periodic, false),
		kubelet:     m.AddCalls("requests of the kubelet", kubelet, true),
	}
	p.publication.End()
	p.answers = &answers{began: time.Now(), limit: ready}
	m.Watch("answers of the daemon", ready, false, p.answers.age)
	return p
}

// answerAge is how old the daemon's last answer may be. A restart of the daemon takes less.
func answerAge(every time.Duration) time.Duration { return 2*every + answerLimit }

// watchRegistration adds that the kubelet knows the plugin, without which it prepares no claim.
func (n *Node) watchRegistration(registered func() bool) {
	began := time.Now()
	n.options.Health.Watch("registration with the kubelet", 0, false, func() time.Duration {
		if registered() {
			return 0
		}
		return 1 + time.Since(began)
	})
}

// serveHealth answers probes until ctx ends.
func (n *Node) serveHealth(ctx context.Context) {
	if err := n.options.Health.Serve(ctx, HealthSocket(n.options.Data)); err != nil {
		n.options.Log.Error("probes get no answer", "err", err)
	}
}
