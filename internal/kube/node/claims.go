// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"xsched/internal/control"
	"xsched/internal/kube/cluster"
	"xsched/internal/kube/params"
)

// cdiKind is the kind of the CDI devices, one device per allocation of a claim.
const cdiKind = cluster.Driver + "/claim"

// readClaim returns the record of an allocated claim. An error is about its parameters.
func readClaim(claim *resourceapi.ResourceClaim) (claimRecord, error) {
	r := claimRecord{Namespace: claim.Namespace, Name: claim.Name, Pods: podsOf(claim), Version: claim.ResourceVersion}
	if owner := metav1.GetControllerOf(claim); owner != nil {
		r.Own = owner.Kind == "Pod"
	}
	if claim.Status.Allocation == nil {
		return r, fmt.Errorf("claim %s/%s is not allocated; wait for the scheduler", claim.Namespace, claim.Name)
	}
	devices := &claim.Status.Allocation.Devices
	for i := range devices.Results {
		result := &devices.Results[i]
		if result.Driver != cluster.Driver {
			continue
		}
		d := resultRecord(result)
		if share, ok := result.ConsumedCapacity[Share]; ok {
			d.Reserved = int(share.Value())
		}
		class, capacity := requestOf(claim, result.Request)
		d.Class = class
		// Without a request Kubernetes accounts for an equal part, which limits how many pods a GPU gets.
		if capacity != nil {
			if _, requested := capacity.Requests[Memory]; requested {
				memory := result.ConsumedCapacity[Memory]
				d.Memory = memory.Value()
			}
		}
		var err error
		if d.Parameters, err = params.Of(cluster.Driver, devices.Config, result.Request); err != nil {
			return r, err
		}
		r.Devices = append(r.Devices, d)
	}
	return r, nil
}

// podsOf returns the pods that use a claim.
func podsOf(claim *resourceapi.ResourceClaim) []podRecord {
	var out []podRecord
	for _, user := range claim.Status.ReservedFor {
		if user.APIGroup == "" && user.Resource == "pods" {
			out = append(out, podRecord{Name: user.Name, UID: user.UID})
		}
	}
	return out
}

// requestOf returns the device class of a request or subrequest, and the capacity that it requests.
func requestOf(claim *resourceapi.ResourceClaim, request string) (class string, capacity *resourceapi.CapacityRequirements) {
	main, sub, _ := strings.Cut(request, "/")
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		if r.Name != main {
			continue
		}
		if r.Exactly != nil {
			return r.Exactly.DeviceClassName, r.Exactly.Capacity
		}
		for j := range r.FirstAvailable {
			if r.FirstAvailable[j].Name == sub {
				return r.FirstAvailable[j].DeviceClassName, r.FirstAvailable[j].Capacity
			}
		}
	}
	return "", nil
}

// deviceName is the name of a claim's CDI device. It starts with the claim's UID, because runtimes may
// cache devices by name.
func deviceName(claim string, index int) string { return claim + "-" + strconv.Itoa(index) }

// grant returns the hints of an allocation for a pod.
func (d *deviceRecord) grant(id, namespace string, claim types.UID, pod podRecord) control.Grant {
	g := control.Grant{
		ID: id, Namespace: namespace, Pod: pod.Name, PodUID: string(pod.UID), Class: d.Class,
		Priority: &d.Parameters.Priority, Group: d.Parameters.Group,
	}
	if gpu := address(d.Device); gpu != "" {
		g.Devices = []string{gpu}
	}
	if share := cmp.Or(d.Reserved, d.Parameters.Share); share > 0 {
		g.Utilization, g.Pool = &share, string(claim) // which the scheduler reserved once, for all pods of the claim
	}
	if d.Memory > 0 {
		g.Memory = &d.Memory
	}
	if us := d.Parameters.LatencyTarget.Microseconds(); us > 0 {
		g.LatencyTargetUS = &us
	}
	if d.Parameters.Level > 0 {
		level := d.Parameters.Level
		g.Level = &level
	}
	return g
}

// grants returns one grant for each pod that uses a claim.
func (c *checkpoint) grants() []control.Grant {
	byPod := map[types.UID]control.Grant{}
	for _, uid := range slices.Sorted(maps.Keys(c.Claims)) {
		r := c.Claims[uid]
		for _, pod := range r.Pods {
			for i := range r.Devices {
				g := r.Devices[i].grant(string(pod.UID), r.Namespace, uid, pod)
				if g.Check() != nil {
					continue // one bad grant would refuse all
				}
				if other, ok := byPod[pod.UID]; ok {
					g = control.Strictest(other, g)
				}
				byPod[pod.UID] = g
			}
		}
	}
	out := make([]control.Grant, 0, len(byPod))
	for _, uid := range slices.Sorted(maps.Keys(byPod)) {
		out = append(out, byPod[uid])
	}
	return out
}
