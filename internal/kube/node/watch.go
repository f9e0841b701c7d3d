// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"xsched/internal/control"
	"xsched/internal/kube/cluster"
)

const (
	// downAfter is the number of failed looks after which the daemon counts as down. An upgrade takes less.
	downAfter = 3
	// clearAfter is the number of looks without its cause after which a taint goes. A taint that comes
	// and goes would let the scheduler place pods on a GPU that is about to get stuck again.
	clearAfter = 3
	// publishAgain is the period at which unchanged GPUs are published, too. A kubelet deletes the slices of
	// its node when it starts. The library does not see that within a minute after it updated a slice, and
	// compares again only when it is told to. Without a difference this costs no request.
	publishAgain = 20 * time.Second
	// callLimit bounds each request to the daemon or to the API server.
	callLimit = 15 * time.Second
	// answerLimit bounds what a look asks the daemon, so that one that hangs counts as down after three of
	// the default periods, as one that is gone.
	answerLimit = 5 * time.Second
)

// publisher is the part of kubeletplugin.Helper that publishes.
type publisher interface {
	PublishResources(ctx context.Context, resources resourceslice.DriverResources) error
}

// looks is what the node remembers from one look at the daemon to the next.
type looks struct {
	devices   []resourceapi.Device // without taints
	published []resourceapi.Device
	sent      time.Time                 // when published was sent
	failed    int                       // looks in a row without an answer
	taints    map[string]map[string]int // looks since its cause was seen, by device and taint
	started   int64                     // when the daemon started
	told      bool                      // that the daemon does not answer
	places    places
	limit     time.Duration // of what one look asks the daemon
	journal   journal
	spread    spread
}

// watch looks at the daemon and at the API server, each at a period of its own: neither waits for the other.
func (n *Node) watch(ctx context.Context, to publisher) {
	var wait sync.WaitGroup
	defer wait.Wait()
	later := newBackground(to, n.options.Log)
	wait.Go(func() { n.serveHealth(ctx) })
	wait.Go(func() { later.run(ctx, n.options.Every, n.parts.publication) })
	wait.Go(func() { every(ctx, n.options.Every, n.tendSoon, n.tend) })
	every(ctx, n.options.Every, n.wake, func(ctx context.Context) { n.look(ctx, later) })
}

// wakeGap is the least time between two looks: a burst of claims is published in a few steps.
const wakeGap = 200 * time.Millisecond

// lookSoon publishes the GPUs before the next period. It does not wait.
func (n *Node) lookSoon() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// every calls a function at a period and after a wake, until the context ends.
func every(ctx context.Context, period time.Duration, wake <-chan struct{}, f func(ctx context.Context)) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		f(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-wake:
			select {
			case <-ctx.Done():
				return
			case <-time.After(wakeGap):
			}
		}
	}
}

// look reads the daemon's GPUs, publishes what changed, and repairs what a restart lost.
func (n *Node) look(ctx context.Context, to publisher) {
	n.parts.daemon.Beat()
	l := &n.looks
	version, devices, stats, err := n.ask(ctx)
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if err != nil {
		l.failed++
		if !l.told {
			n.options.Log.Warn("the daemon does not answer", "err", err)
			l.told = true
		}
		if l.failed >= downAfter {
			n.publishDown(ctx, to)
		}
	} else {
		if l.told {
			n.options.Log.Info("the daemon answers", "version", version.Version)
		}
		l.failed, l.told = 0, false
		n.parts.answers.beat()
		if version.StartedNS != l.started || n.store.pending() {
			err := n.store.repair(ctx)
			n.report.refused(len(n.store.known()), err)
			if err != nil {
				n.options.Log.Warn("claims not restored; trying again", "err", err)
			} else {
				l.started = version.StartedNS
			}
		}
		l.devices = l.places.gpus(devices.Devices, capacities{n.options.Memory, n.options.Tenants})
		n.publish(ctx, to, tainted(l.devices, l.remember(taints(devices.Devices, &stats))))
		n.report.faults(l.journal.read(ctx, n.daemon, version.StartedNS), n.store.known())
	}
}

func (n *Node) ask(ctx context.Context) (version control.Version, devices control.Devices, stats control.Stats, err error) {
	ctx, cancel := context.WithTimeout(ctx, n.looks.limit)
	defer cancel()
	if version, err = n.daemon.Version(ctx); err == nil {
		devices, err = n.daemon.Devices(ctx)
	}
	if err == nil {
		stats, err = n.daemon.Stats(ctx)
	}
	return version, devices, stats, err
}

// publish sends the devices if they changed, and now and then.
func (n *Node) publish(ctx context.Context, to publisher, devices []resourceapi.Device) {
	l := &n.looks
	devices = l.spread.apply(devices, n.store.tenants(), int(n.demand.claims.Load()), time.Now())
	same := l.published != nil && apiequality.Semantic.DeepEqual(devices, l.published)
	if same && time.Since(l.sent) < publishAgain {
		return
	}
	if err := to.PublishResources(ctx, resources(n.options.Name, devices)); err != nil {
		n.options.Log.Error("publishing the GPUs failed", "err", err)
		return
	}
	old := l.published
	l.published, l.sent = devices, time.Now()
	if !same && old != nil {
		n.report.changes(old, devices, n.store.known())
	}
	if !same {
		n.options.Log.Info("published the GPUs", "gpus", len(devices))
	}
}

// publishDown keeps the GPUs of a daemon that does not answer, and keeps new claims away from them. A
// plugin that never saw the daemon takes the GPUs from what it published before.
func (n *Node) publishDown(ctx context.Context, to publisher) {
	l := &n.looks
	if l.devices == nil {
		found, err := n.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
			FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + n.options.Name + "," + resourceapi.ResourceSliceSelectorDriver + "=" + cluster.Driver,
		})
		if err != nil {
			n.options.Log.Info("published GPUs not found; trying again", "err", err)
			return
		}
		l.devices = newest(found.Items)
	}
	n.publish(ctx, to, tainted(l.devices, nil, TaintDaemonDown))
}

// newest returns the devices of the newest generation: slices of older ones are about to be deleted.
func newest(all []resourceapi.ResourceSlice) []resourceapi.Device {
	var generation int64
	for i := range all {
		generation = max(generation, all[i].Spec.Pool.Generation)
	}
	out := []resourceapi.Device{}
	for i := range all {
		if all[i].Spec.Pool.Generation == generation {
			out = append(out, all[i].Spec.Devices...)
		}
	}
	return out
}

// remember adds the taints whose cause ended a short time ago.
func (l *looks) remember(now map[string][]string) map[string][]string {
	if l.taints == nil {
		l.taints = map[string]map[string]int{}
	}
	for device, keys := range now {
		if l.taints[device] == nil {
			l.taints[device] = map[string]int{}
		}
		for _, key := range keys {
			l.taints[device][key] = -1
		}
	}
	out := map[string][]string{}
	for device, keys := range l.taints {
		for key := range keys {
			if keys[key]++; keys[key] >= clearAfter {
				delete(keys, key)
				continue
			}
			out[device] = append(out[device], key)
		}
		slices.Sort(out[device])
	}
	return out
}
