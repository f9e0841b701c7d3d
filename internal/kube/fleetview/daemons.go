// SPDX-License-Identifier: Apache-2.0

package fleetview

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"xsched/internal/kube/view"
)

// Names in the DaemonSet.
const (
	selector  = "app.kubernetes.io/name=xsched,app.kubernetes.io/component=node"
	container = "daemon"
)

const (
	concurrent = 32               // requests that wait for an answer at once
	patience   = 10 * time.Second // for an answer, unless set otherwise
	page       = 500              // pods of one request, so that a large cluster's API server keeps few in memory
)

// Daemons are the daemons of a cluster.
type Daemons struct {
	Config    *rest.Config
	Client    kubernetes.Interface
	Namespace string
	// Timeout bounds the wait for one node; 0: ten seconds.
	Timeout time.Duration
	// Dial connects to the view of a pod; nil: through the API server.
	Dial func(ctx context.Context, pod string) (net.Conn, error)

	viewer token
}

// Target is a daemon's pod. Problem tells why it can't be asked.
type Target struct{ Node, Pod, Problem string }

// Targets returns the daemons' pods by node: of one node, or with an empty name of all.
func (d *Daemons) Targets(ctx context.Context, node string) ([]Target, error) {
	options := metav1.ListOptions{LabelSelector: selector, Limit: page}
	if node != "" {
		options.FieldSelector = "spec.nodeName=" + node
	}
	var all []corev1.Pod
	pods, err := d.Client.CoreV1().Pods(d.Namespace).List(ctx, options)
	for ; err == nil; pods, err = d.Client.CoreV1().Pods(d.Namespace).List(ctx, options) {
		all = append(all, pods.Items...)
		if options.Continue = pods.Continue; options.Continue == "" {
			break
		}
	}
	switch {
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("not allowed to list pods in %s; ask for the role xsched-viewer there", d.Namespace)
	case err != nil:
		return nil, fmt.Errorf("list the daemons' pods: %w", err)
	case len(all) == 0 && node != "":
		return nil, fmt.Errorf("node %s has no daemon; see `kubectl -n %s get pods -o wide`", node, d.Namespace)
	case len(all) == 0:
		return nil, fmt.Errorf("no daemon in namespace %s; install the chart xsched", d.Namespace)
	}
	return choose(all), nil
}

// choose takes the best pod of each node: during an update a node has two.
func choose(pods []corev1.Pod) []Target {
	best := map[string]corev1.Pod{}
	for _, p := range pods {
		if p.Spec.NodeName == "" {
			continue // not placed yet
		}
		if old, ok := best[p.Spec.NodeName]; !ok || problem(&old) != "" && problem(&p) == "" {
			best[p.Spec.NodeName] = p
		}
	}
	var out []Target
	for node, p := range best {
		out = append(out, Target{node, p.Name, problem(&p)})
	}
	slices.SortFunc(out, func(a, b Target) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

// problem tells why the daemon of a pod can't be asked.
func problem(p *corev1.Pod) string {
	if p.DeletionTimestamp != nil {
		return "the pod ends"
	}
	for _, s := range p.Status.ContainerStatuses {
		switch {
		case s.Name != container:
		case s.State.Running != nil:
			return ""
		case s.State.Waiting != nil:
			return strings.TrimSuffix("the daemon waits: "+s.State.Waiting.Reason+" "+oneLine(s.State.Waiting.Message), " ")
		default:
			return "the daemon has ended"
		}
	}
	return "the pod is " + strings.ToLower(cmp.Or(string(p.Status.Phase), "unknown"))
}

// Ask asks all targets for a path of their views and gives each answer to done, or why there is none. A fixed
// number is asked at once, and none is waited for longer than the timeout.
func (d *Daemons) Ask(ctx context.Context, targets []Target, path string, done func(i int, answer []byte, err error)) {
	var all sync.WaitGroup
	slots := make(chan struct{}, concurrent)
	for i, t := range targets {
		if t.Problem != "" {
			done(i, nil, errors.New(t.Problem))
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			answer, err := d.ask(ctx, t.Pod, path)
			done(i, answer, err)
		})
	}
	all.Wait()
}

// Once asks all targets for a snapshot.
func (d *Daemons) Once(ctx context.Context, targets []Target) Fleet {
	nodes := make([]Node, len(targets))
	d.Ask(ctx, targets, view.SnapshotPath, func(i int, answer []byte, err error) {
		nodes[i] = Node{Name: targets[i].Node, Pod: targets[i].Pod}
		if err == nil {
			nodes[i].Snapshot, err = parse(answer)
		}
		if err != nil {
			nodes[i].Error = oneLine(err.Error())
		}
	})
	return Fleet{TimeNS: now(), Nodes: nodes}
}
