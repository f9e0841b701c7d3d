// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Bounds of what a container's creation may wait for.
const (
	lookupTimeout = time.Second      // for the API server, about one container
	lookupPause   = 5 * time.Second  // without requests after one that failed
	labelsFresh   = 30 * time.Second // how long the labels of a namespace count as known
)

var errPaused = errors.New("the API server did not answer a moment ago")

// Cluster answers questions about the node's pods and their namespaces. It watches the pods of the
// node only. Namespaces are asked for one by one when a pod needs it: a thousand nodes that watch all
// namespaces would cost the API server more than this.
type Cluster struct {
	informer     cache.SharedIndexInformer
	getPod       func(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	getNamespace func(ctx context.Context, name string) (*corev1.Namespace, error)
	now          func() time.Time

	mu         sync.Mutex
	failed     time.Time // of the last request that was not answered
	namespaces map[string]namespaceLabels
}

type namespaceLabels struct {
	labels map[string]string
	at     time.Time
}

// NewCluster returns the pods of a node. Call Run.
func NewCluster(client kubernetes.Interface, node string) *Cluster {
	source := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll,
		fields.OneTermEqualSelector("spec.nodeName", node))
	return newCluster(source,
		func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
			return client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		func(ctx context.Context, name string) (*corev1.Namespace, error) {
			return client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		})
}

func newCluster(
	source cache.ListerWatcher,
	getPod func(ctx context.Context, namespace, name string) (*corev1.Pod, error),
	getNamespace func(ctx context.Context, name string) (*corev1.Namespace, error),
) *Cluster {
	c := &Cluster{
		informer: cache.NewSharedIndexInformer(source, &corev1.Pod{}, 0, cache.Indexers{}),
		getPod:   getPod, getNamespace: getNamespace, now: time.Now,
		namespaces: map[string]namespaceLabels{},
	}
	_ = c.informer.SetTransform(trim) // fails only after the start
	return c
}

// trim keeps what decisions need of a pod.
func trim(object any) (any, error) {
	if pod, ok := object.(*corev1.Pod); ok {
		pod.ManagedFields, pod.Status = nil, corev1.PodStatus{}
		pod.Spec.Volumes, pod.Spec.Affinity, pod.Spec.Tolerations, pod.Spec.EphemeralContainers = nil, nil, nil, nil
	}
	return object, nil
}

// Run watches until the context ends. It calls changed after changes that may matter.
func (c *Cluster) Run(ctx context.Context, changed func()) {
	_, _ = c.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() },
		UpdateFunc: func(before, after any) {
			b, okB := before.(*corev1.Pod)
			a, okA := after.(*corev1.Pod)
			if !okA || !okB || b.UID != a.UID || !maps.Equal(b.Labels, a.Labels) || !maps.Equal(b.Annotations, a.Annotations) {
				changed()
			}
		},
		DeleteFunc: func(any) { changed() },
	})
	c.informer.RunWithContext(ctx)
}

// Synced reports whether all pods of the node are known.
func (c *Cluster) Synced() bool { return c.informer.HasSynced() }

// Known returns a pod that the cache has; nil: it has not.
func (c *Cluster) Known(pod *corev1.Pod) *corev1.Pod {
	object, ok, err := c.informer.GetStore().GetByKey(pod.Namespace + "/" + pod.Name)
	found, isPod := object.(*corev1.Pod)
	if err != nil || !ok || !isPod || !same(pod, found) {
		return nil
	}
	return found
}

// same reports whether a pod of the API server is that of the runtime. A static pod has another UID
// there, and the kubelet's in an annotation.
func same(runtime, server *corev1.Pod) bool {
	return runtime.UID == server.UID || string(runtime.UID) == server.Annotations[corev1.MirrorPodAnnotationKey]
}

// Pod returns a pod from the cache. The kubelet may know a new pod before this cache does; then the API
// server is asked.
func (c *Cluster) Pod(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	if found := c.Known(pod); found != nil {
		return found, nil
	}
	var found *corev1.Pod
	err := c.ask(ctx, func(ctx context.Context) (err error) {
		found, err = c.getPod(ctx, pod.Namespace, pod.Name)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case !same(pod, found):
		return nil, fmt.Errorf("pod %s/%s has another UID by now", pod.Namespace, pod.Name)
	}
	return found, nil
}

// NamespaceLabels returns the labels of a namespace, at most half a minute old unless the API server
// does not answer.
func (c *Cluster) NamespaceLabels(ctx context.Context, name string) (map[string]string, error) {
	c.mu.Lock()
	old, ok := c.namespaces[name]
	c.mu.Unlock()
	if ok && c.now().Sub(old.at) < labelsFresh {
		return old.labels, nil
	}
	var found map[string]string
	err := c.ask(ctx, func(ctx context.Context) error {
		n, err := c.getNamespace(ctx, name)
		if err == nil {
			found = n.Labels
		}
		return err
	})
	switch {
	case apierrors.IsNotFound(err):
		found = nil
	case err != nil && ok:
		return old.labels, nil
	case err != nil:
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	maps.DeleteFunc(c.namespaces, func(_ string, n namespaceLabels) bool { return now.Sub(n.at) > 10*labelsFresh })
	c.namespaces[name] = namespaceLabels{found, now}
	return found, nil
}

// ask sends a request with a time limit. After a request without an answer it refuses further ones for a
// while: containers are created one after the other, and each would wait.
func (c *Cluster) ask(ctx context.Context, send func(context.Context) error) error {
	c.mu.Lock()
	paused := c.now().Sub(c.failed) < lookupPause
	c.mu.Unlock()
	if paused {
		return errPaused
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	err := send(ctx)
	if _, answered := errors.AsType[*apierrors.StatusError](err); err != nil && !answered {
		c.mu.Lock()
		c.failed = c.now()
		c.mu.Unlock()
	}
	return err
}
