// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"time"

	"xsched/internal/control"
	"xsched/internal/kube/classes"
)

// Periods of the publisher.
const (
	publishGap    = 20 * time.Millisecond // between two requests to the daemon
	publishAgain  = time.Minute           // also without a change: a daemon may have lost its state
	sendTimeout   = 10 * time.Second
	publishLimit  = time.Minute // without a sign of life the publisher counts as dead; above all its waits
	unknownLimit  = 5           // times retry, after which grants without known labels are sent as mere names
	unknownPeriod = 10 * time.Second
)

// publish keeps the daemon's grants equal to what follows from the containers, until the context ends.
// A burst of changes becomes one request: while one is under way, changes collect.
func (p *Plugin) publish(ctx context.Context) {
	var sent []control.Grant
	var failure string
	due := time.NewTimer(publishAgain)
	var began time.Time // when everything but labels was known
	for {
		always := false
		p.part.End()
		select {
		case <-ctx.Done():
			return
		case <-p.dirty:
		case <-due.C:
			always = true
		}
		p.part.Begin()
		wait := publishAgain
		grants, unknown, ready := p.collect(ctx)
		if ready && began.IsZero() {
			began = time.Now()
		}
		switch {
		case !ready || unknown && sent == nil && time.Since(began) < unknownLimit*p.retry:
			// Until everything is known the daemon keeps the grants that it has.
			wait = p.retry
		case always || sent == nil || !reflect.DeepEqual(grants, sent):
			err := p.send(ctx, grants)
			if text := message(err); text != failure {
				if failure = text; err != nil {
					p.Log.Error("grants not sent to the daemon; trying again", "err", err)
				} else {
					p.Log.Info("grants sent to the daemon again")
				}
			}
			if sent = grants; err != nil {
				sent, wait = nil, p.retry
			}
		}
		if unknown {
			wait = min(wait, unknownPeriod)
		}
		due.Reset(wait)
		pause(ctx, publishGap)
	}
}

func (p *Plugin) send(ctx context.Context, grants []control.Grant) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	return p.Send(ctx, grants)
}

// collect returns the grants of all containers. ready is false until the runtime and the API server have
// listed what they have; unknown is true if labels of a namespace are missing.
func (p *Plugin) collect(ctx context.Context) (grants []control.Grant, unknown, ready bool) {
	p.mu.Lock()
	list, known := slices.Collect(maps.Values(p.containers)), p.known
	p.mu.Unlock()
	if !known || !p.Cluster.Synced() {
		return nil, false, false
	}
	file := p.Classes()
	grants = []control.Grant{}
	for _, c := range list {
		p.part.Beat() // a slow API server delays each container
		pod := p.Cluster.Known(c.pod)
		if pod == nil {
			pod = c.pod
		}
		d := p.decide(ctx, file, pod)
		unknown = unknown || d.Outcome == classes.Unknown
		switch {
		case c.listed: // the pod was told when the container was created
			c.listed = false
			_, _, c.told = words(d)
		case c.edited && len(c.claims) == 0 && !c.disabled:
			p.tell(c, pod, d)
		}
		grants = append(grants, c.grants(pod, d, p.Claims)...)
	}
	grants, dropped := bounded(grants)
	if dropped > 0 {
		p.Log.Warn("too many containers with devices; some are not named", "dropped", dropped)
	}
	return grants, unknown, true
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
