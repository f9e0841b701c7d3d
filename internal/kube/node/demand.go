// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// demand is what pods without a node need at once. Kubernetes allocates all claims of a pod together, so a node
// without room for all of them never gets the pod.
type demand struct {
	claims atomic.Int64 // of the pod with the most, among those that found no node

	pause time.Duration // between two reads
	next  time.Time     // read
}

// unplaced selects the pods without a node. The API server has an index of it.
const unplaced = "spec.nodeName=,status.phase=" + string(corev1.PodPending)

// read asks for these pods, at a period while there are some and then more and more rarely: many nodes ask one API
// server. It reports whether the need has changed.
func (d *demand) read(ctx context.Context, client kubernetes.Interface, every time.Duration, now time.Time) (changed bool, err error) {
	if now.Before(d.next) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	// Version 0: the API server answers from memory. A late answer costs one period.
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: unplaced, ResourceVersion: "0"})
	if err != nil {
		return false, fmt.Errorf("look for pods without a node: %w", err)
	}
	most := 0
	for i := range pods.Items {
		if p := &pods.Items[i]; refusedByAll(p) {
			most = max(most, len(p.Spec.ResourceClaims))
		}
	}
	if d.pause = min(max(2*d.pause, every), mostRests*every); most > 0 {
		d.pause = every
	}
	d.next = now.Add(d.pause*3/4 + rand.N(d.pause/4+1)) // a random part: nodes shall not ask all at once
	return d.claims.Swap(int64(most)) != int64(most), nil
}

// refusedByAll reports whether the scheduler has found no node for a pod.
func refusedByAll(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled {
			return c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
		}
	}
	return false
}
