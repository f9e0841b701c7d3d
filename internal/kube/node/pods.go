// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
)

// WatchPods reads shared claims as soon as a pod that uses one comes to the node, until the context ends. The kubelet
// prepares a claim for its first pod only. With NRI the runtime reports the containers of later pods.
func (n *Node) WatchPods(ctx context.Context) {
	source := cache.NewListWatchFromClient(n.client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll,
		fields.OneTermEqualSelector("spec.nodeName", n.options.Name))
	informer := cache.NewSharedIndexInformer(source, &corev1.Pod{}, 0, cache.Indexers{})
	_ = informer.SetTransform(onlyClaims) // fails only after the start
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
		if pod, ok := object.(*corev1.Pod); ok {
			n.joined(pod)
		}
	}})
	informer.RunWithContext(ctx)
}

// onlyClaims keeps what joined needs of a pod.
func onlyClaims(object any) (any, error) {
	if pod, ok := object.(*corev1.Pod); ok {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion},
			Spec:       corev1.PodSpec{ResourceClaims: pod.Spec.ResourceClaims},
		}, nil
	}
	return object, nil
}

// joined has the shared claims read, if a pod may use one: a claim of a template has one pod.
func (n *Node) joined(pod *corev1.Pod) {
	for i := range pod.Spec.ResourceClaims {
		if pod.Spec.ResourceClaims[i].ResourceClaimName != nil {
			n.tending.joined.Store(true)
			select {
			case n.tendSoon <- struct{}{}:
			default:
			}
			return
		}
	}
}
