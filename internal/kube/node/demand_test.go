// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"xsched/internal/control"
)

// waiting is a pod with claims that the scheduler has looked at, with this result.
func waiting(reason string, claims int) corev1.Pod {
	p := corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	for i := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: fmt.Sprint(i)})
	}
	if reason != "" {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason}}
	}
	return p
}

// TestDemand: a pod with five claims that no node takes gives the two GPUs of this node room for five, and no more
// after it is gone. Pods that wait for something else do not count. Without such pods the node asks rarely.
func TestDemand(t *testing.T) {
	f, to, ctx := newFolders(t), &published{}, t.Context()
	f.daemon.devices = []control.Device{{ID: "0000:01:00.0", MaxLevel: 3, Access: bindable}, {ID: "0000:02:00.0", MaxLevel: 3, Access: bindable}}
	list, asked := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}, 0
	n := newNode(t, f, apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/pods" || r.FormValue("fieldSelector") != unplaced {
			http.NotFound(w, r)
			return
		}
		asked++
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
	}))
	n.options.Every = time.Second
	now := time.Unix(0, 0)
	room := func() (sum int64) {
		if _, err := n.demand.read(ctx, n.client, n.options.Every, now); err != nil {
			t.Fatal(err)
		}
		n.look(ctx, to)
		for i := range n.looks.published {
			tenants := n.looks.published[i].Capacity[Tenants]
			sum += tenants.Value.Value()
		}
		now = now.Add(n.options.Every)
		return sum
	}
	list.Items = []corev1.Pod{waiting(corev1.PodReasonSchedulingGated, 8), waiting("", 8)}
	if got := room(); got != 2 {
		t.Errorf("without a pod that finds no node: room for %d claims", got)
	}
	list.Items = append(list.Items, waiting(corev1.PodReasonUnschedulable, 3), waiting(corev1.PodReasonUnschedulable, 5))
	now = now.Add(mostRests * n.options.Every)
	if got := room(); got != 5 {
		t.Errorf("a pod with five claims finds room for %d", got)
	}
	list.Items = nil
	if got := room(); got != 2 {
		t.Errorf("after the pod: room for %d claims", got)
	}
	asked = 0
	for range 8 * mostRests {
		room()
	}
	if asked > 16 {
		t.Errorf("asked %d times in %d periods without a pod", asked, 8*mostRests)
	}
}
