// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Reasons of events on the node, on claims and on pods.
const (
	reasonAdded   = "GpuAdded"
	reasonRemoved = "GpuRemoved"
	reasonTainted = "GpuTainted"
	reasonClean   = "GpuTaintRemoved"
	reasonLost    = "GpuLost"          // on a pod whose GPU is gone
	reasonGrant   = "GrantNotHonoured" // a claim or its grant has no effect
	reasonFault   = "GpuFault"         // on a pod: an entry of the daemon's journal
)

// maxListed bounds the names in one event.
const maxListed = 8

// reporter writes events about the node.
type reporter struct {
	node   string
	events func() Events // nil before Run

	mu      sync.Mutex
	refusal string // last reason why a grant was not honoured
}

// object is the node as the kubelet names it in events, so that `kubectl describe node` finds them.
func (r *reporter) object() *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: r.node, UID: types.UID(r.node)}
}

func (r *reporter) write(kind, reason, format string, args ...any) {
	if events := r.events(); events != nil {
		events.Eventf(r.object(), kind, reason, format, args...)
	}
}

// changes compares the GPUs of the last publication with those of the next one. A change of many GPUs is one
// event. The library limits the rate of GPUs that come and go.
func (r *reporter) changes(old, now []resourceapi.Device, claims map[types.UID]claimRecord) {
	before, after := taintsByName(old), taintsByName(now)
	var added, removed, tainted, clean []string
	for name, keys := range after {
		was, ok := before[name]
		switch {
		case !ok:
			added = append(added, name)
		case keys != was && keys != "":
			tainted = append(tainted, name+" ("+keys+")")
		case keys != was:
			clean = append(clean, name)
		}
	}
	for name := range before {
		if _, ok := after[name]; !ok {
			removed = append(removed, name)
		}
	}
	for _, e := range []struct {
		names              []string
		kind, reason, what string
	}{
		{added, corev1.EventTypeNormal, reasonAdded, "came"},
		{removed, corev1.EventTypeWarning, reasonRemoved, "are gone: the driver no longer lists them"},
		{tainted, corev1.EventTypeWarning, reasonTainted, "have a taint: new claims avoid them"},
		{clean, corev1.EventTypeNormal, reasonClean, "have no taint any more"},
	} {
		if len(e.names) > 0 {
			r.write(e.kind, e.reason, "%d GPUs %s: %s", len(e.names), e.what, listed(e.names))
		}
	}
	for _, claim := range claims {
		r.lost(&claim, removed)
	}
}

// lost tells the pods of a claim that its GPU is gone.
func (r *reporter) lost(claim *claimRecord, removed []string) {
	events := r.events()
	if events == nil {
		return
	}
	for i := range claim.Devices {
		if !slices.Contains(removed, claim.Devices[i].Device) {
			continue
		}
		for _, pod := range claim.Pods {
			events.Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: claim.Namespace, Name: pod.Name, UID: pod.UID},
				corev1.EventTypeWarning, reasonLost, "%s of claim %s is gone; delete the pod and its claim, so that another GPU is allocated", claim.Devices[i].Device, claim.Name)
		}
	}
}

// refused writes that grants have no effect, once per reason. A nil error: they have.
func (r *reporter) refused(claims int, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	r.mu.Lock()
	again := r.refusal == text
	r.refusal = text
	r.mu.Unlock()
	if again || err == nil {
		return
	}
	r.write(corev1.EventTypeWarning, reasonGrant, "%d claims have no effect: %v", claims, err)
}

// taintsByName returns the keys of each device's taints.
func taintsByName(devices []resourceapi.Device) map[string]string {
	out := map[string]string{}
	for i := range devices {
		var keys []string
		for _, t := range devices[i].Taints {
			keys = append(keys, t.Key)
		}
		slices.Sort(keys)
		out[devices[i].Name] = strings.Join(keys, ", ")
	}
	return out
}

// listed joins names in their order. More than a few are counted.
func listed(names []string) string {
	slices.Sort(names)
	if n := len(names) - maxListed; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxListed], ", "), n)
	}
	return strings.Join(names, ", ")
}
