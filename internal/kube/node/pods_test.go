// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestWatchPods: a pod that uses a prepared claim of another pod has its grant soon after it comes to the node, not
// after the pause between two reads.
func TestWatchPods(t *testing.T) {
	f, ctx := newFolders(t), t.Context()
	claim := allocated(1, []string{gpu0}, 0, class(`"priority":1`))
	claims := claimServer(t, map[string]*resourceapi.ResourceClaim{"claim-1": claim})
	comes := make(chan corev1.Pod, 1)
	n := newNode(t, f, apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/api/v1/pods":
			claims(w, r)
		case r.FormValue("sendInitialEvents") != "":
			http.Error(w, "not supported", http.StatusBadRequest)
		case r.FormValue("watch") == "":
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}})
		default:
			stream(w, r, comes)
		}
	}))
	n.options.Every = time.Hour
	if _, err := n.plugin.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{claim}); err != nil {
		t.Fatal(err)
	}
	n.tending.done = true
	n.tend(ctx) // the next read is an hour away
	claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "pod-9", UID: uid(podKind, 9)})
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); every(ctx, n.options.Every, n.tendSoon, n.tend) }()
	go n.WatchPods(ctx)
	comes <- corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "pod-9", UID: uid(podKind, 9), ResourceVersion: "2"},
		Spec:       corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim.Name}}},
	}
	for end := time.Now().Add(10 * time.Second); len(f.daemon.podsGranted(t)) < 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("grants of %v", f.daemon.podsGranted(t))
		}
	}
	cancel()
	<-ended
}

// stream sends the pods of a channel to a watcher.
func stream(w http.ResponseWriter, r *http.Request, pods <-chan corev1.Pod) {
	w.Header().Set("Content-Type", "application/json")
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case pod := <-pods:
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "ADDED", "object": pod})
			w.(http.Flusher).Flush()
		}
	}
}
